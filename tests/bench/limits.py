"""How late time limits, ends of graces and deadlines are on a server that is otherwise idle. The last line is JSON.

    python -m tests.bench.limits [--count 100]

Real processes on a real server. ``time_limit``: from started_ms + limit until the gang is stopped. ``grace_end``:
from the end of its grace until its process, which ignores SIGTERM, is known to be gone. ``deadline``: from the deadline
of a job that waits until it is cancelled.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.load import share
from tests.e2e.live import Live

LIMIT_MS = 1_000
APART_S = 0.3  # between two submissions
STUBBORN = {"command": ["sh", "-c", "trap '' TERM; sleep 600"], "time_limit": "1s", "grace": "1s"}
LATE = {"command": ["true"], "hold": True, "deadline": "+2s"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="of each kind")
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        print(json.dumps(measure(parser.parse_args().count, Path(folder))))


def measure(count: int, folder: Path) -> dict[str, Any]:
    live = Live(folder / "data")
    live.start()
    try:
        jobs = []
        for _ in range(count):
            jobs += [live.submit(STUBBORN), live.submit(LATE)]
            time.sleep(APART_S)
        live.until_over(jobs, 120)
        late = lateness(live, set(jobs))
    finally:
        live.stop()
    return {"count": count, "late_ms": {kind: _shares(found) for kind, found in late.items()}}


def lateness(live: Live, jobs: set[str]) -> dict[str, list[int]]:
    """By kind, in milliseconds, as the journal tells it."""
    late: dict[str, list[int]] = {"time_limit": [], "grace_end": [], "deadline": []}
    started: dict[str, int] = {}
    leaves: dict[str, int] = {}
    deadlines: dict[str, int] = {}
    for event in _events(live):
        data, gang, at_ms = event["data"], event["data"].get("gang", ""), event["at_ms"]
        if event.get("job") not in jobs:
            continue
        if event["type"] == "JobSubmitted" and data["spec"].get("deadline_ms"):
            deadlines[event["job"]] = data["spec"]["deadline_ms"]
        elif event["type"] == "GangStarted":
            started[gang] = at_ms
        elif event["type"] == "GangEvicted":
            late["time_limit"].append(at_ms - started[gang] - LIMIT_MS)
            leaves[gang] = data["deadline_ms"]
        elif event["type"] == "GangStopped":
            late["grace_end"].append(at_ms - leaves[gang])
        elif event["type"] == "GangFinished" and event["job"] in deadlines:
            late["deadline"].append(at_ms - deadlines[event["job"]])
    return late


def _events(live: Live) -> list[Any]:
    found: list[Any] = []
    while True:
        page = live.ask("GET", f"/v1/events?after={found[-1]['seq'] if found else 0}&limit=500")["events"]
        if not page:
            return found
        found += page


def _shares(late: list[int]) -> dict[str, float]:
    found = sorted(map(float, late))
    return {"count": len(found), "p50": share(found, 0.5), "p99": share(found, 0.99), "max": found[-1]}


if __name__ == "__main__":
    main()
