"""What the default policy gains and loses on public workloads, beside the best simple policy and an oracle.

Every policy meets the same costs (starting, saving, stopping, restarting) and knows no more than a site would: lengths
of jobs are learned from those that ended; only `srtf` knows them. The best simple policy is the one with the smallest
mean completion time on the same workload, which is known only afterwards. Prints two tables in Markdown, then what does
not hold, and ends with one line of JSON. The traces are not part of the project: `CORRAL_TRACES` names the folder they
lie in. Priorities of jobs are left out, because simple policies do not know them; teams and users are not.
`--cache FOLDER` keeps the figures of each run: a run is repeated only if the source of the engine has changed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import corral
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
    ("gavel:max_min_fairness", "8x4"),
    ("pollux:6", ""),
    ("tiresias:60", "4x4"),
    ("muri:trace3", "8x8"),
    ("synthetic:overload", ""),
)
NAIVE, GREEDY, STANDARD, ORACLE = "strict_fifo", "fifo", "standard", "srtf, knows all lengths"
SIMPLE = (NAIVE, GREEDY, "sjf", "las")
#: (what it is called, policy, source of estimates)
RIVALS = (*((name, name, "learned") for name in SIMPLE), (STANDARD, "standard", "learned"), (ORACLE, "srtf", "exact"))
#: Mean completion time in hours of `standard` of version 0.1, without and with time sharing (a turn of 4 switches).
EARLIER = {
    ("philly:A", 40): (1.18, 1.18),
    ("philly:D", 64): (3.81, 2.77),
    ("itp:cluster06", 96): (45.74, 22.95),
    ("shockwave:120", 32): (2.48, 3.20),
    ("shockwave:120", 24): (2.98, 4.48),
    ("gavel:max_min_fairness", 32): (3.11, 3.43),
    ("pollux:6", 64): (2.13, 1.19),
    ("tiresias:60", 16): (0.09, 0.09),
    ("muri:trace3", 64): (218.61, 135.72),
    ("synthetic:overload", 64): (6.66, 7.14),
}
HOUR_MS = 3_600_000
Row = dict[str, Any]


def measured(folder: str, kept: Path | None, what: tuple[str, str, int]) -> Row:
    """One workload on some machines under one policy."""
    name, nodes, rival = what
    called, policy, estimates = RIVALS[rival]
    text = f"{name} {nodes} {policy} {estimates} {_source() if kept is not None else ''}"
    file = None if kept is None else kept / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
    if file is not None and file.exists():
        row: Row = json.loads(file.read_text(encoding="utf-8"))
        return row
    trace = open_trace(name, folder)
    trace = replace(trace, jobs=tuple([replace(job, priority=0) for job in trace.jobs]))
    cluster = parse_cluster(nodes) if nodes else build_cluster(trace.nodes)
    assert not isinstance(cluster, Refusal), cluster
    result = simulate(trace, cluster, Scenario(policy=policy, estimates=estimates, costs=TYPICAL, slowdown=None))
    assert not isinstance(result, Refusal), result
    total, in_all = result.measures.total, result.measures.cluster
    largest = list(result.measures.sizes.values())[-1]
    completion, slowdown = total.completion_ms, total.slowdown
    assert completion is not None, "no job has ended"
    row = {
        "trace": name,
        "gpus": cluster.gpus,
        "jobs": len(trace.jobs),
        "refused": total.refused,
        "unfinished": total.unfinished,
        "policy": called,
        "jct_mean_h": completion.mean / HOUR_MS,
        "jct_p99_h": completion.p99 / HOUR_MS,
        "in_line_mean_h": _hours(total.in_line_ms),
        "in_line_p99_largest_h": 0.0 if largest.in_line_ms is None else largest.in_line_ms.p99 / HOUR_MS,
        "jct_mean_largest_h": _hours(largest.completion_ms),
        "largest_jobs": largest.succeeded,
        "first_start_mean_h": _hours(total.waiting_ms),
        "slowdown_mean": 1.0 if slowdown is None else slowdown.mean,
        "uptime": in_all.uptime_in_window,
        "preemptions": total.preemptions,
    }
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(row), encoding="utf-8")
    return row


@cache
def _source() -> str:
    """A fingerprint of what decides and simulates."""
    root = Path(corral.__file__).parent
    files = sorted(path for part in ("core", "policy", "sim") for path in (root / part).rglob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _hours(found: Distribution | None) -> float:
    return 0.0 if found is None else found.mean / HOUR_MS


def by_workload(rows: Sequence[Row]) -> Iterator[tuple[str, dict[str, Row]]]:
    for (name, gpus), group in groupby(rows, key=lambda row: (row["trace"], row["gpus"])):
        yield f"{name} ({gpus})", {row["policy"]: row for row in group}


def best_of(rivals: dict[str, Row]) -> float:
    """The smallest mean completion time of a simple policy, or of an earlier version."""
    first = next(iter(rivals.values()))
    simple = [rivals[name]["jct_mean_h"] for name in SIMPLE if name in rivals]
    return float(min([*simple, *EARLIER.get((first["trace"], first["gpus"]), ())]))


def lost(rows: Sequence[Row]) -> list[str]:
    """The comparisons of the claim that do not hold, in words."""
    found, beyond, far, slow, count = [], 0, 0, 0, 0
    for name, rivals in by_workload(rows):
        if STANDARD not in rivals:
            continue
        mine, count = rivals[STANDARD], count + 1
        times = mine["jct_mean_h"] / best_of(rivals)
        if times > 1.02:
            beyond += 1
            found.append(f"{name}: mean completion is {times:.2f} of the best simple policy's")
        if (oracle := rivals.get(ORACLE)) is not None:
            if mine["jct_mean_h"] > 1.5 * oracle["jct_mean_h"]:
                far += 1
                found.append(
                    f"{name}: mean completion is {mine['jct_mean_h'] / oracle['jct_mean_h']:.2f} of the oracle's"
                )
            slow += mine["slowdown_mean"] > 1.5 * oracle["slowdown_mean"]
        if (naive := rivals.get(NAIVE)) is not None:
            if mine["in_line_p99_largest_h"] > naive["in_line_p99_largest_h"]:
                times = mine["in_line_p99_largest_h"] / max(0.001, naive["in_line_p99_largest_h"])
                found.append(
                    f"{name}: p99 in line of the {mine['largest_jobs']} largest jobs is {times:.2f} of strict FIFO's"
                )
        if (greedy := rivals.get(GREEDY)) is not None:
            if mine["jct_mean_largest_h"] > 1.1 * greedy["jct_mean_largest_h"]:
                times = mine["jct_mean_largest_h"] / greedy["jct_mean_largest_h"]
                jobs = f"the {mine['largest_jobs']} largest jobs"
                found.append(f"{name}: mean completion of {jobs} is {times:.2f} of greedy FIFO's")
            if mine["uptime"] < greedy["uptime"] - 0.005:
                points = 100 * (greedy["uptime"] - mine["uptime"])
                found.append(f"{name}: GPU uptime is {points:.1f} points below greedy FIFO's")
    if 10 * beyond > count:
        found.append(f"mean completion is within 2 % of the best simple policy on {count - beyond} of {count} only")
    if 4 * far > count:
        found.append(f"mean completion is within 1.5 of the oracle's on {count - far} of {count} only")
    if 2 * slow > count:
        found.append(f"mean bounded slowdown is within 1.5 of the oracle's on {count - slow} of {count} only")
    return found


def gains(rows: Sequence[Row]) -> Iterator[str]:
    """For each workload: the mean completion time of each policy, and of ``standard`` against others."""
    yield from _head(["workload (GPUs)", *SIMPLE, STANDARD, "against FIFO", "against the best", ORACLE])
    for name, rivals in by_workload(rows):
        mine = rivals.get(STANDARD, {}).get("jct_mean_h")
        cells = [name, *(f"{rivals[each]['jct_mean_h']:.2f} h" if each in rivals else "" for each in SIMPLE)]
        if mine is not None:
            naive = rivals.get(NAIVE, {}).get("jct_mean_h", 0.0)
            cells += [f"{mine:.2f} h", _change(mine, naive), _change(mine, best_of(rivals))]
        yield _line([*cells, f"{rivals[ORACLE]['jct_mean_h']:.2f} h" if ORACLE in rivals else ""])


def everything(rows: Sequence[Row]) -> Iterator[str]:
    """Every run with all its figures."""
    columns = [
        "workload (GPUs)",
        "policy",
        "mean completion",
        "p99",
        "mean time in line, in total",
        "until first seats",
    ]
    columns += ("mean slowdown", "largest: mean completion", "p99 in line", "GPU uptime", "preemptions")
    yield from _head(columns)
    for row in rows:
        cells = [f"{row['trace']} ({row['gpus']})", row["policy"]]
        cells += [f"{row[each]:.2f} h" for each in ("jct_mean_h", "jct_p99_h", "in_line_mean_h", "first_start_mean_h")]
        cells += [f"{row['slowdown_mean']:.1f}", f"{row['jct_mean_largest_h']:.1f} h"]
        cells += [f"{row['in_line_p99_largest_h']:.1f} h", f"{100 * row['uptime']:.1f} %"]
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
    parser.add_argument("--policies", default="", help="only these, separated by semicolons")
    parser.add_argument("--cache", type=Path, default=None, help="keep the figures of each run in this folder")
    parser.add_argument("--processes", type=int, default=None, help="simulations at once; default: one per CPU")
    given = parser.parse_args()
    if not given.folder or not Path(given.folder).is_dir():
        parser.error(f"no folder with the public traces: name it, or set {FOLDER_VARIABLE} (see docs/traces.md)")
    wanted = {each.strip() for each in given.policies.split(";") if each.strip()}
    questions = [
        (*each, at)
        for each in WORKLOADS
        if given.only in each[0]
        for at, rival in enumerate(RIVALS)
        if not wanted or rival[0] in wanted
    ]
    with ProcessPoolExecutor(given.processes) as pool:
        rows = list(pool.map(partial(measured, given.folder, given.cache), questions))
    for table in (gains(rows), everything(rows)):
        print("\n".join(table), end="\n\n")
    not_held = lost(rows)
    print("\n".join(f"- {each}" for each in not_held) or "Everything holds.", end="\n\n")
    print(json.dumps({"runs": rows, "lost": not_held}))


if __name__ == "__main__":
    main()
