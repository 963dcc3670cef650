"""How good predicted run times are, out of sample: coverage of 80 % intervals, and pinball loss beside simple rules.

Each job of a workload is predicted when it is submitted, from the jobs that had ended by then; it ends when it would
without waiting. Compared with the median of the latest 200 jobs of its user, and with the time limit it asked for, as
predictions of the 10 %, 50 % and 90 % quantile. Ends with one line of JSON. `CORRAL_TRACES` names the folder of the
traces.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import deque
from heapq import heappop, heappush
from pathlib import Path
from statistics import median_low
from typing import Any

from corral.core.prediction import Kind, Predictions, kinds_of, pattern_of
from corral.sim.traces.catalog import FOLDER_VARIABLE, open_trace
from corral.sim.traces.trace import Trace

WORKLOADS = (
    "philly:A", "philly:D", "philly:6c71a0", "itp:cluster06", "itp:cluster07", "muri:trace1",
    "swf:hpc2n_sample", "swf:lublin_256", "synthetic:overload", "synthetic:department",
)  # fmt: skip
QUANTILES = (10, 50, 90)
MINUTE_MS = 60_000


def pinball(percent: int, predicted: float, real: float) -> float:
    over = real - predicted
    return max(percent * over, (percent - 100) * over) / 100


def judged(trace: Trace) -> dict[str, Any]:
    known, ends = Predictions(), list[tuple[int, int, list[Kind], int, tuple[str, str]]]()
    latest: dict[tuple[str, str], deque[int]] = {}
    count = covered = limited = 0
    losses = dict.fromkeys(("predicted", "median of the user", "predicted, of those with a limit", "limit"), 0.0)
    for at, job in enumerate(trace.jobs):
        while ends and ends[0][0] <= job.submit_ms:
            _, _, kinds, length, user = heappop(ends)
            known.add(kinds, length)
            latest.setdefault(user, deque(maxlen=200)).append(length)
        user, real = (job.team, job.user), max(1, job.work_ms)
        kinds = kinds_of(job.team, job.user, 1000 * job.gpus, job.limit_ms, pattern_of(job.application))
        forecast = known.forecast(kinds)
        if forecast is not None and user in latest:
            low, high = forecast.interval_ms()
            count, covered = count + 1, covered + (low <= real <= high)
            mine = sum(pinball(each, forecast.quantile_ms(each), real) for each in QUANTILES)
            losses["predicted"] += mine
            losses["median of the user"] += sum(pinball(each, median_low(latest[user]), real) for each in QUANTILES)
            if job.limit_ms is not None:
                limited += 1
                losses["predicted, of those with a limit"] += mine
                losses["limit"] += sum(pinball(each, job.limit_ms, real) for each in QUANTILES)
        heappush(ends, (job.submit_ms + real, at, kinds, real, user))
    counts = {"limit": limited, "predicted, of those with a limit": limited}
    means = {name: loss / 3 / MINUTE_MS / max(1, counts.get(name, count)) for name, loss in losses.items()}
    return {"trace": trace.name, "jobs": count, "covered": covered / max(1, count), "with_limit": limited} | means


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", default=os.environ.get(FOLDER_VARIABLE, ""), help="where the traces lie")
    parser.add_argument("--only", default="", help="only workloads whose name has this in it")
    given = parser.parse_args()
    if not given.folder or not Path(given.folder).is_dir():
        parser.error(f"no folder with the public traces: name it, or set {FOLDER_VARIABLE} (see docs/traces.md)")
    rows = []
    print("| workload | jobs | 80 % intervals cover | pinball loss | median of the user | time limit |\n|" + "---|" * 6)
    for name in WORKLOADS:
        if given.only in name:
            row = judged(open_trace(name, given.folder))
            rows.append(row)
            limit = f"{row['limit']:.1f} min" if row["with_limit"] else ""
            cells = [name, f"{row['jobs']:,}", f"{100 * row['covered']:.1f} %", f"{row['predicted']:.1f} min"]
            print("| " + " | ".join([*cells, f"{row['median of the user']:.1f} min", limit]) + " |", flush=True)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
