"""Figures over time: what the cluster, its queues, GPUs and jobs do, sampled every ten seconds.

What happens between two samples (starts, ends, lost work) is counted from the durable events. Reads the state; no
decision depends on it. Names of series: ``cluster/...``, ``queue/NAME/...``, ``node/NAME/...``, ``job/NUMBER/...``.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import structlog

from corral.core import events as e
from corral.core.cluster.resources import GPU_MILLI
from corral.core.gang_id import job_of
from corral.core.model import Gang
from corral.core.state import State
from corral.server.activity.gangs import task_views, totals
from corral.server.activity.store import Activities
from corral.store.rings import Rings
from corral.wire.codec import AnyEvent

log = structlog.get_logger(__name__)

SAMPLE_S = 10.0
STORE_S = 120.0
JOBS_MAX = 5_000  # jobs that are sampled
METRICS_MAX = 8  # of one job
_STEP_S = 0.002
_COUNTED = ("starts", "wait_ms", "succeeded", "failed", "lost_gpu_ms")

Sample = tuple[str, float]


class Sampler:
    """``take`` gets every durable event; ``run`` samples until it is cancelled."""

    def __init__(
        self, state: Callable[[], State], activities: Activities, rings: Rings, now_ms: Callable[[], int]
    ) -> None:
        self._state, self._now_ms = state, now_ms
        self._activities, self._rings = activities, rings
        self._counts: Counter[str] = Counter()

    def take(self, event: AnyEvent) -> None:
        match event:
            case e.GangStarted() if event.attempt == 1:
                job = self._state().jobs.get(job_of(event.gang))
                if job is not None:
                    self._counts["starts"] += 1
                    self._counts["wait_ms"] += max(0, event.at_ms - job.submitted_ms)
            case e.JobEnded():
                self._counts["succeeded" if event.succeeded else "failed"] += 1
            case e.GangStopped():
                self._counts["lost_gpu_ms"] += event.lost_gpu_ms
            case _:
                pass

    async def run(self) -> None:
        stored_s = time.monotonic()
        while True:
            await asyncio.sleep(SAMPLE_S)
            try:
                await self.sample()
                if time.monotonic() - stored_s > STORE_S:
                    await asyncio.to_thread(self._rings.store, self._now_ms())
                    stored_s = time.monotonic()
            except Exception as failed:  # figures are of no importance to anything else
                log.warning("figures_not_stored", error=str(failed))

    async def sample(self) -> None:
        """One sample of everything; between steps other tasks have a turn."""
        now_ms, began_s = self._now_ms(), time.perf_counter()
        counts, self._counts = self._counts, Counter()
        for name in _COUNTED:
            self._rings.add(f"cluster/{name}", now_ms, counts[name], is_count=True)
        for name, value in self._samples(now_ms):
            self._rings.add(name, now_ms, value)
            if time.perf_counter() - began_s > _STEP_S:
                await asyncio.sleep(0)
                began_s = time.perf_counter()

    def _samples(self, now_ms: int) -> Iterator[Sample]:
        state = self._state()
        yield from self._cluster(state, now_ms)
        yield from _queues(state)
        for name in list(state.nodes):
            yield from self._node(name, now_ms)
        by_job: dict[str, list[Gang]] = {}
        for gang in list(state.holders.values()):
            by_job.setdefault(gang.job, []).append(gang)
        for job, gangs in islice(by_job.items(), JOBS_MAX):
            yield from self._job(job, gangs, now_ms)

    def _cluster(self, state: State, now_ms: int) -> Iterator[Sample]:
        state.refresh()
        capacity = state.capacity
        yield "cluster/gpus", sum(len(node.spec.gpus) for node in state.nodes.values())
        yield "cluster/gpus_used", sum(mask.bit_count() for mask in capacity.used)
        yield "cluster/gangs_waiting", state.backlog.count
        yield "cluster/gpus_waiting", sum(queue.gpu_milli for queue in state.backlog.queues.values()) / 1000
        busy: list[int] = []
        for name, number in state.topology.number.items():
            reading = self._activities.of(name, now_ms)
            used = capacity.used[number]
            for slot, gpu in {} if reading is None else reading.gpus.items():
                if used >> slot & 1 and gpu.utilisation_percent is not None:
                    busy.append(gpu.utilisation_percent)
        if busy:
            yield "cluster/utilisation", sum(busy) / len(busy)

    def _node(self, name: str, now_ms: int) -> Iterator[Sample]:
        reading = self._activities.of(name, now_ms)
        if reading is None:
            return
        if reading.cpu_milli is not None:
            yield f"node/{name}/cpu", reading.cpu_milli / 1000
        if reading.memory_mib is not None:
            yield f"node/{name}/memory_mib", reading.memory_mib
        for slot, gpu in reading.gpus.items():
            if gpu.utilisation_percent is not None:
                yield f"node/{name}/gpu{slot}/utilisation", gpu.utilisation_percent
            if gpu.temperature_c is not None:
                yield f"node/{name}/gpu{slot}/temperature", gpu.temperature_c

    def _job(self, job: str, gangs: Iterable[Gang], now_ms: int) -> Iterator[Sample]:
        tasks = [view for gang in gangs if gang.holds_seats for view in task_views(gang, self._activities, now_ms)]
        total = totals(tasks)
        for name, value in (
            ("utilisation", total.utilisation_percent),
            ("gpu_memory_mib", total.gpu_memory_used_mib),
            ("power_w", None if total.power_mw is None else total.power_mw / 1000),
            ("cpu", None if total.cpu_milli is None else total.cpu_milli / 1000),
            ("memory_mib", total.memory_mib),
        ):
            if value is not None:
                yield f"job/{job}/{name}", value
        ranks = [rank for task in tasks for rank in task.ranks if rank.step is not None]
        if ranks:
            first = min(ranks, key=lambda rank: rank.rank)
            yield f"job/{job}/step", first.step or 0
            if first.step_ms is not None:
                yield f"job/{job}/step_ms", first.step_ms
            for name, value in islice(first.metrics.items(), METRICS_MAX):
                if value is not None:
                    yield f"job/{job}/metric/{name}", value


def _queues(state: State) -> Iterator[Sample]:
    waiting = {name: queue.gpu_milli for name, queue in state.backlog.queues.items()}
    for name, queue in list(state.queues.queues.items()):
        if name:
            yield f"queue/{name}/gpus_used", queue.used.get(GPU_MILLI, 0) / 1000
            yield f"queue/{name}/gpus_waiting", waiting.get(name, 0) / 1000
