"""Gangs with real collectives (torch, gloo) on two machines of which one is lost, or one rank is killed. Ends in JSON.

    PYTHONPATH=src:. python -m tests.bench.gangs --torch PYTHON [--rounds 20]

``PYTHON``: an interpreter that has torch. In each round a gang of two tasks on two nodes of a test fleet reduces a
tensor again and again. Then its second node loses its agent (its tasks end with the lease), or its second rank gets
SIGKILL. The first rank fails by itself shortly before or after. ``repaired``: the job went on and succeeded, with no
retry of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import tempfile
import time
from pathlib import Path

from tests.e2e.fleet import FleetTrial

LEASE_MS = 2_000
PROGRAM = """
import datetime, os, sys, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, attempt = dist.get_rank(), int(os.environ["CORRAL_ATTEMPT"])
for step in range(5 if attempt > 1 else 10_000):
    ones = torch.ones(8)
    dist.all_reduce(ones)
    assert ones[0] == dist.get_world_size()
    if step == 3:
        with open(f"{sys.argv[1]}-{attempt}-{rank}.new", "w") as file:
            file.write(f"{os.getpid()} {os.environ['CORRAL_NODE']}")
        os.rename(f"{sys.argv[1]}-{attempt}-{rank}.new", f"{sys.argv[1]}-{attempt}-{rank}")
    time.sleep(0.05)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--torch", required=True)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="corral-bench-") as folder:
        print(json.dumps(measure(Path(folder), os.path.abspath(asked.torch), asked.rounds)))


def measure(folder: Path, python: str, rounds: int) -> dict[str, int]:
    found = {"rounds": rounds, "node_lost_repaired": 0, "rank_killed_repaired": 0}
    (folder / "train.py").write_text(PROGRAM)
    with FleetTrial(folder / "fleet", 3, LEASE_MS) as trial:
        for n in range(rounds):
            found["node_lost_repaired"] += _round(trial, folder / f"node-{n}", python, is_node=True)
            found["rank_killed_repaired"] += _round(trial, folder / f"rank-{n}", python, is_node=False)
    return found


def _round(trial: FleetTrial, mark: Path, python: str, is_node: bool) -> bool:
    job = trial.submit(command=[python, str(mark.parent / "train.py"), str(mark)], nodes=2, gpus=8, name=mark.name)
    second = Path(f"{mark}-1-1")
    trial.until("both ranks reduce", second.exists, 120)
    pid, node = second.read_text().split()
    time.sleep(0.2)
    if is_node:
        trial.bed.kill(node)
    else:
        os.kill(int(pid), signal.SIGKILL)
    trial.until("it is over", lambda: trial.job(job).state in ("succeeded", "failed", "cancelled"), 120)
    if is_node:
        trial.bed.start_agent(node)
        trial.until("it is back", lambda: not trial.is_lost(node), 60)
    return bool(trial.job(job).state == "succeeded")


if __name__ == "__main__":
    main()
