"""The counters of the metrics, as a fold of events.

Pure. The same fold over the journal gives the same numbers, so they can be reconciled. Knows nothing about Prometheus
or how events arrive.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from corral.core import events as e
from corral.core.accounts.accounts import AccessRefused
from corral.core.gang_id import job_of
from corral.core.state import State
from corral.wire.codec import AnyEvent

#: Upper bounds of the classes of start latency, in milliseconds; the last class has none.
LATENCY_MS = (10, 25, 50, 100, 200, 500, 1_000, 5_000, 30_000, 120_000, 600_000, 3_600_000, 14_400_000, 86_400_000)


class Totals(Struct):
    """Counts since the fold started. Keys are the labels of the metric, in order."""

    submitted: Counter[str] = field(default_factory=Counter)  # queue
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)  # queue, outcome
    started: Counter[str] = field(default_factory=Counter)  # queue; attempts of gangs whose tasks all ran
    stopped: Counter[tuple[str, str]] = field(default_factory=Counter)  # queue, failure class or "none"
    evicted: Counter[tuple[str, str]] = field(default_factory=Counter)  # queue, cause
    requeued: Counter[str] = field(default_factory=Counter)  # queue
    lost_gpu_ms: Counter[str] = field(default_factory=Counter)  # queue
    latency: Counter[int] = field(default_factory=Counter)  # class of start latency -> first starts
    latency_sum_ms: int = 0
    nodes_lost: int = 0
    access_refused: int = 0
    records: int = 0


class Fold:
    """Takes events one by one. Forgets a job when the engine does."""

    def __init__(self, state: State | None = None) -> None:
        self.totals = Totals()
        self._jobs: dict[str, tuple[str, int]] = {}  # job -> queue, when it was submitted
        self._cancelled: set[str] = set()
        if state is not None:
            for job in state.jobs.values():
                self._jobs[job.id] = (job.spec.queue, job.submitted_ms)
                if job.cancelled:
                    self._cancelled.add(job.id)

    def take(self, event: AnyEvent) -> None:
        totals = self.totals
        totals.records += 1
        match event:
            case e.JobSubmitted():
                self._jobs[event.job] = (event.spec.queue, event.at_ms)
                totals.submitted[event.spec.queue] += 1
            case e.JobCancelled():
                self._cancelled.add(event.job)
            case e.JobEnded():
                outcome = "cancelled" if event.job in self._cancelled else "failed"
                totals.ended[self._queue(event.job), "succeeded" if event.succeeded else outcome] += 1
            case e.JobForgotten():
                self._jobs.pop(event.job, None)
                self._cancelled.discard(event.job)
            case e.NodeLost():
                totals.nodes_lost += 1
            case AccessRefused():
                totals.access_refused += 1
            case e.GangStarted() | e.GangStopped() | e.GangEvicted() | e.GangRequeued():
                self._take_gang(event)
            case _:
                pass

    def _take_gang(self, event: e.GangStarted | e.GangStopped | e.GangEvicted | e.GangRequeued) -> None:
        totals, job = self.totals, job_of(event.gang)
        queue = self._queue(job)
        match event:
            case e.GangStarted():
                totals.started[queue] += 1
                if event.attempt == 1 and job in self._jobs:
                    waited_ms = max(0, event.at_ms - self._jobs[job][1])
                    totals.latency[latency_class(waited_ms)] += 1
                    totals.latency_sum_ms += waited_ms
            case e.GangStopped():
                totals.stopped[queue, "none" if event.failure is None else str(event.failure)] += 1
                totals.lost_gpu_ms[queue] += event.lost_gpu_ms
            case e.GangEvicted():
                totals.evicted[queue, str(event.cause)] += 1
            case e.GangRequeued():
                totals.requeued[queue] += 1

    def _queue(self, job: str) -> str:
        return self._jobs.get(job, ("unknown", 0))[0]


def fold(events: Iterable[AnyEvent]) -> Totals:
    """The totals of all these events."""
    folding = Fold()
    for event in events:
        folding.take(event)
    return folding.totals


def latency_class(waited_ms: int) -> int:
    return next((n for n, bound in enumerate(LATENCY_MS) if waited_ms <= bound), len(LATENCY_MS))


def cumulative(classes: Counter[int]) -> Iterator[tuple[str, int]]:
    """A histogram in the form of Prometheus: upper bounds in seconds, and cumulative counts."""
    so_far = 0
    for n, bound in enumerate((*LATENCY_MS, None)):
        so_far += classes[n]
        yield ("+Inf" if bound is None else str(bound / 1000)), so_far
