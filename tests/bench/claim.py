"""What the default policy gains and loses on public workloads, beside strict FIFO and the best simple policy.

Every policy meets the same costs (starting, saving, stopping, restarting) and knows no more than a site would: lengths
of jobs are learned from those that ended. The best simple policy is the one of `SIMPLE` with the smallest mean
completion time on the same workload, which is known only afterwards. Prints two tables in Markdown and ends with one
line of JSON. The traces are not part of the project: `CORRAL_TRACES` names the folder they lie in.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from corral.core.intake.refusal import Refusal
from corral.sim.cluster_spec import build_cluster, parse_cluster
from corral.sim.experiment import Scenario, simulate
from corral.sim.report.measures import Distribution
from corral.sim.traces.catalog import FOLDER_VARIABLE, open_trace
from corral.sim.world import TYPICAL

#: (workload, machines); "" are those that the workload names
WORKLOADS = (
    ("philly:A", "5x8"),
    ("philly:D", "8x8"),
    ("itp:cluster06", "count:96"),
    ("shockwave:120", "8x4"),
    ("shockwave:120", "6x4"),
    ("muri:trace3", "8x8"),
    ("synthetic:overload", ""),
)
NAIVE, STANDARD, SHARING = "strict_fifo", "standard", "standard, sharing time"
SIMPLE = (NAIVE, "fifo", "conservative", "sjf")
#: (what it is called, policy, time sharing)
RIVALS = (*((name, name, 0) for name in SIMPLE), (STANDARD, "standard", 0), (SHARING, "standard", 4))
#: Runs that would take hours: a reservation for every job of a long queue.
LEFT_OUT = {("muri:trace3", "conservative"), ("synthetic:overload", "conservative")}
HOUR_MS = 3_600_000
Row = dict[str, Any]


def measured(folder: str, what: tuple[str, str, int]) -> Row:
    """One workload on some machines under one policy."""
    name, nodes, rival = what
    called, policy, time_share = RIVALS[rival]
    trace = open_trace(name, folder)
    cluster = parse_cluster(nodes) if nodes else build_cluster(trace.nodes)
    assert not isinstance(cluster, Refusal), cluster
    scenario = Scenario(policy=policy, time_share=time_share, costs=TYPICAL, slowdown=None)
    result = simulate(trace, cluster, scenario)
    assert not isinstance(result, Refusal), result
    measures = result.measures
    largest = list(measures.sizes.values())[-1]
    return {
        "workload": name,
        "gpus": cluster.gpus,
        "jobs": len(trace.jobs),
        "refused": measures.total.refused,
        "unfinished": measures.total.unfinished,
        "policy": called,
        "completion_h": _hours(measures.total.completion_ms),
        "in_line_h": _hours(measures.total.in_line_ms),
        "waiting_h": _hours(measures.total.waiting_ms),
        "largest_in_line_p99_h": 0.0 if largest.in_line_ms is None else largest.in_line_ms.p99 / HOUR_MS,
        "utilisation": measures.cluster.utilisation_in_window,
        "uptime": measures.cluster.uptime_in_window,
        "uptime_while_waiting": measures.cluster.uptime_while_waiting,
        "preemptions": measures.total.preemptions,
    }


def _hours(found: Distribution | None) -> float:
    assert found is not None, "no job has ended"
    return found.mean / HOUR_MS


def gains(rows: Sequence[Row]) -> Iterator[str]:
    """For each workload: what ``standard`` gains or loses against FIFO and against the best simple policy."""
    columns = ["workload (GPUs)", "policy", "mean completion", "against FIFO", "against the best simple policy"]
    columns += ("mean time in line, in total", "against FIFO", "against the best simple policy", "preemptions")
    yield from _head(columns)
    for _, group in groupby(rows, key=lambda row: (row["workload"], row["gpus"])):
        rivals = {row["policy"]: row for row in group}
        naive = rivals[NAIVE]
        best = min((rivals[name] for name in SIMPLE if name in rivals), key=lambda row: float(row["completion_h"]))
        shown = dict.fromkeys((NAIVE, str(best["policy"]), STANDARD, SHARING))
        for name in shown:
            row = rivals[name]
            cells = [f"{row['workload']} ({row['gpus']})", _called(name, str(best["policy"]))]
            for figure in ("completion_h", "in_line_h"):
                against = [_change(row[figure], other[figure]) if row is not other else "" for other in (naive, best)]
                cells += [f"{row[figure]:.2f} h", *against]
            yield _line([*cells, f"{row['preemptions']:,}"])


def _called(name: str, best: str) -> str:
    notes = [note for other, note in ((NAIVE, "FIFO"), (best, "best simple")) if name == other]
    return f"{name} ({', '.join(notes)})" if notes else name


def everything(rows: Sequence[Row]) -> Iterator[str]:
    """Every run with all its figures."""
    columns = ["workload (GPUs)", "policy", "mean completion", "mean time in line, in total", "until first seats"]
    columns += ("p99 in line, largest jobs", "utilisation", "GPU uptime", "GPU uptime while work waits", "preemptions")
    yield from _head(columns)
    for row in rows:
        cells = [f"{row['workload']} ({row['gpus']})", row["policy"]]
        cells += [f"{row[name]:.2f} h" for name in ("completion_h", "in_line_h", "waiting_h")]
        cells += [f"{row['largest_in_line_p99_h']:.1f} h"]
        cells += [f"{100 * row[name]:.1f} %" for name in ("utilisation", "uptime", "uptime_while_waiting")]
        yield _line([*cells, f"{row['preemptions']:,}"])


def _change(value: float, base: float) -> str:
    percent = round(100 * (value / base - 1)) if base else 0
    return f"**{percent:+} %**" if percent > 0 else f"{percent:+} %".replace("-", "\N{MINUS SIGN}")


def _head(columns: Sequence[str]) -> Iterator[str]:
    yield _line(columns)
    yield "|" + "---|" * len(columns)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", nargs="?", default=os.environ.get(FOLDER_VARIABLE, ""), help="where the traces lie")
    parser.add_argument("--only", default="", help="only workloads whose name has this in it")
    parser.add_argument("--processes", type=int, default=None, help="simulations at once; default: one per CPU")
    given = parser.parse_args()
    if not given.folder or not Path(given.folder).is_dir():
        parser.error(f"no folder with the public traces: name it, or set {FOLDER_VARIABLE} (see docs/traces.md)")
    questions = [
        (*each, at)
        for each in WORKLOADS
        if given.only in each[0]
        for at, rival in enumerate(RIVALS)
        if (each[0], rival[0]) not in LEFT_OUT
    ]
    with ProcessPoolExecutor(given.processes) as pool:
        rows = list(pool.map(partial(measured, given.folder), questions))
    for table in (gains(rows), everything(rows)):
        print("\n".join(table), end="\n\n")
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
