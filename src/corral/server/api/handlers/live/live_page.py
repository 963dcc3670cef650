"""One request for a whole page: the cluster at one time, then its changes as server-sent events.

A reader who reconnects gets everything again, so a page is never wrong after a broken connection. Readers with the same
rights share a channel: each change is computed and encoded once, a few times a second at most, and sent to all of them.
Many channels together take a bounded part of the server's time, so that with many different rights changes come later,
and submissions do not.
Every part of a change is an absolute value, never a difference, so that it does no harm to receive one twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Hashable
from contextlib import suppress
from functools import partial

import msgspec
from msgspec import structs

import corral
from corral.core.gang_id import job_of
from corral.server.api.handlers.accounts import who
from corral.server.api.handlers.cluster import check_sees_nodes, queue_views
from corral.server.api.handlers.events import event_views, has_all_roles
from corral.server.api.handlers.jobs import holdings
from corral.server.api.handlers.live.cells import Sights, changed, ground_plan, jobs_on, topology_view
from corral.server.api.handlers.live.overview import overview
from corral.server.api.handlers.views import summary
from corral.server.api.http.request import ApiRequest, Content, Reply, StreamAnswer
from corral.server.api.http.shared_views import JSON, encode_json, in_steps
from corral.server.auth import Verb, seen_queues
from corral.store.journal import Record
from corral.store.lookup import JobQuery
from corral.wire.api import (
    ClusterOverview,
    EventView,
    JobOnMap,
    JobSummary,
    LiveChange,
    LiveView,
    NodeCell,
    PricesView,
    QueueView,
    TopologyView,
)

KIND = "text/event-stream"
TICK_S = 0.5  # between two changes that are sent
REFRESH_S = 5.0  # figures that are in no record, such as utilisation, are looked at again after this time
_EVENTS_SHOWN = 50
_RECORDS_AT_ONCE = 1_000  # whose jobs are sent; with more the reader asks for its jobs again
_JOBS_SHOWN = 200
_UNREAD_MAX = 64  # a reader that is this many changes behind is disconnected, and starts again


async def live(request: ApiRequest) -> Reply:
    check_sees_nodes(request)
    if request.query.follow or KIND in request.header(b"accept"):
        return StreamAnswer(_stream(request), KIND, has_all_roles(request))
    key = ("live", *_audience(request))
    return Content(await request.shared.views.of(key, partial(_encoded_view, request)), JSON)


async def _encoded_view(request: ApiRequest) -> bytes:
    return encode_json(await _view(request, await _moment(request)))


async def topology(request: ApiRequest) -> Reply:
    check_sees_nodes(request)
    key = ("topology", *_audience(request))
    return Content(await request.shared.views.of(key, partial(_encoded_topology, request)), JSON)


async def _encoded_topology(request: ApiRequest) -> bytes:
    return encode_json(await topology_view(request))


def _audience(request: ApiRequest) -> tuple[Hashable, ...]:
    """What decides what a reader sees."""
    is_partial = seen_queues(request.service.accounts, request.principal, Verb.JOBS_READ) is not None
    return request.user if is_partial else "", request.rights, getattr(request.query, "parts", ())


# ---- everything at one time ----------------------------------------------------------------------------------


class Moment(msgspec.Struct, frozen=True):
    """What one audience sees at one time, apart from events. ``cells``, ``jobs``: only if nodes were asked for."""

    seq: int
    at_ms: int
    cells: dict[str, NodeCell]
    jobs: dict[str, JobOnMap]
    overview: ClusterOverview
    queues: tuple[QueueView, ...] | None


async def _moment(request: ApiRequest) -> Moment:
    service, parts = request.service, request.query.parts
    seq = service.durable_seq
    plan = await ground_plan(request)
    cells, sights = dict[str, NodeCell](), Sights(request)
    async for name in in_steps(plan.cells if "nodes" in parts else ()):
        cells[name] = sights.shown(plan.cells[name])
    return Moment(
        seq=seq,
        at_ms=service.now_ms(),
        cells=cells,
        jobs=await jobs_on(request, cells.values()),
        overview=overview(request, plan),
        queues=await queue_views(request) if "queues" in parts else None,
    )


async def _view(request: ApiRequest, moment: Moment) -> LiveView:
    levels = tuple(request.service.state.settings.levels)
    nodes = tuple(moment.cells.values())
    return LiveView(
        seq=moment.seq,
        at_ms=moment.at_ms,
        version=corral.__version__,
        leads=request.service.leads,
        leader="" if request.service.leads else request.service.leader,
        overview=moment.overview,
        prices=_prices(request),
        events=await _newest(request, max(0, moment.seq - _RECORDS_AT_ONCE), moment.seq),
        topology=TopologyView(at_ms=moment.at_ms, levels=levels, nodes=nodes, jobs=moment.jobs)
        if "nodes" in request.query.parts
        else None,
        queues=moment.queues,
    )


def _prices(request: ApiRequest) -> PricesView | None:
    stated = request.shared.settings.prices
    if not stated.is_stated:
        return None
    return PricesView(
        currency=stated.currency, gpu_hour_milli=dict(stated.gpu_hour_milli), other_milli=stated.other_milli
    )


async def _newest(request: ApiRequest, after: int, upto: int) -> tuple[EventView, ...]:
    """The newest events among these records, newest first; the data of events is left out."""
    found: list[EventView] = []
    size = 4 * _EVENTS_SHOWN
    while upto > after and len(found) < _EVENTS_SHOWN:
        first = max(after, upto - size)
        records = await request.shared.look(request.service.journal.read, first, upto - first)
        found += reversed(await event_views(request, records))
        upto = first
    return tuple(structs.replace(view, data={}) for view in found[:_EVENTS_SHOWN])


# ---- changes -------------------------------------------------------------------------------------------------


async def _stream(request: ApiRequest) -> AsyncGenerator[bytes]:
    channels, key = request.shared.channels, _audience(request)
    channel = channels.get(key)
    if channel is None or channel.is_over:
        channel = channels[key] = Channel(request)
    unread: asyncio.Queue[bytes | None] = asyncio.Queue(_UNREAD_MAX)
    try:
        yield b"retry: 1000\n\n" + _message("me", 0, encode_json(who(request)))
        yield await channel.join(unread)
        while request.is_alive:
            try:
                async with asyncio.timeout(request.shared.settings.heartbeat_s):
                    message = await unread.get()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            if message is None:
                return
            yield message
    finally:
        channel.leave(unread)
        if channel.is_over and channels.get(key) is channel:
            del channels[key]


def _message(kind: str, seq: int, data: bytes) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, kind.encode(), data)


class Channel:
    """Readers with the same rights, and what they were last sent. Runs while it has readers. It ends, and they start
    again, when the rights change that it was opened with."""

    def __init__(self, request: ApiRequest) -> None:
        self._request = request  # of the first reader: the rights of all of them
        self._rights = request.rights
        self._readers: set[asyncio.Queue[bytes | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()  # a view and a change are not made at the same time
        self._sent: Moment | None = None  # what every reader has, whenever it joined
        self._view = b""  # for readers who join before the next change
        self.is_over = False

    async def join(self, unread: asyncio.Queue[bytes | None]) -> bytes:
        """Everything that the other readers have. Each later change is put into ``unread``.

        A view of this time would be wrong for a channel that runs: its next change says how the cluster differs from
        what the channel has sent, not from this time. What was changed and changed back would stay wrong in the new
        view, and events in between would be in it twice.
        """
        async with self._lock:
            if self._sent is None:
                self._sent = await _moment(self._request)
            if not self._view:
                self._view = _message("view", self._sent.seq, encode_json(await _view(self._request, self._sent)))
            self._readers.add(unread)
            if self._task is None:
                self._task = asyncio.ensure_future(self._run(self._sent.seq))
            return self._view

    def leave(self, unread: asyncio.Queue[bytes | None]) -> None:
        self._readers.discard(unread)
        if not self._readers and self._task is not None:
            self._end()

    def _end(self) -> None:
        self.is_over = True
        for unread in self._readers:
            while unread.full():
                unread.get_nowait()
            unread.put_nowait(None)
        if self._task is not None:
            self._task.cancel()

    async def _run(self, seq: int) -> None:
        service = self._request.service
        try:
            while True:
                news = service.news  # taken before looking: every later record sets it
                if service.durable_seq <= seq:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(REFRESH_S):
                            await news.wait()
                async with self._request.shared.live_pace.turn(), self._lock:
                    if self._request.shared.closing.is_set() or self._request.rights != self._rights:
                        break
                    change = await self._change()
                    seq = change.seq
                    if change != LiveChange(seq=seq, at_ms=change.at_ms):
                        self._view = b""
                        self._tell(_message("change", change.seq, encode_json(change)))
                await asyncio.sleep(TICK_S)
        finally:
            self._task = None
            self._end()

    def _tell(self, message: bytes) -> None:
        for unread in list(self._readers):
            if unread.full():
                self._readers.discard(unread)
                unread.get_nowait()
                unread.put_nowait(None)
            else:
                unread.put_nowait(message)

    async def _change(self) -> LiveChange:
        """What has changed since the last time."""
        before, now = self._sent, await _moment(self._request)
        assert before is not None
        after = max(before.seq, now.seq - _RECORDS_AT_ONCE)
        read = self._request.service.journal.read
        records = await self._request.shared.look(read, after, now.seq - after) if now.seq > after else []
        jobs, has_more = await self._jobs(records)
        is_moved = before.cells.keys() != now.cells.keys() or list(before.cells) != list(now.cells)
        change = LiveChange(
            seq=now.seq,
            at_ms=now.at_ms,
            overview=None if now.overview == before.overview else now.overview,
            events=await _newest(self._request, after, now.seq),
            jobs=jobs,
            more_jobs=has_more or after > before.seq,
            nodes=tuple(changed(before.cells, now.cells)),
            nodes_gone=tuple(name for name in before.cells if name not in now.cells),
            nodes_in_order=tuple(now.cells) if is_moved else None,
            jobs_on_map={name: job for name, job in now.jobs.items() if before.jobs.get(name) != job},
            queues=None if now.queues == before.queues else now.queues,
        )
        self._sent = now
        return change

    async def _jobs(self, records: list[Record]) -> tuple[tuple[JobSummary, ...], bool]:
        """The jobs that these records are about, as they are now; and whether there are more."""
        request = self._request
        named = dict.fromkeys(map(_job_of, records))
        named.pop("", None)
        numbers = tuple(named)[-_JOBS_SHOWN:]
        if not numbers:
            return (), False
        seen = seen_queues(request.service.accounts, request.principal, Verb.JOBS_READ)
        query = JobQuery(queues=seen, users_own=request.user, ids=numbers, limit=_JOBS_SHOWN)
        page = await request.shared.look(request.service.lookup.job_table, query, "submitted", True, 0)
        held = await holdings(request, page.jobs)
        return tuple(summary(row, held.get(row.id)) for row in page.jobs), len(named) > len(numbers)


class _Subject(msgspec.Struct):
    gang: str = ""
    job: str = ""


_subjects = msgspec.json.Decoder(_Subject)


def _job_of(record: Record) -> str:
    """The job that a record is about. Equivalent to decoding the event; for speed only its subject is read."""
    try:
        subject = _subjects.decode(record.body)
    except msgspec.DecodeError:
        return ""
    return job_of(subject.gang) if subject.gang else subject.job
