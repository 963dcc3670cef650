"""One request for a whole page: the cluster at one time, then its changes as server-sent events.

A reader who reconnects gets everything again, so a page is never wrong after a broken connection. Readers with the same
rights share a channel: each change is computed and encoded once, a few times a second at most, and sent to all of them.
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
from corral.server.api.handlers.live.cells import GroundPlan, Sights, changed, ground_plan, jobs_on, topology_view
from corral.server.api.handlers.live.overview import overview
from corral.server.api.handlers.views import summary
from corral.server.api.http.request import ApiRequest, Content, Reply, StreamAnswer
from corral.server.api.http.shared_views import JSON, encode_json
from corral.server.auth import Verb, seen_queues
from corral.store.journal import Record
from corral.store.lookup import JobQuery
from corral.wire.api import ClusterOverview, EventView, JobSummary, LiveChange, LiveView, QueueView

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
    return encode_json(await _view(request))


async def topology(request: ApiRequest) -> Reply:
    check_sees_nodes(request)
    key = ("topology", *_audience(request))
    return Content(await request.shared.views.of(key, partial(_encoded_topology, request)), JSON)


async def _encoded_topology(request: ApiRequest) -> bytes:
    return encode_json(await topology_view(request, figures=True))


def _audience(request: ApiRequest) -> tuple[Hashable, ...]:
    """What decides what a reader sees."""
    is_partial = seen_queues(request.service.accounts, request.principal, Verb.JOBS_READ) is not None
    return request.user if is_partial else "", request.rights, getattr(request.query, "parts", ())


# ---- everything at one time ----------------------------------------------------------------------------------


async def _view(request: ApiRequest) -> LiveView:
    service, parts = request.service, request.query.parts
    seq = service.durable_seq
    plan = await ground_plan(request)
    return LiveView(
        seq=seq,
        at_ms=service.now_ms(),
        version=corral.__version__,
        leads=service.leads,
        overview=overview(request, plan),
        events=await _newest(request, max(0, seq - _RECORDS_AT_ONCE), seq),
        topology=await topology_view(request) if "nodes" in parts else None,
        queues=await queue_views(request) if "queues" in parts else None,
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
        self._seq = request.service.durable_seq
        self._plan = GroundPlan(-1, {})
        self._overview: ClusterOverview | None = None
        self._queues: tuple[QueueView, ...] | None = None
        self._view = b""  # for readers who join before the next change
        self.is_over = False

    async def join(self, unread: asyncio.Queue[bytes | None]) -> bytes:
        """Everything at this time. Later changes are put into ``unread``; what they say is never older than this."""
        async with self._lock:
            if not self._view:
                view = await _view(self._request)
                self._view = _message("view", view.seq, encode_json(view))
                if self._task is None:  # later readers join between two changes: their base is that of the channel
                    self._seq = view.seq
                    self._plan = await ground_plan(self._request)
                    self._overview, self._queues = view.overview, view.queues
            self._readers.add(unread)
            if self._task is None:
                self._task = asyncio.ensure_future(self._run())
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

    async def _run(self) -> None:
        service = self._request.service
        try:
            while True:
                news = service.news  # taken before looking: every later record sets it
                if service.durable_seq <= self._seq:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(REFRESH_S):
                            await news.wait()
                if self._request.shared.closing.is_set() or self._request.rights != self._rights:
                    break
                async with self._lock:
                    change = await self._change()
                    if change is not None:
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

    async def _change(self) -> LiveChange | None:
        """What has changed since the last time; None: nothing."""
        request, service = self._request, self._request.service
        seq, parts = service.durable_seq, request.query.parts
        after = max(self._seq, seq - _RECORDS_AT_ONCE)
        records = await request.shared.look(service.journal.read, after, seq - after) if seq > after else []
        jobs, has_more = await self._jobs(records)
        plan = await ground_plan(request)
        nodes = changed(self._plan.cells, plan.cells) if "nodes" in parts else []
        gone = tuple(name for name in self._plan.cells if name not in plan.cells) if "nodes" in parts else ()
        cells = tuple(map(Sights(request).shown, nodes))
        queues = await queue_views(request) if "queues" in parts else None
        counts = overview(request, plan)
        events = await event_views(request, records[-4 * _EVENTS_SHOWN :])
        change = LiveChange(
            seq=seq,
            at_ms=service.now_ms(),
            overview=None if counts == self._overview else counts,
            events=tuple(structs.replace(view, data={}) for view in reversed(events[-_EVENTS_SHOWN:])),
            jobs=jobs,
            more_jobs=has_more or after > self._seq,
            nodes=cells,
            nodes_gone=gone,
            jobs_on_map=jobs_on(request, cells),
            queues=None if queues == self._queues else queues,
        )
        is_news = change != LiveChange(seq=seq, at_ms=change.at_ms)
        self._seq, self._plan = seq, plan
        self._overview, self._queues = counts, queues
        return change if is_news else None

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
