"""Training frameworks, preempted at random: with Corral's callbacks, and as they are. The last line is JSON.

    PYTHONPATH=src:. python -m tests.e2e.frameworks [--count 10] [--only NAME]...

Each program runs with two processes on one node; a job of higher priority takes its GPUs ``count`` times at random
moments. ``false_successes``: the job succeeded, but its last step was never reached. ``deadlocks``: attempts that were
killed at their deadline. ``unsaved``: of programs with a callback, preempted attempts that ended without a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.e2e.framework_programs import CALLBACKS, INTERVAL, LOSES_MOST, PLAIN, PYTHON, programs
from tests.e2e.live import Live

PATIENCE_S = 240.0
OVER = ("succeeded", "failed", "cancelled")


def measure(folder: Path, count: int, only: list[str], seed: int = 1) -> dict[str, Any]:
    """``lost_more``: preemptions of plain programs after which more than their own interval was done again."""
    live, draw = Live(folder / "data", gpus=2), random.Random(seed)
    live.start()
    found: dict[str, Any] = dict.fromkeys(("preemptions", "false_successes", "deadlocks", "unsaved", "lost_more"), 0)
    found["failed"] = []
    steps = max(400, 200 * count)
    try:
        for name, document in programs(folder, steps).items():
            if not only or name in only:
                _one(live, name, document, count, draw, found, steps)
    finally:
        live.stop()
    return found


def _one(
    live: Live, name: str, document: dict[str, Any], count: int, draw: random.Random, found: dict[str, Any], steps: int
) -> None:
    env = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    document = {**document, "env": {**document.get("env", {}), **env}, "name": name, "grace": "60s", "retries": 2}
    job = live.submit(document)
    preempted = 0
    reached: dict[int, int] = {}  # attempt -> its last step
    while preempted < count and live.job(job)["state"] not in OVER:
        until_training(live, job, preempted + 1)
        time.sleep(draw.uniform(0, 5))
        if live.job(job)["state"] not in OVER:
            urgent = live.submit({"command": "true", "gpus": 2, "priority": 100})
            preempted += 1
            live.until_over([urgent], PATIENCE_S)
            reached[preempted] = _reached(live.data.parent, name)
    live.until_over([job], PATIENCE_S)
    shown, out = live.job(job), "".join(_logs(live, job))
    is_done = f"ends at step {steps}" in out
    runs = [run for run in shown["history"] if run["cause"]]
    killed = [run for run in runs if run["exit_code"] == 137]
    ended = runs[:-1] if runs and is_done and runs[-1]["exit_code"] == 0 else runs  # it had finished by then
    unsaved = [run for run in ended if run["exit_code"] != 85 and name in CALLBACKS]
    lost = [
        step - begun
        for attempt, step in reached.items()
        if step >= 0 and (begun := _begun(live, job, attempt + 1)) is not None
    ]
    print(
        f"{name}: {preempted} preemptions, {shown['state']}, exits {[run['exit_code'] for run in runs]}, lost {lost}",
        flush=True,
    )
    found["preemptions"] += preempted
    found["false_successes"] += shown["state"] == "succeeded" and not is_done
    found["deadlocks"] += len(killed)
    found["unsaved"] += len(unsaved)
    found["lost_more"] += sum(1 for steps_lost in lost if steps_lost > LOSES_MOST.get(name, INTERVAL))
    found["failed"] += [name] if shown["state"] != "succeeded" else []


def _reached(folder: Path, name: str) -> int:
    """The last step of a plain program; -1: not one of them."""
    with suppress(OSError, ValueError):
        return int((folder / "runs" / PLAIN.get(name, "none") / "at").read_text())
    return -1


def _begun(live: Live, job: str, attempt: int) -> int | None:
    found = re.search(r"begins at step (\d+)", "".join(_logs(live, job, attempt)))
    return int(found[1]) if found else None


def until_training(live: Live, job: str, attempt: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while "begins at step" not in "".join(_logs(live, job, attempt)) and live.job(job)["state"] not in OVER:
        assert time.monotonic() < end, f"job {job} does not train"
        time.sleep(0.1)


def _logs(live: Live, job: str, attempt: int | None = None) -> list[str]:
    logs = (live.data / "tasks" / "logs").rglob("stdout.*")
    own = f"/{job}%2Fmain@" + ("" if attempt is None else f"{attempt}.")
    return [path.read_text(errors="replace") for path in sorted(logs) if own in str(path)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--only", action="append", default=[])
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server must be stopped then, too
    if not PYTHON.exists():
        sys.exit("no training frameworks beside the checkout: make services")
    with tempfile.TemporaryDirectory(prefix="corral-frameworks-") as folder:
        print(json.dumps(measure(Path(folder), asked.count, asked.only)))


if __name__ == "__main__":
    main()
