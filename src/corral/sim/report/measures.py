"""The measures of a run: for each job, each team and the whole cluster.

``measure`` reads a history and the workload it came from and returns plain structs that can be written as JSON. The
definitions are in docs/measures.md. Jobs that have not ended are counted and left out of every distribution, with
a note; a number that cannot be computed is None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from corral.core.model import GangState
from corral.sim.history import History, JobHistory
from corral.sim.report.job_figures import LARGEST_CLASS, SIZE_CLASSES, JobFigures, figures, size_class
from corral.sim.report.packing import fragmentation
from corral.sim.report.series import Series, Steps, lesser, series, while_any
from corral.sim.report.team_shares import ShareReport, completion_alone, shares
from corral.sim.traces.trace import Trace, TraceJob

#: Shorter jobs count as this long in a ratio, so that a wait of a second does not dominate.
BOUND_MS = 10_000
GPU_MS_PER_HOUR = 3_600_000
SIZE_LABELS = (*(label for label, _ in SIZE_CLASSES), LARGEST_CLASS)


class Distribution(Struct, frozen=True, gc=False):
    """Percentiles by nearest rank: the smallest value that at least p percent do not exceed."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class Group(Struct):
    """A group of jobs: all, those of a team, or those of a size class."""

    jobs: int  # accepted
    succeeded: int
    failed: int
    cancelled: int
    unfinished: int
    never_started: int  # unfinished jobs that never had seats
    refused: int
    oldest_in_line_ms: int  # longest queue time of an unfinished job
    completion_ms: Distribution | None
    waiting_ms: Distribution | None
    in_line_ms: Distribution | None
    slowdown: Distribution | None
    finish_time_ratio: Distribution | None
    effective_time_ratio: float | None
    preemptions: int
    evictions: int
    failures: int
    held_gpu_hours: float
    starting_gpu_hours: float
    kept_gpu_hours: float
    lost_gpu_hours: float


class Cluster(Struct):
    """The GPUs. ``window`` is from the first to the last submission; ``span`` from the first to the end of the run."""

    gpus_max: float
    gpu_hours_in_span: float
    makespan_ms: int | None  # None: no job ended
    utilisation_in_window: float | None
    utilisation_in_span: float | None
    uptime_in_window: float | None
    uptime_in_span: float | None
    uptime_while_waiting: float | None  # over the time in which jobs were queued; None: none ever was
    fragmentation: float | None


class Power(Struct, frozen=True, gc=False):
    """Power of a GPU, and the price of a kilowatt-hour."""

    idle_watts: float
    busy_watts: float
    price_per_kwh: float = 0.0


class Energy(Struct):
    """Energy of the GPUs in service over the span."""

    kwh: float
    cost: float
    kwh_per_kept_gpu_hour: float | None


class Measures(Struct):
    """All measures of one run."""

    window_ms: tuple[int, int]
    span_ms: tuple[int, int]
    events: int
    total: Group
    cluster: Cluster
    shares: ShareReport
    energy: Energy | None
    teams: dict[str, Group]
    sizes: dict[str, Group]


def measure(
    history: History,
    trace: Trace | None = None,
    *,
    weights: Mapping[str, int] | None = None,
    power: Power | None = None,
    over_time: Series | None = None,
) -> Measures:
    """The measures of a run. ``weights``: entitlement of teams, 1 each unless stated; ``over_time``: its series, if
    already computed. Without a trace the length of a job is its run time, and refused jobs have no team.
    """
    over_time = over_time or series(history)
    submissions = [job.submitted_ms for job in history.jobs.values()]
    window = (min(submissions), max(submissions)) if submissions else (history.begin_ms, history.begin_ms)
    span = (window[0], max(window[1], history.end_ms))
    found = [(job, figures(job, history.end_ms)) for job in history.jobs.values()]
    work = {job.id: job.work_ms for job in trace.jobs} if trace is not None else {}
    _compare_with_undisturbed(found, work)
    _compare_with_own_share(found, work, max(over_time.capacity.values, default=0), weights or {})
    refused = _refused(history, trace)
    total = _group(found, history.refused if trace is None else len(refused))
    return Measures(
        window_ms=window,
        span_ms=span,
        events=history.events,
        total=total,
        cluster=_cluster(history, over_time, window, span),
        shares=shares(over_time, *window, weights or {}),
        energy=_energy(over_time.capacity.integral(*span), found, total.kept_gpu_hours, power),
        teams=_grouped(found, refused, by_size=False),
        sizes=_grouped(found, refused, by_size=True),
    )


def _refused(history: History, trace: Trace | None) -> list[TraceJob]:
    """Jobs of the workload that were to be submitted within the run and have no record."""
    if trace is None:
        return []
    known = [job for job in trace.jobs if job.id in history.jobs]
    shift = history.jobs[known[0].id].submitted_ms - known[0].submit_ms if known else 0
    return [job for job in trace.jobs if job.id not in history.jobs and job.submit_ms + shift <= history.end_ms]


# ---- jobs ----------------------------------------------------------------------------------------------------------

_Found = tuple[JobHistory, JobFigures]


def _grouped(found: Iterable[_Found], refused: Iterable[TraceJob], *, by_size: bool) -> dict[str, Group]:
    members: dict[str, list[_Found]] = {}
    turned_away: dict[str, int] = {}
    for one in found:
        members.setdefault(size_class(one[0].gpu_milli) if by_size else one[0].queue, []).append(one)
    for job in refused:
        name = size_class(job.gpus * job.gpu_milli) if by_size else job.team
        turned_away[name] = turned_away.get(name, 0) + 1
    names: list[str] = sorted({*members, *turned_away}, key=SIZE_LABELS.index if by_size else str)
    return {name: _group(members.get(name, []), turned_away.get(name, 0)) for name in names}


def _group(found: Sequence[_Found], refused: int) -> Group:
    ended = [one for one in found if is_measured(one[0])]
    open_ones = [one for one in found if one[0].ended_ms is None]
    effective = [f.kept_ms / (job.gangs * f.completion_ms) for job, f in ended if f.completion_ms]
    outcomes = [job.outcome for job, _ in found if job.ended_ms is not None]
    return Group(
        jobs=len(found),
        succeeded=outcomes.count(GangState.SUCCEEDED.value),
        failed=outcomes.count(GangState.FAILED.value),
        cancelled=outcomes.count(GangState.CANCELLED.value),
        unfinished=len(open_ones),
        never_started=sum([f.waited_ms is None for _, f in open_ones]),
        refused=refused,
        oldest_in_line_ms=max([f.in_line_ms for _, f in open_ones], default=0),
        completion_ms=distribution([f.completion_ms for _, f in ended if f.completion_ms is not None]),
        waiting_ms=distribution([f.waited_ms for _, f in ended if f.waited_ms is not None]),
        in_line_ms=distribution([f.in_line_ms for _, f in ended]),
        slowdown=distribution([f.slowdown for _, f in ended]),
        finish_time_ratio=distribution([f.finish_time_ratio for _, f in ended if f.finish_time_ratio is not None]),
        effective_time_ratio=sum(effective) / len(effective) if effective else None,
        preemptions=sum([f.preemptions for _, f in found]),
        evictions=sum([f.evictions for _, f in found]),
        failures=sum([f.failures for _, f in found]),
        held_gpu_hours=sum([f.held_gpu_ms for _, f in found]) / GPU_MS_PER_HOUR,
        starting_gpu_hours=sum([f.starting_gpu_ms for _, f in found]) / GPU_MS_PER_HOUR,
        kept_gpu_hours=sum([f.kept_gpu_ms for _, f in found]) / GPU_MS_PER_HOUR,
        lost_gpu_hours=sum([f.lost_gpu_ms for _, f in found]) / GPU_MS_PER_HOUR,
    )


def is_measured(job: JobHistory) -> bool:
    """Whether a job counts in distributions: it succeeded or failed. Cancelled jobs do not count."""
    return job.ended_ms is not None and job.outcome != GangState.CANCELLED and bool(job.runs)


def distribution(values: Sequence[float]) -> Distribution | None:
    if not values:
        return None
    ranked, count = sorted(values), len(values)
    p50, p95, p99 = (ranked[-(-percent * count // 100) - 1] for percent in (50, 95, 99))
    return Distribution(count, sum(ranked) / count, p50, p95, p99, ranked[-1])


def _compare_with_undisturbed(found: Iterable[_Found], work: Mapping[str, int]) -> None:
    """Bounded slowdown: completion time over the length of the job; 1: the job was not delayed."""
    for job, f in found:
        length = work.get(job.id, f.kept_ms)
        f.slowdown = max(1.0, (f.completion_ms or 0) / max(length, BOUND_MS))


def _compare_with_own_share(
    found: Iterable[_Found], work: Mapping[str, int], gpu_milli: int, weights: Mapping[str, int]
) -> None:
    """Finish-time ratio: completion time divided by that in a cluster of the size of the team's share."""
    teams: dict[str, list[_Found]] = {}
    for one in found:
        teams.setdefault(one[0].queue, []).append(one)
    whole = sum(weights.get(team, 1) for team in teams)
    for team, members in teams.items():
        members.sort(key=lambda one: one[0].submitted_ms)
        jobs = [(job.submitted_ms, work.get(job.id, f.kept_ms), job.gpu_milli) for job, f in members]
        own_share = gpu_milli * weights.get(team, 1) // whole
        for (_, f), alone_ms in zip(members, completion_alone(jobs, own_share), strict=True):
            if f.completion_ms is not None:
                f.finish_time_ratio = max(f.completion_ms, BOUND_MS) / max(alone_ms, BOUND_MS)


# ---- the cluster ---------------------------------------------------------------------------------------------------


def _cluster(history: History, run: Series, window: tuple[int, int], span: tuple[int, int]) -> Cluster:
    capacity = run.capacity
    held, useful = lesser(run.held, capacity), lesser(run.useful, capacity)
    last = max([job.ended_ms for job in history.jobs.values() if job.ended_ms is not None], default=None)
    return Cluster(
        gpus_max=max(capacity.values, default=0) / 1000,
        gpu_hours_in_span=capacity.integral(*span) / 1000 / GPU_MS_PER_HOUR,
        makespan_ms=None if last is None else last - window[0],
        utilisation_in_window=_share(held, capacity, window),
        utilisation_in_span=_share(held, capacity, span),
        uptime_in_window=_share(useful, capacity, window),
        uptime_in_span=_share(useful, capacity, span),
        uptime_while_waiting=_share(while_any(run.in_line, useful), while_any(run.in_line, capacity), span),
        fragmentation=fragmentation(history, run.in_line),
    )


def _share(part: Steps, whole: Steps, between: tuple[int, int]) -> float | None:
    area = whole.integral(*between)
    return part.integral(*between) / area if area else None


def _energy(
    capacity_milli_ms: int, found: Iterable[_Found], kept_gpu_hours: float, power: Power | None
) -> Energy | None:
    if power is None:
        return None
    busy = sum([f.busy_gpu_ms for _, f in found])
    idle = max(0, capacity_milli_ms // 1000 - busy)
    kwh = (busy * power.busy_watts + idle * power.idle_watts) / GPU_MS_PER_HOUR / 1000
    return Energy(kwh, kwh * power.price_per_kwh, kwh / kept_gpu_hours if kept_gpu_hours else None)
