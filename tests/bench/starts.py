"""Starts of tasks with eight processes each on a real server, beside busy processes. The last line is JSON.

    PYTHONPATH=src:. python -m tests.bench.starts [--count 50] [--busy 4]

Each job has eight ranks, four jobs run at a time on eight simulated GPUs, and ``--busy`` processes that only burn CPU
run beside them. ``failed`` counts the jobs that did not succeed with their first attempt, or whose eight ranks did not
all say who they are.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.e2e.live import Live

PROCESSES, GPUS = 8, 2  # of a job
WITHIN_S = 10.0  # for each job, one after the other; far more than it takes on a busy machine
JOB = {"command": ["sh", "-c", "echo rank $RANK of $WORLD_SIZE"], "gpus": GPUS, "processes": PROCESSES}
BURN = "while True: pass"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=50, help="jobs of eight processes")
    parser.add_argument("--busy", type=int, default=4, help="processes that burn CPU beside them")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder, burning(asked.busy):
        print(json.dumps(measure(asked.count, Path(folder))))


def measure(count: int, folder: Path) -> dict[str, Any]:
    live = Live(folder / "data")
    live.start()
    try:
        began = time.monotonic()
        jobs = [live.submit(JOB) for _ in range(count)]
        live.until_over(jobs, 60 + count * WITHIN_S)
        faults = [wrong for job in jobs if (wrong := fault(live, job))]
        return {
            "starts": count, "processes": PROCESSES, "failed": len(faults), "faults": faults[:10],
            "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip
    finally:
        live.stop()


def fault(live: Live, job: str) -> str:
    """What went wrong with its start; empty: nothing."""
    told = live.job(job)
    if told["state"] != "succeeded" or len(told["history"]) != 1:
        return f"{job}: {told['state']} with {len(told['history'])} attempts"
    said = sorted(_log(live, job).splitlines())
    ranks = sorted(f"rank {rank} of {PROCESSES}" for rank in range(PROCESSES))
    return "" if said == ranks else f"{job}: said {said}"


def _log(live: Live, job: str) -> str:
    found = [
        path for path in (live.data / "tasks" / "logs").rglob("stdout.*") if f"/{job}%2Fmain@1.0" in str(path)
    ]  # fmt: skip
    return "".join(path.read_text() for path in found)


@contextmanager
def burning(count: int) -> Iterator[None]:
    busy = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    main()
