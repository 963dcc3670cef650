"""Workers of batching queues as jobs: as many as the batch process wants, submitted as the owner of the queue.

A worker is an ordinary job: placed, charged, preempted, drained and repaired like any other. Workers that are no longer
wanted end by themselves; those that still wait for GPUs are cancelled here. Knows jobs, not items.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from corral.core import events as e
from corral.core.intake.commands import cancel
from corral.core.intake.refusal import Refusal
from corral.core.model import GangState, JobSpec
from corral.core.state import State
from corral.server.batches.child import BatchAway, BatchChild
from corral.server.batches.queue_settings import size_mib
from corral.server.loop import SYSTEM
from corral.server.service import ServerService
from corral.wire.api.batch import BatchQueueBody, BatchStats
from corral.wire.job import parse_job

log = structlog.get_logger(__name__)

LABEL = "corral-batch"
LOOK_S = 0.5
_AGAIN_S, _AGAIN_S_MAX = 0.5, 60.0
_PROGRAM = 'exec {python} "$CORRAL_PYTHONPATH/corral_batch.py"'


class BatchQueueStatus(Struct, frozen=True):
    """A batching queue as the batch process reports it."""

    owner: str
    body: BatchQueueBody
    is_draining: bool
    stats: BatchStats
    wanted: int
    port: int
    arrived: int  # workers that have ever connected


def secret_name(name: str) -> str:
    return f"batch-{name}"


def worker_document(name: str, body: BatchQueueBody, server: str, ca: str | None) -> dict[str, Any]:
    """The job document of a worker."""
    given = dict(body.job)
    env = {
        **given.pop("env", {}),
        "BATCH_SERVER": server,
        "BATCH_QUEUE": name,
        "BATCH_HANDLER": body.handler,
        "BATCH_VRAM_MIB": str(size_mib(body.worker_vram)),
        **({} if ca is None else {"BATCH_CA": ca}),
    }
    return {
        "name": f"batch-{name}",
        "retries": 0,
        **given,
        "queue": body.queue,
        "command": _PROGRAM.format(python=body.python),
        "env": env,
        "secrets": {**given.pop("secrets", {}), "BATCH_TOKEN": secret_name(name)},
        "labels": {**given.pop("labels", {}), LABEL: name},
    }


class WorkerScaler:
    """Keeps the number of worker jobs of each queue. ``host``: where workers find this server."""

    def __init__(self, service: ServerService, child: BatchChild, host: str, ca: str | None) -> None:
        self._service = service
        self._child = child
        self._host = host
        self._ca = ca
        self.jobs: dict[str, list[str]] = {}
        self.problems: dict[str, str] = {}
        self.statuses: dict[str, BatchQueueStatus] = {}  # as of the last look
        self._arrived: dict[str, int] = {}
        self._again: dict[str, tuple[float, float]] = {}  # queue -> when it may be tried again, and the pause
        for job in service.state.jobs.values():
            name = dict(job.spec.labels).get(LABEL)
            if name is not None and not job.is_over:
                self.jobs.setdefault(name, []).append(job.id)

    async def run(self) -> None:
        if self._child.is_needed:
            await self._child.start()
        while True:
            await asyncio.sleep(LOOK_S)
            if self._child.is_running or self._child.is_needed:
                try:
                    await self.look()
                except BatchAway as away:
                    log.warning("batch_process_away", error=str(away))

    def forget_status(self, name: str) -> None:
        """A queue was changed or deleted: rights are checked against what it is now, not against the last look."""
        self.statuses.pop(name, None)

    async def look(self) -> None:
        found = msgspec.convert(await self._child.ask("show"), dict[str, BatchQueueStatus])
        self.statuses = dict(found)  # a copy: what is forgotten from it meanwhile keeps its workers
        for name in {*found, *self.jobs}:
            await self._reconcile(name, found)

    async def _reconcile(self, name: str, found: Mapping[str, BatchQueueStatus]) -> None:
        status = found.get(name)
        wanted = 0 if status is None or status.body.workers_of else status.wanted
        jobs = self._live(name)
        if len(jobs) < wanted and status is not None and self._may_try(name):
            await self._submit(name, status, wanted - len(jobs))
        for job in reversed(jobs[wanted:] if status is not None else jobs):
            if status is None or self._waits(job):
                await self._service.change(SYSTEM, partial(_cancelled, job=job))

    def _live(self, name: str) -> list[str]:
        """The worker jobs of a queue that have not ended; one that failed delays the next."""
        state, left = self._service.state, []
        for number in self.jobs.get(name, []):
            job = state.jobs.get(number)
            if job is not None and not job.is_over:
                left.append(number)
            elif job is None or not job.succeeded:
                self._note_failure(name, f"worker job {number} failed: see corral logs {number}")
        self.jobs[name] = left
        if not left and name not in self.problems:
            self.jobs.pop(name)
        return left

    def _note_failure(self, name: str, why: str) -> None:
        """The pause doubles with each failure, unless a worker has connected since the last one."""
        arrived = 0 if (status := self.statuses.get(name)) is None else status.arrived
        pause_s = min(_AGAIN_S_MAX, 2 * self._again.get(name, (0.0, _AGAIN_S / 2))[1])
        if arrived != self._arrived.get(name, 0):
            pause_s = _AGAIN_S
        self._arrived[name] = arrived
        self._again[name] = (time.monotonic() + pause_s, pause_s)
        self.problems[name] = why

    def _may_try(self, name: str) -> bool:
        return time.monotonic() >= self._again.get(name, (0.0, 0.0))[0]

    async def _submit(self, name: str, status: BatchQueueStatus, count: int) -> None:
        document = worker_document(name, status.body, f"{self._host}:{status.port}", self._ca)
        spec = parse_job(document, now_ms=self._service.now_ms(), queue=status.body.queue)
        if not isinstance(spec, JobSpec):
            self._note_failure(name, f"{'.'.join(map(str, spec[0].path))}: {spec[0].why}")
            return
        done = await self._service.submit(status.owner, [spec] * count)
        if isinstance(done, Refusal):
            self._note_failure(name, str(done))
            return
        self.problems.pop(name, None)
        self.jobs.setdefault(name, []).extend(each.job for each in done.events if isinstance(each, e.JobSubmitted))

    def _waits(self, number: str) -> bool:
        job = self._service.state.jobs.get(number)
        gangs = () if job is None else (self._service.state.gangs.get(each) for each in job.gangs)
        return all(gang is None or gang.state is GangState.WAITING for gang in gangs)


def _cancelled(state: State, now_ms: int, *, job: str) -> list[e.Event] | Refusal:
    return cancel(state, job, now_ms)
