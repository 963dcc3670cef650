"""Preemptions of exactly the loop that `corral.training` prints, on a real server. The last line is JSON.

    PYTHONPATH=src:. python -m tests.bench.preempt [--count 20]

Each job is the docstring's program, saved to a file and run as `python train.py`, half of them with one process and
half with four. Every time all its processes work, a job of higher priority takes its GPUs; it must save and leave with
85, and begin again at exactly the step it had reached. ``steps_lost`` counts, over all processes, the steps that had to
be done twice; ``wrong_exits`` the runs that were preempted and ended with another code.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

from corral.client import training
from tests.e2e.live import Live

GPUS = 4
PER_JOB = 5  # preemptions of one job, which would otherwise be done before
WITHIN_S = 120.0


def program() -> str:
    """What the docstring prints, as it prints it."""
    assert training.__doc__ is not None
    _, _, rest = training.__doc__.partition("::\n")
    lines = rest.splitlines()
    last = max(n for n, line in enumerate(lines) if line.startswith("    "))
    return dedent("\n".join(lines[: last + 1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=20)
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        print(json.dumps(measure(parser.parse_args().count, Path(folder))))


def measure(count: int, folder: Path, per_job: int = PER_JOB) -> dict[str, Any]:
    live = Live(folder / "data", gpus=GPUS)
    live.start()
    try:
        found = [0, 0, 0]
        for n in range(-(-count // per_job)):
            times = min(per_job, count - n * per_job)
            found = [
                a + b for a, b in zip(found, _one_job(live, folder / f"job-{n}", (1, 4)[n % 2], times), strict=True)
            ]
        return {
            "preemptions": found[0], "steps_lost": found[1], "wrong_exits": found[2], "requeue_exit": training.SAVED,
        }  # fmt: skip
    finally:
        for job in live.jobs():
            if job["state"] not in ("succeeded", "failed", "cancelled"):
                live.ask("POST", f"/v1/jobs/{job['id']}/cancel")
                live.until_over([job["id"]])
        live.stop()


def _one_job(live: Live, folder: Path, processes: int, times: int) -> tuple[int, int, int]:
    folder.mkdir()
    (folder / "train.py").write_text(program())
    job = live.submit({
        "command": f"{sys.executable} train.py", "directory": str(folder), "gpus": GPUS, "processes": processes,
    })  # fmt: skip
    for attempt in range(1, times + 1):
        _until(lambda n=attempt: _log(live, job, n).count("begins at step") == processes)  # type: ignore[misc]
        time.sleep(0.1)
        urgent = live.submit({"command": "true", "gpus": GPUS, "priority": 100})
        live.until_over([urgent], WITHIN_S)
    _until(lambda: _log(live, job, times + 1).count("begins at step") == processes)
    live.ask("POST", f"/v1/jobs/{job}/cancel")
    live.until_over([job], WITHIN_S)
    runs = {each["attempt"]: each for each in live.job(job)["history"]}
    wrong = sum(runs[attempt]["exit_code"] != training.SAVED for attempt in range(1, times + 1))
    lost = sum(_lost(_log(live, job, attempt), _log(live, job, attempt + 1)) for attempt in range(1, times + 1))
    return times, lost, wrong


def _lost(before: str, after: str) -> int:
    """Over all processes: what was reached, against where it began again. Who has not saved has lost it all."""
    reached = sum(map(int, re.findall(r"^saved step (\d+)$", before, re.MULTILINE)))
    silent = before.count("begins at step") - before.count("saved step")
    return abs(reached - sum(map(int, re.findall(r"^begins at step (\d+)$", after, re.MULTILINE)))) + silent


def _log(live: Live, job: str, attempt: int) -> str:
    folders = live.data / "tasks" / "logs"
    found = [path for path in folders.rglob("stdout.*") if f"/{job}%2Fmain@{attempt}.0" in str(path)]
    return "".join(path.read_text() for path in sorted(found))


def _until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


if __name__ == "__main__":
    main()
