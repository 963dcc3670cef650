"""The record, told to those who may see it: a page from any number, or a stream that never misses one.

What an event is about decides who sees it: a job's queue and owner, a queue, a user; machines are seen by everybody
with a role. What is inside is cut to what the reader may know. Numbers of records that are left out are not hidden.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from corral.core import events as e
from corral.core.fleets import fleets as fl
from corral.core.people import accounts as a
from corral.server.api.entry.asking import Ask, Flow, Reply
from corral.server.api.entry.shared_views import in_steps
from corral.server.api.handlers.jobs import is_number, know_places, known_place, sees_gang
from corral.server.api.handlers.telling import told
from corral.server.api.handlers.views import SOMEBODY
from corral.server.auth import Verb, is_among
from corral.server.totals import job_of
from corral.store.journal import Record
from corral.wire.api import EventList, EventView
from corral.wire.codec import decode

KIND = "text/event-stream"
_AT_ONCE = 500
_SCANNED_MAX = 20_000  # records looked at for one page, however few of them may be told
_KEPT_BYTES_MAX = 4 << 10
_SECRETS_OF_EVENTS = ("digest",)
_USER_EVENTS = (a.UserSet, a.UserRemoved, a.RoleGranted, a.RoleRevoked, a.TokenIssued)


async def events(ask: Ask) -> Reply:
    await ask.has_read("the record")
    after = ask.query.after
    if ask.query.follow or "text/event-stream" in ask.header(b"accept"):
        last = ask.header(b"last-event-id")
        if last.isdecimal() and last.isascii() and len(last) < 19:
            after = int(last)
        return Flow(_stream(ask, after), KIND, _has_all_roles(ask))
    if ask.query.job is not None:
        return await _of_one_job(ask, ask.query.job, after)
    found: list[EventView] = []
    scanned = 0
    while len(found) < ask.query.limit and scanned < _SCANNED_MAX:
        records = await ask.shared.look(ask.service.journal.read, after, _AT_ONCE)
        scanned += len(records)
        async with ask.shared.views.turn():
            views = await _views(ask, records)
        for view in views:
            found.append(view)
            if len(found) == ask.query.limit:
                break
        else:
            after = records[-1].seq if records else after
            if len(records) < _AT_ONCE:
                break
            continue
        after = found[-1].seq
    return EventList(events=tuple(found), next=after, head=max(after, ask.service.durable_seq))


async def _of_one_job(ask: Ask, job: str, after: int) -> EventList:
    """Equivalent to a page of everything, of which the rest is left out; read are only the records about that job."""
    found: list[EventView] = []
    head = max(after, ask.service.durable_seq)
    if not is_number(job):
        return EventList(events=(), next=head, head=head)
    for _ in range(_SCANNED_MAX // _AT_ONCE):
        part = await ask.shared.look(ask.service.lookup.records_of, job, after, _AT_ONCE)
        async with ask.shared.views.turn():
            found += await _views(ask, part.records)
        after, head = part.upto, max(head, part.head)
        if len(found) >= ask.query.limit or after >= part.head:
            break
    if len(found) > ask.query.limit:
        found = found[: ask.query.limit]
        after = found[-1].seq
    return EventList(events=tuple(found), next=after, head=max(after, head))


def _has_all_roles(ask: Ask) -> Callable[[], bool]:
    """Whoever loses a role begins again, with what is still theirs to see."""
    had = frozenset(ask.service.accounts.users[ask.user].roles)

    def holds() -> bool:
        user = ask.service.accounts.users.get(ask.user)
        return user is not None and had <= user.roles.keys()

    return holds


async def _stream(ask: Ask, after: int) -> AsyncGenerator[bytes]:
    """Server-sent events: what was, then what comes. The feed is opened first, so that nothing falls between."""
    yield b"retry: 1000\n\n"
    feed = ask.service.subscribe()
    coming = aiter(feed)
    pending: asyncio.Future[Record] | None = None
    try:
        while records := await ask.shared.look(ask.service.journal.read, after, _AT_ONCE):
            yield _messages(await _views(ask, records))
            after = records[-1].seq
        while ask.is_alive:
            pending = pending or asyncio.ensure_future(anext(coming))
            done, _ = await asyncio.wait([pending], timeout=ask.shared.settings.heartbeat_s)
            if not done:
                yield b": still here\n\n"
                continue
            try:
                record = pending.result()
            except StopAsyncIteration:
                return
            pending = None
            if record.seq > after and (views := await _views(ask, [record])):
                yield _messages(views)
    finally:
        feed.close()
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)


def _messages(views: Sequence[EventView]) -> bytes:
    return b"".join(
        [b"id: %d\nevent: %s\ndata: %s\n\n" % (v.seq, v.type.encode(), msgspec.json.encode(v)) for v in views]
    )


async def _views(ask: Ask, records: Sequence[Record]) -> list[EventView]:
    happened = [(record, _decoded(record)) async for record in in_steps(records)]
    wanted = ask.query
    if wanted.types:
        happened = [(record, event) for record, event in happened if type(event).__name__ in wanted.types]
    await know_places(ask.shared, {job for _, event in happened for job in _jobs(event)})
    views = [_view(ask, record, event) async for record, event in in_steps(happened)]
    return [view for view in views if view is not None and _is_wanted(ask, view)]


def _decoded(record: Record) -> Any:
    """Many read the same record at the same time; what is long is not kept for that."""
    kept = len(record.body) <= _KEPT_BYTES_MAX
    return _decoded_once(record.format, record.body) if kept else decode(record.format, record.body)


@lru_cache(1024)
def _decoded_once(form: int, body: bytes) -> Any:
    return decode(form, body)


def _is_wanted(ask: Ask, view: EventView) -> bool:
    wanted = ask.query
    return (wanted.job is None or view.job == wanted.job) and (
        wanted.queue is None or (bool(view.queue) and is_among(view.queue, (wanted.queue,)))
    )


def _jobs(event: Any) -> list[str]:
    if hasattr(event, "gang"):
        sake = getattr(event, "beneficiary", "")
        return [job_of(event.gang), *([job_of(sake)] if sake else [])]
    if isinstance(event, e.StartsPromised):
        return [job_of(gang) for gang in _promised(event)]
    return [event.job] if hasattr(event, "job") and not isinstance(event, e.JobSubmitted) else []


def _promised(event: e.StartsPromised) -> list[str]:
    return [*(each.gang for each in event.promises), *event.withdrawn]


class _About(Struct):
    queue: str = ""
    job: str = ""
    gang: str = ""
    user: str = ""


def _view(ask: Ask, record: Record, event: Any) -> EventView | None:
    """None: it may not be told."""
    about = _about(ask, event)
    if about is None:
        return None
    shown = _cut(ask, event, about)
    data = msgspec.to_builtins(shown)
    kind = data.pop("type")
    for name in _SECRETS_OF_EVENTS:
        data.pop(name, None)
    return EventView(
        seq=record.seq, at_ms=record.at_ms, actor=record.actor, type=kind, text=told(shown), data=data,
        queue=about.queue, job=about.job, gang=about.gang, user=about.user,
    )  # fmt: skip


def _about(ask: Ask, event: Any) -> _About | None:
    """What it is about, if that may be seen."""
    if isinstance(event, e.JobSubmitted):
        return _of_job(ask, event.job, (event.spec.queue, event.user))
    if hasattr(event, "gang"):
        job = job_of(event.gang)
        return _of_job(ask, job, known_place(ask.shared, job), event.gang)
    if hasattr(event, "job"):
        return _of_job(ask, event.job, known_place(ask.shared, event.job))
    if isinstance(event, e.StartsPromised):
        return _About() if any(map(partial(sees_gang, ask), _promised(event))) else None
    if isinstance(event, e.NodeEvent | e.Founded):
        return _About() if ask.may_somewhere(Verb.NODES_READ) else None
    if isinstance(event, fl.FleetEvent):
        return _About() if ask.may(Verb.FLEETS_READ) else None
    if isinstance(event, e.QueueEvent):
        queue = event.spec.name if isinstance(event, e.QueueSet) else event.queue
        return _About(queue=queue) if ask.may(Verb.QUEUES_READ, queue) else None
    if isinstance(event, a.SecretSet | a.SecretRemoved):
        return _About(queue=event.queue) if ask.may(Verb.SECRETS_READ, event.queue) else None
    if isinstance(event, _USER_EVENTS):
        queue = getattr(event, "queue", "")
        return _About(queue=queue, user=event.user) if ask.may(Verb.USERS_READ, queue, event.user) else None
    return _About() if ask.may(Verb.USERS_READ) else None


def _of_job(ask: Ask, job: str, place: tuple[str, str] | None, gang: str = "") -> _About | None:
    if place is None or not ask.may(Verb.EVENTS_READ, *place):
        return None
    return _About(place[0], job, gang, place[1])


def _cut(ask: Ask, event: Any, about: _About) -> Any:
    """The event without what its reader may not know: variables of others' jobs, and for whose sake somebody left."""
    if isinstance(event, e.JobSubmitted) and not ask.may(Verb.JOBS_CHANGE, about.queue, about.user):
        gangs = tuple(
            gang if gang.work is None else replace(gang, work=replace(gang.work, env=(), secrets=()))
            for gang in event.spec.gangs
        )
        return replace(event, spec=replace(event.spec, gangs=gangs))
    if isinstance(event, e.StartsPromised):
        promises = tuple(each for each in event.promises if sees_gang(ask, each.gang))
        return replace(event, promises=promises, withdrawn=tuple(g for g in event.withdrawn if sees_gang(ask, g)))
    if isinstance(event, e.GangEvicted) and event.beneficiary and not sees_gang(ask, event.beneficiary):
        return replace(event, beneficiary=SOMEBODY)
    return event
