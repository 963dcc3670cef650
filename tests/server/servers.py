"""A server without its interface, on a journal in memory and a backend that only pretends: for tests of the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from corral.core import events as e
from corral.core.accounts.accounts import TokenIssued
from corral.core.cluster.resources import Demand, Gpu, TaskDemand, amounts
from corral.core.cluster.topology import NodeSpec
from corral.core.model import GangSpec, JobSpec, QueueSpec, Settings
from corral.core.work import Work
from corral.runtime.fake import FakeBackend, FakeScript
from corral.server.recovery import founding, load
from corral.server.server import Server
from corral.server.vault import secrets_of
from corral.store.journal import Entry, Journal
from corral.store.lookup import JobRow
from corral.store.memory import MemoryJournal
from corral.store.memory_lookup import MemoryLookup
from corral.wire.codec import decode, encode

NODE = NodeSpec(
    "here",
    tuple(Gpu(f"SIM-{n}", "H100", 81_559) for n in range(8)),
    amounts({"cpu_milli": 64_000, "memory_mib": 512_000}),
)


def found(journal: Journal, queues: tuple[QueueSpec, ...] = (QueueSpec(name="default"),)) -> None:
    """What a new journal begins with."""
    now_ms = int(time.time() * 1000)
    token = TokenIssued(now_ms, "t1", "root", "0" * 64)
    events = founding(Settings(), queues, "root", token, now_ms)
    journal.append([Entry(event.at_ms, "founder", encode(event)) for event in events]).result(10)


@asynccontextmanager
async def running(
    folder: Path, journal: Journal | None = None, backend: FakeBackend | None = None, keep_ended: int = 1_000
) -> AsyncIterator[Server]:
    journal = journal if journal is not None else MemoryJournal()
    if journal.head.seq == 0:
        found(journal)
    backend = backend if backend is not None else FakeBackend([NODE], lambda _: FakeScript(runs_ms=20))
    lookup = _FedLookup(journal)
    server = Server(load(journal), journal, lookup, backend, secrets_of(folder))
    server.timers.keep_ended = keep_ended
    await server.begin()
    try:
        yield server
    finally:
        await server.close()


class _FedLookup(MemoryLookup):
    """Knows what the journal says at the time of a request."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal, self._seen = journal, 0

    def job(self, id: str) -> JobRow | None:
        records = self._journal.read(self._seen, 1_000_000)
        self.feed(records)
        self._seen += len(records)
        return super().job(id)


def reopened(journal: MemoryJournal) -> MemoryJournal:
    """What the next server finds."""
    again = MemoryJournal(journal.read(0, 1_000_000))
    image = journal.newest_image()
    if image is not None:
        again.save_image(image)
    return again


def job(gpus: int = 1, tasks: int = 1, **terms: object) -> JobSpec:
    demand = Demand(task=TaskDemand(gpus=gpus), tasks=tasks)
    work = Work(command=("true",))
    return JobSpec(**{"queue": "default", "gangs": (GangSpec(demand, "main", work),)} | terms)  # type: ignore[arg-type]


async def until(happened: Callable[[], bool], within_s: float = 30.0) -> None:
    """Wait for it, and say so if it does not come."""
    end = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.005)


def written(journal: Journal) -> list[object]:
    return [decode(record.format, record.body) for record in journal.read(0, 1_000_000)]


def ended(journal: Journal) -> dict[str, bool]:
    return {event.job: event.succeeded for event in written(journal) if isinstance(event, e.JobEnded)}
