"""Job steps in one gang on this machine: how long one takes, how many a minute, and whether 64 outputs stay whole.

    python -m tests.bench.job_steps [--steps 300]

Times are of the whole command ``srun -n1 true``, from its start to its end, in a job of a local backend.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import msgspec

from corral.core.cluster.topology import NodeSpec
from corral.runtime.base import Phase, SeatOfGang, TaskKey, TaskOrder
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings
from tests.accounts import OWN
from tests.runtime.reports import Collector

_LINES = 500
_SCRIPT = """#!/bin/bash
for n in $(seq {each}); do
  a=$EPOCHREALTIME; srun --exact -n1 true; b=$EPOCHREALTIME
  echo "took $(( (${{b/./}} - ${{a/./}}) ))"
done
a=$EPOCHREALTIME
for w in 1 2; do (for n in $(seq {each}); do srun --exact -n1 true; done) & done; wait
b=$EPOCHREALTIME
echo "all $(( (${{b/./}} - ${{a/./}}) ))"
srun --overlap -n64 --overcommit bash -c 'for n in $(seq {lines}); do echo $SLURM_PROCID-$n-xxxxxxxxxxxxxxxx; done' >out
echo "lines $(sort out | uniq -u | grep -cE '^[0-9]+-[0-9]+-x{{16}}$')"
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    each = max(parser.parse_args().steps // 3, 10)
    with tempfile.TemporaryDirectory() as folder:
        collector, key = Collector(), TaskKey("1/main", 1, 0)
        backend = LocalBackend(Path(folder), NodeSpec("n1"), LocalSettings(account=OWN))
        backend.open(collector, 1)
        env = (("SLURM_JOB_ID", "1"), ("SLURM_JOB_NUM_NODES", "1"))
        order = TaskOrder(
            key=key, epoch=1, node="n1", command=("bench",), script=_SCRIPT.format(each=each, lines=_LINES), env=env,
            has_shims=True, seats=(SeatOfGang("n1"),), cpu_milli=4000, directory=folder,
        )  # fmt: skip
        backend.launch([order])
        collector.wait(key, Phase.DOWN, patience_s=1800)
        part = backend.read_log(key, "stdout", 0, 1 << 24)
        text = part.data.decode() if part is not None else ""
        backend.close()
    took = [int(line.split()[1]) / 1000 for line in text.splitlines() if line.startswith("took")]
    all_us = int(next(line for line in text.splitlines() if line.startswith("all")).split()[1])
    whole = int(next(line for line in text.splitlines() if line.startswith("lines")).split()[1])
    figures = {
        "steps": len(took) + 2 * each,
        "step_p50_ms": round(statistics.median(took), 1),
        "step_p90_ms": round(sorted(took)[int(len(took) * 0.9)], 1),
        "steps_per_minute": round(2 * each / (all_us / 60e6)),
        "lines_expected": 64 * _LINES,
        "lines_whole": whole,
        "load": round(os.getloadavg()[0], 1),
    }
    print(msgspec.json.encode(figures).decode())


if __name__ == "__main__":
    main()
