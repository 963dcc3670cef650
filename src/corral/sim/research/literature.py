"""Published results of preemptive policies, reproduced with the engine: each comparison runs one of them.

Knows the settings of the publications (docs/literature.md explains them) and their figures. The workloads are public
and not part of Corral; the figures come from the publications or from their simulators, run unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from corral.core.engine import Policy
from corral.core.intake.refusal import Refusal
from corral.core.model import Cause, Gang
from corral.core.snapshot import Snapshot
from corral.policy.backfill.backfill import GREEDY
from corral.policy.cycle.order import ByArrival
from corral.policy.cycle.parts import Parts
from corral.sim.cluster_spec import ClusterSpec, parse_cluster
from corral.sim.history import History, Recorder
from corral.sim.research.published import policy as named_policy
from corral.sim.research.repack.policy import Repack
from corral.sim.research.repack.ranks import ByAttainedService, Rank, gpu_milli_of
from corral.sim.research.taxed import TaxedSimulation, TaxedWorld
from corral.sim.run import Simulation
from corral.sim.traces.catalog import open_trace
from corral.sim.traces.muri import read_muri
from corral.sim.traces.text_rows import read_rows
from corral.sim.traces.trace import Trace
from corral.sim.workload import SubmissionTerms, arrivals_of, exact, queues_of

RULES = ("srtf", "srsf", "las")

#: Philly by count: slice -> (cluster, rule -> (average JCT in seconds, preemptions)). The simulator of Tiresias.
PHILLY: dict[str, tuple[str, dict[str, tuple[float, int]]]] = {
    "A": ("count:40", {"srtf": (3679.45, 173), "srsf": (3685.26, 128), "las_by_time": (4023.02, 185)}),
    "D": ("count:64", {"srtf": (8335.48, 6236), "srsf": (8113.89, 4776), "las_by_time": (8760.35, 4205)}),
}
#: Muri's traces: average JCT in seconds as published, in the order of RULES. The simulator of Muri (SIGCOMM'22).
PUBLISHED = {
    "trace1": (1370603.198, 980140.5699, 3330371.307),
    "trace1_pr": (2303543.816, 1801859.995, 6921682.793),
    "trace3": (193081.796, 185021.8802, 347213.2481),
    "trace3_pr": (844394.78, 798057.6829, 2213110.128),
}
#: The same simulator with every overhead set to zero.
UNTAXED = {
    "trace1": (1377148.986, 975401.097, 3261561.768),
    "trace3": (190377.377, 183965.978, 340306.277),
}
#: The same kind of jobs on 64 V100, measured.
REAL = (249140.18, 238612.09, 336533.17)
#: What a real cluster may differ from its simulation.
REAL_TOLERANCE = 0.03

#: Seconds that Muri's simulator charges at every event, by model, for 1, 2, 4, 8, 16 and 32 GPUs; other models: 10.
#: Measured by its authors as the time that a start takes (simulator/run_sim.py of the published artifact).
OVERHEAD_S: dict[str, tuple[int, ...]] = {
    "vgg16": (7, 7, 8, 9, 9, 10),
    "vgg19": (7, 7, 8, 9, 10, 10),
    "resnet18": (4, 5, 5, 7, 7, 7),
    "shufflenet_v2_x1_0": (4, 4, 5, 5, 7, 8),
    "bert": (10, 10, 10, 10, 10, 10),
    "gpt2": (10, 10, 10, 10, 10, 10),
    "a2c": (38, 39, 39, 46, 46, 46),
    "dqn": (5, 5, 6, 6, 8, 8),
}
OTHER_OVERHEAD_S = 10

PER_MS = 1000  # Muri's times are read as microseconds: rounding to milliseconds would change the order of near ties
SECOND = 1_000 * PER_MS
LIMITS_GPU_S = (3_250, 7_200)
_BEGIN = 1_000 * SECOND  # time 0 means: not started


class Comparison(Struct, frozen=True):
    """One published figure, and the engine's on the same workload. Times in seconds."""

    what: str
    expected_s: float
    average_jct_s: float
    tolerance: float  # relative
    preemptions: int
    expected_preemptions: int | None = None
    worst_job_s: float | None = None  # largest difference of one job's JCT, if single jobs are published
    moments: int = 0

    @property
    def difference(self) -> float:
        return self.average_jct_s / self.expected_s - 1

    @property
    def agrees(self) -> bool:
        counts = self.expected_preemptions in (None, self.preemptions)
        return counts and abs(self.difference) <= self.tolerance


def comparisons(folder: Path) -> Iterator[tuple[str, Callable[[], Comparison]]]:
    """Every comparison by name, as a function that runs it. ``folder``: the public traces."""
    for name, (_, expected) in PHILLY.items():
        for rule in expected:
            yield f"philly:{name} {rule} by count", partial(philly_by_count, folder, name, rule)
    for table, is_taxed in ((UNTAXED, False), (PUBLISHED, True)):
        for trace in table:
            for rule in RULES:
                kind = "with overhead" if is_taxed else "without overhead"
                yield f"muri:{trace} {rule} {kind}", partial(muri, folder, trace, rule, is_taxed)
    for rule in RULES:
        yield f"muri:testbed {rule} against 64 real GPUs", partial(testbed, folder, rule)


def philly_by_count(folder: Path, name: str, rule: str) -> Comparison:
    """Counts GPUs only; jobs that do not fit are skipped; preemption is free."""
    nodes, table = PHILLY[name]
    trace = open_trace(f"philly:{name}", folder)
    cluster = _cluster(nodes)
    chosen = named_policy(rule)
    recorder = Recorder()
    assert not isinstance(chosen, Refusal)
    arrivals = arrivals_of(_later(trace), cluster, SubmissionTerms(estimate=exact))
    simulation = Simulation(cluster, arrivals, chosen, recorder, queues=queues_of(trace))
    simulation.run()
    expected, preemptions = table[rule]
    return Comparison(
        f"philly:{name} {rule} by count",
        expected,
        _average_jct(recorder.history) / 1000,
        0.005 / expected,  # the figures have two decimals
        _preemptions(recorder.history),
        preemptions,
        moments=simulation.steps,
    )


def muri(folder: Path, trace: str, rule: str, is_taxed: bool = True) -> Comparison:
    """One of Muri's traces, with the overhead that its simulator charges or without."""
    expected = (PUBLISHED if is_taxed else UNTAXED)[trace][RULES.index(rule)]
    simulation, history = run_muri(folder / "muri" / f"{trace}.csv.gz", rule, is_taxed)
    what = f"muri:{trace} {rule} {'with' if is_taxed else 'without'} overhead"
    known = folder / "muri" / "expected_per_job" / f"{trace}-{_RECORDED[rule]}.job.csv.gz"
    return Comparison(
        what,
        expected,
        _average_jct(history) / SECOND,
        1e-6,
        _preemptions(history),
        worst_job_s=_worst_job_s(history, known) if is_taxed else None,
        moments=simulation.steps,
    )


def testbed(folder: Path, rule: str) -> Comparison:
    """Jobs that were really run, simulated; the figure to compare with was measured."""
    simulation, history = run_muri(folder / "muri" / "testbed_400jobs.csv", rule, True)
    average = _average_jct(history) / SECOND
    what = f"muri:testbed {rule} against 64 real GPUs"
    expected = REAL[RULES.index(rule)]
    return Comparison(what, expected, average, REAL_TOLERANCE, _preemptions(history), moments=simulation.steps)


def run_muri(path: Path, rule: str, is_taxed: bool, jobs: int | None = None) -> tuple[Simulation, History]:
    """Run one of Muri's traces, or its first jobs. Times in the history are microseconds."""
    trace = _later(read_muri(path, path.name, PER_MS))
    trace = replace(trace, jobs=trace.jobs[:jobs])
    cluster = _cluster("count:64" if rule == "las" else "8x8")
    arrivals = arrivals_of(trace, cluster, SubmissionTerms(estimate=exact, whole_nodes=True))
    tax = {job.id: overhead_s(job.application, job.gpus) * SECOND if is_taxed else 0 for job in trace.jobs}
    recorder = Recorder()
    simulation = TaxedSimulation(
        cluster, arrivals, partial(policy_of, rule), recorder, queues=queues_of(trace), tax_ms=tax
    )
    simulation.run()
    return simulation, recorder.history


def overhead_s(model: str, gpus: int) -> int:
    by_count = OVERHEAD_S.get(model)
    return OTHER_OVERHEAD_S if by_count is None else by_count[gpus.bit_length() - 1]


_RECORDED: Mapping[str, str] = {"srtf": "shortest", "srsf": "shortest-gpu", "las": "dlas-gpu"}


def policy_of(
    rule: str, world: TaxedWorld, limits_gpu_s: tuple[int, ...] = LIMITS_GPU_S, second: int = SECOND
) -> Policy:
    """Under a tax, the remaining work does not follow from the clock; it is read from the simulation, as an oracle."""

    def by_remaining_time(_: Snapshot, gang: Gang) -> tuple[int, ...]:
        return (world.remaining_ms(gang.id),)

    def by_remaining_service(_: Snapshot, gang: Gang) -> tuple[int, ...]:
        return (world.remaining_ms(gang.id) * gpu_milli_of(gang),)

    parts = Parts(ByArrival(), GREEDY)
    if rule == "las":
        least = ByAttainedService(tuple(limit * second for limit in limits_gpu_s), tick_ms=second)
        return Repack(least, parts, change=least.change_ms)
    rank: Rank = by_remaining_time if rule == "srtf" else by_remaining_service
    return Repack(rank, parts, moves=True)


def _cluster(nodes: str) -> ClusterSpec:
    cluster = parse_cluster(nodes)
    assert not isinstance(cluster, Refusal)
    return cluster


def _later(trace: Trace) -> Trace:
    return replace(trace, jobs=tuple(replace(job, submit_ms=job.submit_ms + _BEGIN) for job in trace.jobs))


def _average_jct(history: History) -> float:
    times = [job.ended_ms - job.submitted_ms for job in history.jobs.values() if job.ended_ms is not None]
    assert len(times) == len(history.jobs), "all jobs end"
    return sum(times) / len(times)


def _preemptions(history: History) -> int:
    """Preemptions that sent a job back to its queue; a job that only moved does not count."""
    return sum(run.cause == Cause.PRIORITY for job in history.jobs.values() for run in job.runs)


def _worst_job_s(history: History, known: Path) -> float:
    expected = {row.text("job_id"): row.number("JCT") for row in read_rows(known, ("job_id", "JCT"))}
    assert expected.keys() == history.jobs.keys(), "the same jobs"
    return max(
        abs(((job.ended_ms or 0) - job.submitted_ms) / SECOND - expected[job.id]) for job in history.jobs.values()
    )
