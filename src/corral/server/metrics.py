"""Metrics for Prometheus: counters folded from events, gauges read from the state on request, and a few timings.

A registry of its own. Labels are queues, models, causes, routes and statuses: never jobs, users or nodes. Counters
start at zero with the process, as Prometheus expects; ``totals.fold`` over the same records gives the same numbers.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

import corral
from corral.core.cluster.resources import GPU_MILLI
from corral.core.goodput import CAUSES, Goodput
from corral.core.model import GangState, Health, Node
from corral.core.state import State, is_open
from corral.remote.counters import RemoteCounters
from corral.server.activity.gangs import task_views
from corral.server.activity.notes import hangs, is_idle
from corral.server.activity.store import Activities
from corral.server.batches.batch_metrics import batch_metrics
from corral.server.batches.scaler import BatchQueueStatus
from corral.server.loop import Meter
from corral.server.node_health.disk import DiskWatch
from corral.server.totals import Fold, cumulative
from corral.wire.api.broker_intake import IntakeView
from corral.wire.codec import AnyEvent

KIND = "text/plain; version=0.0.4; charset=utf-8"
_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics(Meter):
    """All metrics of a server. ``take`` gets every durable event once; the other methods count as things happen."""

    def __init__(self, state: State, now_ms: int = 0) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self.fold = Fold(state)
        self.goodput = Goodput(keeps=False)
        self.goodput.adopt(state, now_ms)
        self.state = state
        self.now_ms = now_ms
        self.fleet: RemoteCounters | None = None  # if tasks run on several nodes
        self.disk: DiskWatch | None = None
        self.activities: Activities | None = None
        self.batches: Callable[[], Mapping[str, BatchQueueStatus]] | None = None
        self.intakes: Callable[[], Sequence[IntakeView]] | None = None
        self._refused = self._counter("corral_jobs_refused", "Jobs refused at submission, by code", "code")
        self._requests = self._counter(
            "corral_http_requests", "Requests answered, by route and status", "route", "status"
        )
        self._request_seconds = self._timer("corral_http_request_duration_seconds", "Time to answer a request", "route")
        self._plan_seconds = self._timer("corral_plan_duration_seconds", "Time to make a plan")
        self._plan_failures = self._counter(
            "corral_plan_failures", "Plans that failed: the policy raised an error or took too long"
        )
        self._quarantined = self._counter("corral_jobs_quarantined", "Jobs held because planning failed with them")
        self._restored = self._counter(
            "corral_state_restored", "Times the state was read back because an event could not be applied"
        )
        self._decisions = self._counter("corral_plan_decisions", "Decisions of plans, by outcome", "outcome")
        self._append_seconds = self._timer(
            "corral_journal_append_duration_seconds", "Time until a batch of records is durable"
        )
        self._intake = self._counter(
            "corral_intake_messages", "Messages of brokers, by what they hold and by outcome", "kind", "outcome"
        )
        self._known: dict[tuple[str, int], tuple[object, object]] = {}
        self._computed = _Computed()
        self.registry.register(self._computed)

    def _counter(self, name: str, about: str, *labels: str) -> Counter:
        return Counter(name, about, labels, registry=self.registry)

    def _timer(self, name: str, about: str, *labels: str) -> Histogram:
        return Histogram(name, about, labels, buckets=_FAST, registry=self.registry)

    # ---- counted as it happens ---------------------------------------------------------------------------------

    def take(self, event: AnyEvent) -> None:
        self.fold.take(event)
        self.goodput.take(event)

    def refused(self, code: str, jobs: int = 1) -> None:
        self._refused.labels(code).inc(jobs)

    def requested(self, route: str, status: int, seconds: float) -> None:
        known = self._known.get((route, status))
        if known is None:
            known = (self._requests.labels(route, str(status)), self._request_seconds.labels(route))
            self._known[route, status] = known
        known[0].inc()  # type: ignore[attr-defined]
        known[1].observe(seconds)  # type: ignore[attr-defined]

    def planned(self, seconds: float, kept: int, dropped: int) -> None:
        """Count a plan: its duration, and how many of its decisions were kept and dropped at commit."""
        self._plan_seconds.observe(seconds)
        self._decisions.labels("kept").inc(kept)
        self._decisions.labels("dropped").inc(dropped)

    def intake_took(self, kind: str, outcome: str) -> None:
        self._intake.labels(kind, outcome).inc()

    def plan_failed(self) -> None:
        self._plan_failures.inc()

    def quarantined(self) -> None:
        self._quarantined.inc()

    def restored(self) -> None:
        self._restored.inc()

    def appended(self, seconds: float) -> None:
        self._append_seconds.observe(seconds)

    # ---- computed on request -----------------------------------------------------------------------------------

    def text(self, now_ms: int) -> bytes:
        """All metrics in the text format of Prometheus."""
        self.now_ms = now_ms
        return self.written(list(self.families()))

    def families(self) -> Iterator[Metric]:
        """The metrics that are computed on request, one after the other; the caller may pause in between."""
        yield from _counters(self.fold)
        spent = self.goodput.gpu_ms(self.now_ms)
        yield _gauge(
            "corral_goodput_gpu_seconds",
            "GPU time of jobs since the server started, by what it was used for or lost to",
            ["cause"],
            {(cause,): spent.get(cause, 0) / 1000 for cause in CAUSES},
        )
        yield from _work(self.state)
        yield from _machines(self.state)
        if self.fleet is not None:
            yield from _agents(self.fleet)
        if self.disk is not None:
            about = "Free space on the disk of the data folder"
            yield _gauge("corral_disk_free_bytes", about, [], {(): self.disk.free})
        if self.batches is not None:
            yield from batch_metrics(self.batches())
        if self.intakes is not None:
            yield from _intakes(self.intakes())
        if self.activities is not None:
            yield from _activity(self.state, self.activities, self.now_ms)
        yield from _queues(self.state, self.now_ms)
        yield _gauge("corral_build_info", "Running version", ["version"], {(corral.__version__,): 1})

    def written(self, families: Sequence[Metric]) -> bytes:
        """These and the counted metrics as text. Reads nothing else, so it can run in a thread; one call at a time."""
        self._computed.families = families
        return generate_latest(self.registry)


class _Computed:
    """A collector of metrics that were computed on request."""

    def __init__(self) -> None:
        self.families: Sequence[Metric] = ()

    def collect(self) -> Iterator[Metric]:
        yield from self.families


def _counters(fold: Fold) -> Iterator[Metric]:
    totals = fold.totals
    yield _counter("corral_jobs_submitted", "Jobs accepted", ["queue"], _single(totals.submitted))
    yield _counter("corral_jobs_ended", "Jobs ended, by outcome", ["queue", "outcome"], totals.ended)
    yield _counter("corral_attempts_started", "Attempts of gangs started", ["queue"], _single(totals.started))
    yield _counter("corral_attempts_ended", "Attempts of gangs ended", ["queue", "failure"], totals.stopped)
    yield _counter("corral_evictions", "Gangs stopped by the server, by cause", ["queue", "cause"], totals.evicted)
    yield _counter("corral_requeues", "Gangs requeued", ["queue"], _single(totals.requeued))
    lost = {(queue,): ms / 1000 for queue, ms in totals.lost_gpu_ms.items()}
    yield _counter("corral_lost_gpu_seconds", "GPU time whose work was lost", ["queue"], lost)
    yield _counter("corral_nodes_lost", "Nodes declared lost", [], {(): totals.nodes_lost})
    refused = {(): totals.access_refused}
    yield _counter("corral_access_refused", "Entries of the audit log about refused access", [], refused)
    yield _counter("corral_journal_records", "Records written to the journal", [], {(): totals.records})
    latency = HistogramMetricFamily("corral_start_latency_seconds", "From submission to the first start of a gang")
    latency.add_metric([], buckets=list(cumulative(totals.latency)), sum_value=totals.latency_sum_ms / 1000)
    yield latency


def _work(state: State) -> Iterator[Metric]:
    yield _gauge(
        "corral_jobs_unfinished",
        "Jobs that have not ended",
        ["queue"],
        {(name,): queue.jobs for name, queue in state.queues.queues.items() if name},
    )
    holding: Counts[tuple[str, ...]] = Counts((gang.queue, str(gang.state)) for gang in state.holders.values())
    for (_, queue), bucket in state.backlog.buckets.items():
        holding[queue, str(GangState.WAITING)] += bucket.count
    yield _gauge("corral_gangs", "Gangs queued or holding seats", ["queue", "state"], holding)


def _machines(state: State) -> Iterator[Metric]:
    state.refresh()
    gpus: Counts[tuple[str, ...]] = Counts()
    nodes: Counts[tuple[str, ...]] = Counts()
    for n, spec in enumerate(state.topology.nodes):
        node = state.nodes[spec.name]
        nodes[(_node_state(node),)] += 1
        used, free = state.capacity.used[n], state.capacity.free[n]
        for slot, gpu in enumerate(spec.gpus):
            is_well = not node.lost and node.gpu_health.get(slot, Health.HEALTHY) is Health.HEALTHY
            if used >> slot & 1:
                where = "used"
            elif not is_well:
                where = "unhealthy"
            elif not is_open(node):
                where = "closed"
            else:
                where = "free" if free >> slot & 1 else "claimed"
            gpus[gpu.model, where] += 1
    yield _gauge("corral_gpus", "GPUs by state", ["model", "state"], gpus)
    yield _gauge("corral_nodes", "Nodes by state", ["state"], nodes)


def _activity(state: State, activities: Activities, now_ms: int) -> Iterator[Metric]:
    """What running jobs do, summed over the jobs of each queue."""
    sums: dict[str, Counts[tuple[str, ...]]] = {name: Counts() for name in _ACTIVITY}
    for gang in state.holders.values():
        queue = (gang.queue,)
        for task in task_views(gang, activities, now_ms):
            sums["corral_job_cpus_used"][queue] += (task.cpu_milli or 0) / 1000  # type: ignore[assignment]
            sums["corral_job_memory_used_bytes"][queue] += (task.memory_mib or 0) << 20
            sums["corral_job_ranks_hung"][queue] += sum(hangs(rank, task) for rank in task.ranks)
            for gpu in task.gpus:
                sums["corral_job_gpus_measured"][queue] += gpu.utilisation_percent is not None
                sums["corral_job_gpus_busy"][queue] += (gpu.utilisation_percent or 0) / 100  # type: ignore[assignment]
                sums["corral_job_gpus_idle"][queue] += is_idle(gpu)
                sums["corral_job_gpu_memory_used_bytes"][queue] += (gpu.memory_used_mib or 0) << 20
                sums["corral_job_gpu_power_watts"][queue] += (gpu.power_mw or 0) / 1000  # type: ignore[assignment]
    for name, about in _ACTIVITY.items():
        yield _gauge(name, about, ["queue"], sums[name])


_ACTIVITY = {
    "corral_job_gpus_measured": "GPUs of running jobs whose utilisation is known",
    "corral_job_gpus_busy": "GPUs of running jobs, each counted by its utilisation",
    "corral_job_gpus_idle": "GPUs of running jobs that have done no work for 5 minutes",
    "corral_job_gpu_memory_used_bytes": "GPU memory in use on GPUs of running jobs",
    "corral_job_gpu_power_watts": "Power of GPUs of running jobs",
    "corral_job_cpus_used": "CPUs in use by running jobs",
    "corral_job_memory_used_bytes": "Memory in use by running jobs",
    "corral_job_ranks_hung": "Ranks of running jobs that make no steps and use no CPU",
}


def _intakes(views: Sequence[IntakeView]) -> Iterator[Metric]:
    counts: dict[str, Counts[tuple[str, ...]]] = {"waiting": Counts(), "dead": Counts(), "paused": Counts()}
    for view in views:
        counts["waiting"][(view.broker,)] = max(counts["waiting"][(view.broker,)], view.waiting)
        counts["dead"][(view.broker,)] = max(counts["dead"][(view.broker,)], view.dead)
        counts["paused"][(view.broker,)] += bool(view.paused)
    yield _gauge("corral_intake_waiting", "Messages that wait in the broker", ["broker"], counts["waiting"])
    yield _gauge("corral_intake_dead_letters", "Refused messages in the broker", ["broker"], counts["dead"])
    yield _gauge("corral_intake_paused", "Intakes that take no messages now", ["broker"], counts["paused"])


def _agents(counts: RemoteCounters) -> Iterator[Metric]:
    yield _counter("corral_agent_reports", "Reports of agents", [], {(): counts.reports})
    yield from _gateway(counts)
    late = "Reports that were repeated, out of date, or of a lost node"
    yield _counter("corral_agent_reports_late", late, [], {(): counts.late_reports})
    old = "Reports of an old epoch from agents that knew the current one"
    yield _counter("corral_agent_reports_refused", old, [], {(): counts.old_reports})
    refused = "Orders that agents refused because they arrived too late"
    yield _counter("corral_agent_orders_refused", refused, [], {(): counts.refused_orders})
    bad = "Messages of agents refused as a whole because they are invalid"
    yield _counter("corral_agent_reports_bad", bad, [], {(): counts.bad_reports})
    items = "Items in reports of agents that were cut, corrected or left out"
    yield _counter("corral_agent_items_bad", items, [], {(): counts.bad_items})
    strays = "Tasks that agents reported but were never given"
    yield _counter("corral_agent_tasks_stray", strays, [], {(): counts.stray_tasks})


def _gateway(counts: RemoteCounters) -> Iterator[Metric]:
    yield _gauge("corral_agent_connections", "Agents connected", [], {(): counts.connections})
    yield _counter("corral_agent_renewals", "Lease renewals of agents", [], {(): counts.renewals})
    refused = "Connections of agents that were refused or closed"
    yield _counter("corral_agent_connections_refused", refused, [], {(): counts.connections_refused})
    busy = "Messages of agents that found the queue full and are sent again"
    yield _counter("corral_agent_messages_busy", busy, [], {(): counts.messages_busy})


def _node_state(node: Node) -> str:
    if node.lost:
        return "lost"
    return "drained" if node.drained else str(node.health)


def _queues(state: State, now_ms: int) -> Iterator[Metric]:
    names = [name for name in state.queues.queues if name]
    tree = state.queues
    stated: dict[str, dict[tuple[str, ...], int | None]] = {
        "guarantee": {(name,): tree.guarantee(name, GPU_MILLI, now_ms) for name in names},
        "limit": {(name,): tree.limit(name, GPU_MILLI, now_ms) for name in names},
        "used": {(name,): tree.queues[name].used.get(GPU_MILLI, 0) for name in names},
    }
    for what, values in stated.items():
        known = {key: value / 1000 for key, value in values.items() if value is not None}
        yield _gauge(f"corral_queue_{what}_gpus", f"GPUs of a queue: {what}", ["queue"], known)


def _single(counts: Counts[str]) -> dict[tuple[str, ...], float]:
    return {(key,): value for key, value in counts.items()}


def _counter(name: str, about: str, labels: list[str], values: object) -> CounterMetricFamily:
    family = CounterMetricFamily(name, about, labels=labels)
    for key, value in sorted(dict(values).items()):  # type: ignore[call-overload]
        family.add_metric(list(key), value)
    return family


def _gauge(name: str, about: str, labels: list[str], values: object) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, about, labels=labels)
    for key, value in sorted(dict(values).items()):  # type: ignore[call-overload]
        family.add_metric(list(key), value)
    return family
