"""Does training on a real GPU lose no step when it is preempted, its server killed meanwhile? Prints a line of JSON.

    PYTHONPATH=src:. python tests/device/training_check.py

Needs Corral's sources, its dependencies and torch (in TORCH_SITE, if it is elsewhere). ``--simulate``: without a GPU.
A whole server schedules the GPU. The small language model of the examples trains on it; each round a job of higher
priority takes the GPU. In the second round the server gets SIGKILL as soon as the job is preempted, and is started
again. Exit 0: every attempt began at the step at which the one before had ended, and the losses are those of a run that
was not disturbed.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.live import Live, Unanswered

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "training" / "language_model.py"
STEPS, ROUNDS, PATIENCE_S = 1_500, 3, 120
TOLERANCE = 1e-3


def main() -> int:
    folder = Path(tempfile.mkdtemp(prefix="corral-training-"))
    folder.chmod(0o755)
    live = Live(folder / "data", gpus=1)
    live.more = ["--account", "root"] if os.geteuid() == 0 else []
    live.more += [] if "--simulate" in sys.argv else ["--real"]
    live.start()
    found: dict[str, Any] = {"rounds": ROUNDS}
    try:
        found |= preempted(live, folder)
    finally:
        live.stop()
    found["good"] = found["steps_lost"] == 0 and found["state"] == "succeeded" and found["loss_equal"]
    print(json.dumps(found))
    return 0 if found["good"] else 1


def preempted(live: Live, folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = {
        "command": [sys.executable, str(EXAMPLE), "--folder", str(folder / "run"), "--steps", str(STEPS),
                    "--save-every", str(STEPS), "--pause", "0.02"],
        "gpus": 1, "processes": 1, "env": {"PYTHONPATH": os.environ.get("TORCH_SITE", "")},
    }  # fmt: skip
    job = live.submit(document)
    for attempt in range(1, ROUNDS + 1):
        until(f"attempt {attempt} trains", lambda n=attempt: bool(steps(live, job, n, "begins")))  # type: ignore[misc]
        time.sleep(2)
        urgent = live.submit({"command": ["sleep", "1"], "gpus": 1, "priority": 100})
        if attempt == 2:
            until("it is preempted", lambda: bool(live.job(job)["gangs"][0]["state"] == "stopping"))
            live.kill()
            time.sleep(1)
            live.start()
        until("the urgent job is done", lambda id=urgent: state(live, id) == "succeeded")  # type: ignore[misc]
    until("the run is complete", lambda: state(live, job) in ("succeeded", "failed", "cancelled"))
    ended = [steps(live, job, n, "ends") for n in range(1, ROUNDS + 1)]
    begun = [steps(live, job, n, "begins") for n in range(2, ROUNDS + 2)]
    lost = sum(abs(a[0] - b[0]) if a and b else STEPS for a, b in zip(ended, begun, strict=True))
    losses = json.loads((folder / "run" / "losses.json").read_text())
    expected = undisturbed(folder)
    worst = max((abs(a - b) for a, b in zip(losses, expected, strict=False)), default=1.0)
    return {
        "state": state(live, job), "ended_at": ended, "begun_at": begun, "steps_lost": lost,
        "loss_equal": len(losses) == len(expected) == STEPS and worst <= TOLERANCE, "loss_difference_max": worst,
        "loss": [losses[0], losses[-1]],
    }  # fmt: skip


def undisturbed(folder: Path) -> list[float]:
    home = folder / "module"
    home.mkdir()
    (home / "corral_training.py").write_bytes((ROOT / "src/corral/client/training.py").read_bytes())
    env = os.environ | {
        "PYTHONPATH": f"{home}:{os.environ.get('PYTHONPATH', '')}", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29655",
    }  # fmt: skip
    command = [sys.executable, str(EXAMPLE), "--folder", str(folder / "alone"), "--steps", str(STEPS)]
    subprocess.run([*command, "--save-every", str(STEPS)], env=env, check=True, timeout=300)
    found: list[float] = json.loads((folder / "alone" / "losses.json").read_text())
    return found


def state(live: Live, job: str) -> str:
    try:
        return str(live.job(job)["state"])
    except (Unanswered, OSError):
        return ""


def steps(live: Live, job: str, attempt: int, word: str) -> list[int]:
    logs = [
        path for path in (live.data / "tasks" / "logs").rglob("stdout.*") if f"{job}%2Fmain@{attempt}." in str(path)
    ]
    text = "".join(path.read_text() for path in sorted(logs))
    return [int(step) for step in re.findall(rf"rank 0 {word} at step (\d+)", text)]


def until(what: str, is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not after {PATIENCE_S} s")
        time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main())
