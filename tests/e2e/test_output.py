"""The output of jobs on many machines: followed through agents, and read again after the end."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import pytest

from corral.client.follow import LogBytes
from tests.e2e.fleet import FleetTrial

pytestmark = pytest.mark.timeout(280)
LINES = 4_000
PROGRAM = f"""
import os, sys, time
rank = int(os.environ["RANK"])
for n in range({LINES}):
    print(f"{{rank}} {{n:06d}} " + "x" * 90, file=(sys.stdout, sys.stderr)[n % 2])
open(f"{{sys.argv[1]}}/{{rank}}", "w").close()
while rank == 1 and len(os.listdir(sys.argv[1])) < 4:
    time.sleep(0.05)
if rank == 1:
    raise ValueError("bad batch")
time.sleep(60)
"""


def lines_of(parts: list[LogBytes]) -> dict[tuple[int, str], list[str]]:
    """By rank and stream. Every part has whole lines."""
    found: dict[tuple[int, str], list[str]] = defaultdict(list)
    for part in parts:
        assert part.data.endswith(b"\n")
        found[part.rank, part.stream] += part.data.decode().splitlines()
    return found


def test_output_of_ranks_on_two_nodes_is_followed_whole_and_the_first_failure_is_found(tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.mkdir()
    with FleetTrial(tmp_path / "fleet", 2, 8_000) as trial, trial.bed.client() as client:
        job = client.submit({
            "command": [sys.executable, "-c", PROGRAM, str(done)], "nodes": 2, "gpus": 8, "processes": 2, "grace": "1s",
        }).id  # fmt: skip
        followed = lines_of(list(client.output(job, follow=True)))
        view = client.wait(job, timeout_s=120)
        assert view.state == "failed"
        again = lines_of(list(client.output(job)))
        for rank in range(4):
            for number, stream in enumerate(("stdout", "stderr")):
                expected = [f"{rank} {n:06d} {'x' * 90}" for n in range(number, LINES, 2)]
                for shown in (followed, again):
                    assert shown[rank, stream][: LINES // 2] == expected
        first = view.history[-1].first_failure
        assert first is not None
        node = view.history[-1].nodes[0]
        assert (first.rank, first.node) == (1, node)
        assert view.why == f"rank 1 on {node} failed first: ValueError: bad batch"
        (last,) = {part.label for part in client.output(job, tail=1, rank=3)}
        assert last == ""
        times = [part.at_ms for part in client.output(job) if part.at_ms]
        assert times == sorted(times)
