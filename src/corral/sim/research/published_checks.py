"""Compares the simulator with every published figure: equal, or not.

Run by `make verify-traces`. The traces are not part of the project: `CORRAL_TRACES` names their folder. Ends with one
line of JSON. docs/literature.md and docs/openb.md explain each figure.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from time import process_time

from msgspec import Struct, to_builtins

from corral.core.engine import Policy
from corral.core.intake.refusal import Refusal
from corral.policy.backfill.backfill import CONSERVATIVE, EASY, STRICT, Backfill
from corral.policy.cycle.order import ByArrival, ByLength
from corral.policy.cycle.parts import Parts
from corral.policy.cycle.standard import Standard
from corral.sim.cluster_spec import parse_cluster
from corral.sim.history import History, Recorder
from corral.sim.research import literature, openb_placement
from corral.sim.run import Simulation
from corral.sim.traces.catalog import FOLDER_VARIABLE, open_trace
from corral.sim.traces.text_rows import read_rows
from corral.sim.workload import Estimate, SubmissionTerms, arrivals_of, exact, queues_of, whole_hours

SEEDS = 10
ALLOCATION_POINTS = 0.3


class PublishedCheck(Struct, frozen=True):
    """One comparison. ``figures`` are ours and theirs, by name."""

    what: str
    is_equal: bool
    figures: dict[str, float]
    cpu_s: float = 0.0


#: Average completion and, where it was published, average waiting time, in seconds; FIFO and SJF without preemption.
PHILLY: dict[tuple[str, str], tuple[str, float, float | None]] = {
    ("A", "fifo consolidated"): ("5x8", 140744.95, 137404.82),
    ("D", "fifo consolidated"): ("8x8", 105578.14, 98661.71),
    ("A", "sjf consolidated"): ("5x8", 4140.99, 800.86),
    ("D", "sjf consolidated"): ("8x8", 15195.54, 8279.11),
    ("A", "fifo by count"): ("count:40", 136898.49, None),
    ("D", "fifo by count"): ("count:64", 46457.51, None),
}
#: Average waiting in seconds on 96 GPUs by count; the start of every job is in the traces' folder.
ITP: dict[tuple[str, str], float] = {
    ("fcfs", "exact"): 342031.6356,
    ("easy", "exact"): 158059.3836,
    ("conservative", "exact"): 179595.2563,
    ("fcfs", "hour"): 342031.6356,
    ("easy", "hour"): 161892.6135,
    ("conservative", "hour"): 162079.2400,
}
BACKFILL: dict[str, Backfill] = {"fcfs": STRICT, "easy": EASY, "conservative": CONSERVATIVE}
ESTIMATE: dict[str, Estimate] = {"exact": exact, "hour": whole_hours}
CONSERVATIVE_TOLERANCE = 0.02  # programs differ in how they compress a plan when a job ends early
#: Mean allocation in percent when 130 % has arrived.
OPENB = {"FGD": 95.39, "BestFit": 93.08, "GpuPacking": 92.00, "DotProd": 90.85}
#: Ours in the order drawn with seed 1, which was not published; it may be half a point away from the mean of ten.
OPENB_FIRST = {
    "FGD": 95.29137153895682,
    "BestFit": 93.1231487443657,
    "GpuPacking": 91.55634256278165,
    "DotProd": 90.91065679330323,
}


def checks(folder: Path, seeds: int = SEEDS) -> Iterator[tuple[str, Callable[[], PublishedCheck]]]:
    """Every check by name, as a function that runs it."""
    for name, run in literature.comparisons(folder):
        yield name, partial(_published, run)
    for slice_, rule in PHILLY:
        yield f"philly:{slice_} {rule}", partial(philly, folder, slice_, rule)
    for rule, estimates in ITP:
        yield f"itp:cluster06 {rule}, estimates {estimates}", partial(itp, folder, rule, estimates)
    for name in ("BestFit", "FGD", "GpuPacking"):
        yield f"openb:default seed 42 {name}", partial(openb_decisions, folder, name)
    for name in OPENB if seeds else ():
        yield f"openb:default {seeds} seeds {name}", partial(openb_seeds, folder, name, seeds)


def _published(run: Callable[[], literature.Comparison]) -> PublishedCheck:
    found = run()
    figures = {"ours": found.average_jct_s, "theirs": found.expected_s, "preemptions": float(found.preemptions)}
    if found.expected_preemptions is not None:
        figures["their_preemptions"] = float(found.expected_preemptions)
    return PublishedCheck(found.what, found.agrees, figures)


def philly(folder: Path, slice_: str, rule: str) -> PublishedCheck:
    """First come or shortest first, the head of the queue blocks; best fit on nodes, or by count."""
    nodes, completion_s, waiting_s = PHILLY[slice_, rule]
    order = ByLength() if rule.startswith("sjf") else ByArrival()
    history = _run(folder, f"philly:{slice_}", nodes, Standard(Parts(order, STRICT)), exact)
    jobs = history.jobs.values()
    ours = sum((job.ended_ms or 0) - job.submitted_ms for job in jobs) / len(jobs) / 1000
    waited = sum(job.runs[0].placed_ms - job.submitted_ms for job in jobs) / len(jobs) / 1000
    is_equal = abs(ours - completion_s) < 0.006 and (waiting_s is None or abs(waited - waiting_s) < 0.006)
    figures = {"ours": ours, "theirs": completion_s, "waiting": waited}
    return PublishedCheck(f"philly:{slice_} {rule}", is_equal, figures)


def itp(folder: Path, rule: str, estimates: str) -> PublishedCheck:
    """Backfill by count; for all rules except the conservative one, the second in which each job starts."""
    history = _run(
        folder, "itp:cluster06", "count:96", Standard(Parts(ByArrival(), BACKFILL[rule])), ESTIMATE[estimates]
    )
    starts = [job.runs[0].placed_ms // 1000 for job in history.jobs.values()]
    waiting = sum(job.runs[0].placed_ms - job.submitted_ms for job in history.jobs.values()) / len(starts) / 1000
    theirs = ITP[rule, estimates]
    figures = {"ours": waiting, "theirs": theirs, "jobs": float(len(starts))}
    if rule == "conservative":
        is_equal = abs(waiting / theirs - 1) <= CONSERVATIVE_TOLERANCE
    else:
        known = folder / "itp" / "expected_starts" / f"cluster06-96-{estimates}-{rule}.csv.gz"
        expected = [int(row.number("start")) for row in read_rows(known, ("start",))]
        figures["equal_starts"] = float(sum(a == b for a, b in zip(starts, expected, strict=True)))
        is_equal = starts == expected
    return PublishedCheck(f"itp:cluster06 {rule}, estimates {estimates}", is_equal, figures)


def openb_decisions(folder: Path, name: str) -> PublishedCheck:
    """Each of the recorded arrivals: placed or failed, and the usage after it."""
    trace = open_trace("openb:default", folder)
    ours, theirs = openb_placement.recorded(trace, folder / "openb", name)
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    figures = {"ours": float(equal), "theirs": float(len(theirs))}
    return PublishedCheck(f"openb:default seed 42 {name}", equal == len(theirs), figures)


def openb_seeds(folder: Path, name: str, seeds: int) -> PublishedCheck:
    """Arrivals in orders drawn by us: the allocation when 130 % of the GPUs have been requested."""
    trace = open_trace("openb:default", folder)
    found = [openb_placement.allocation(trace, name, seed) for seed in range(1, seeds + 1)]
    return compared(name, found)


def compared(name: str, found: Sequence[float]) -> PublishedCheck:
    """The published figure is a mean of ten orders; with fewer, the first one must be exactly as recorded."""
    what = f"openb:default {len(found)} seeds {name}"
    mean = sum(found) / len(found)
    first = OPENB_FIRST[name]
    is_equal = abs(found[0] - first) < 1e-9
    if len(found) < SEEDS:
        return PublishedCheck(what, is_equal, {"ours": found[0], "recorded": first})
    is_near = abs(mean - OPENB[name]) <= ALLOCATION_POINTS
    return PublishedCheck(what, is_equal and is_near, {"ours": mean, "theirs": OPENB[name]})


def _run(folder: Path, name: str, nodes: str, policy: Policy, estimate: Estimate) -> History:
    trace = open_trace(name, folder)
    cluster = parse_cluster(nodes)
    recorder = Recorder()
    assert not isinstance(cluster, Refusal)
    arrivals = arrivals_of(trace, cluster, SubmissionTerms(estimate=estimate))
    Simulation(cluster, arrivals, policy, recorder, queues=queues_of(trace)).run()
    return recorder.history


# ---- the report ----------------------------------------------------------------------------------------------------


def _timed(folder: Path, seeds: int, name: str) -> PublishedCheck:
    begin = process_time()
    found = dict(checks(folder, seeds))[name]()
    return PublishedCheck(found.what, found.is_equal, found.figures, process_time() - begin)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", default=os.environ.get(FOLDER_VARIABLE, ""), help="folder of the public traces"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of drawn orders for openb; 0: none")
    parser.add_argument("--only", default="", help="only comparisons whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    given = parser.parse_args(argv)
    if not given.folder or not Path(given.folder).is_dir():
        parser.error(f"no folder with the public traces: name it, or set {FOLDER_VARIABLE} (see docs/traces.md)")
    folder = Path(given.folder)
    names = [name for name, _ in checks(folder, given.seeds) if given.only in name]
    found: list[PublishedCheck] = []
    with ProcessPoolExecutor(max(1, given.jobs)) as pool:
        for check in pool.map(partial(_timed, folder, given.seeds), names):
            found.append(check)
            text = "  ".join(f"{key} {value:,.3f}" for key, value in check.figures.items())
            print(f"{'equal  ' if check.is_equal else 'UNEQUAL'}  {check.what:<46} {text}  ({check.cpu_s:.1f} s)")
            sys.stdout.flush()
    equal = sum(check.is_equal for check in found)
    print(json.dumps({"equal": equal, "total": len(found), "checks": to_builtins(found)}))
    return 0 if equal == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
