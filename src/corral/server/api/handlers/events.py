"""The journal as users may see it: a page from any number on, or a stream without gaps.

The subject of an event decides which users see it: a job's queue and owner, a queue, a user; every user with a role
sees nodes. Fields that the reader may not know are removed. The numbers of hidden records are not hidden.
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
from corral.core.accounts import accounts as a
from corral.core.fleets import fleets as fl
from corral.core.gang_id import index_of, job_of, role_of
from corral.server.api.handlers.event_text import TYPES, sentence
from corral.server.api.handlers.jobs import is_number, known_owner, load_owners, sees_gang
from corral.server.api.handlers.views import HIDDEN_GANG
from corral.server.api.http.problems import ApiError
from corral.server.api.http.request import ApiRequest, Reply, StreamAnswer
from corral.server.api.http.shared_views import in_steps
from corral.server.auth import Verb, is_among
from corral.store.journal import Record
from corral.wire.api import EventList, EventsParameters, EventView
from corral.wire.api.selector import BadSelector, Selector, parse
from corral.wire.codec import decode
from corral.wire.document.kinds import meant

KIND = "text/event-stream"
_AT_ONCE = 500
_SCANNED_MAX = 20_000  # records read for one page, however few of them the user may see
_KEPT_BYTES_MAX = 4 << 10
_SECRETS_OF_EVENTS = ("digest", "proof")
#: Actors that older versions recorded for what the server did by itself.
_OLD_ACTORS = ("world", "founder", "scheduler")
_USER_EVENTS = (
    a.UserSet,
    a.UserRemoved,
    a.RoleGranted,
    a.RoleRevoked,
    a.TokenIssued,
    a.UserLinked,
    a.SignedIn,
    a.TemplateSet,
    a.TemplateRemoved,
)


async def events(request: ApiRequest) -> Reply:
    await request.audit_read("the record")
    _check_types(request.query.types)
    after = request.query.after
    if request.query.follow or "text/event-stream" in request.header(b"accept"):
        last = request.header(b"last-event-id")
        if last.isdecimal() and last.isascii() and len(last) < 19:
            after = int(last)
        return StreamAnswer(_stream(request, after), KIND, has_all_roles(request))
    if request.query.job is not None:
        selector = _selector(request)
        return await _of_one_job(request, "" if selector is None else selector.job, after)
    found: list[EventView] = []
    scanned = 0
    while len(found) < request.query.limit and scanned < _SCANNED_MAX:
        records = await request.shared.look(request.service.journal.read, after, _AT_ONCE)
        scanned += len(records)
        async with request.shared.views.turn():
            views = await event_views(request, records)
        for view in views:
            found.append(view)
            if len(found) == request.query.limit:
                break
        else:
            after = records[-1].seq if records else after
            if len(records) < _AT_ONCE:
                break
            continue
        after = found[-1].seq
    return EventList(events=tuple(found), next=after, head=await _head(request, after))


async def _head(request: ApiRequest, read: int) -> int:
    """The newest durable record. Below ``read`` if there is no record of that number: the reader knows the journal of
    another server, or one from before a restore."""
    durable = request.service.durable_seq
    if read <= durable:
        return durable
    records = await request.shared.look(request.service.journal.read, read - 1, 1)
    return read if records else durable


def _check_types(types: Sequence[str]) -> None:
    for name in types:
        if name not in TYPES:
            why = f"there is no event type {name[:40]!r}"
            raise ApiError(422, "no_such_event_type", why, meant(name, TYPES), "types")


async def _of_one_job(request: ApiRequest, job: str, after: int) -> EventList:
    """Equivalent to filtering a page of all events; for speed it reads only the records about that job."""
    found: list[EventView] = []
    head = max(after, request.service.durable_seq)
    if not is_number(job):
        return EventList(events=(), next=head, head=head)
    for _ in range(_SCANNED_MAX // _AT_ONCE):
        part = await request.shared.look(request.service.lookup.records_of, job, after, _AT_ONCE)
        async with request.shared.views.turn():
            found += await event_views(request, part.records)
        after, head = part.upto, max(head, part.head)
        if len(found) >= request.query.limit or after >= part.head:
            break
    if len(found) > request.query.limit:
        found = found[: request.query.limit]
        after = found[-1].seq
    return EventList(events=tuple(found), next=after, head=max(after, head))


def has_all_roles(request: ApiRequest) -> Callable[[], bool]:
    """A check that ends the stream when the user loses a role; the client reconnects with the rights that are left."""
    had = frozenset(request.service.accounts.users[request.user].roles)

    def holds() -> bool:
        user = request.service.accounts.users.get(request.user)
        return user is not None and had <= user.roles.keys()

    return holds


async def _stream(request: ApiRequest, after: int) -> AsyncGenerator[bytes]:
    """Server-sent events: first past records, then new ones. The feed is opened before the journal is read, so that no
    record is missed in between."""
    yield b"retry: 1000\n\n"
    feed = request.service.subscribe()
    coming = aiter(feed)
    pending: asyncio.Future[Record] | None = None
    try:
        while records := await request.shared.look(request.service.journal.read, after, _AT_ONCE):
            yield _messages(await event_views(request, records))
            after = records[-1].seq
        while request.is_alive:
            pending = pending or asyncio.ensure_future(anext(coming))
            done, _ = await asyncio.wait([pending], timeout=request.shared.settings.heartbeat_s)
            if not done:
                yield b": still here\n\n"
                continue
            try:
                record = pending.result()
            except StopAsyncIteration:
                return
            pending = None
            if record.seq > after and (views := await event_views(request, [record])):
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


async def event_views(request: ApiRequest, records: Sequence[Record]) -> list[EventView]:
    """The records as events, without those that the user may not see or has not asked for."""
    happened = [(record, _decoded(record)) async for record in in_steps(records)]
    wanted = request.query
    if isinstance(wanted, EventsParameters) and wanted.types:
        happened = [(record, event) for record, event in happened if type(event).__name__ in wanted.types]
    await load_owners(request.shared, {job for _, event in happened for job in _jobs(event)})
    views = [_view(request, record, event) async for record, event in in_steps(happened)]
    return [view for view in views if view is not None and _is_wanted(request, view)]


def _decoded(record: Record) -> Any:
    """Decode a record. Many clients read the same one at the same time, so short records are cached."""
    kept = len(record.body) <= _KEPT_BYTES_MAX
    return _decoded_once(record.format, record.body) if kept else decode(record.format, record.body)


@lru_cache(1024)
def _decoded_once(form: int, body: bytes) -> Any:
    return decode(form, body)


def _is_wanted(request: ApiRequest, view: EventView) -> bool:
    wanted = request.query
    if not isinstance(wanted, EventsParameters):
        return True
    if wanted.node is not None and wanted.node not in (view.data.get("node"), _spec_name(view)):
        return False
    return (wanted.job is None or _is_of(_selector(request), view)) and (
        wanted.queue is None or (bool(view.queue) and is_among(view.queue, (wanted.queue,)))
    )


def _spec_name(view: EventView) -> str | None:
    """The node that was added or changed, in an event that holds all of it."""
    spec = view.data.get("spec") if view.type.startswith("Node") else None
    return spec.get("name") if isinstance(spec, dict) else None


def _selector(request: ApiRequest) -> Selector | None:
    """The job that is asked for, or some of its gangs; None if the text names none."""
    try:
        return parse(request.query.job)
    except BadSelector:
        return None


def _is_of(selector: Selector | None, view: EventView) -> bool:
    """Whether an event is about the job, or one of these gangs of it."""
    if selector is None or view.job != selector.job:
        return False
    return selector.is_whole or not view.gang or selector.takes(index_of(view.gang), role_of(view.gang))


def _jobs(event: Any) -> list[str]:
    if hasattr(event, "gang"):
        beneficiary = getattr(event, "beneficiary", "")
        return [job_of(event.gang), *([job_of(beneficiary)] if beneficiary else [])]
    if isinstance(event, e.StartsPromised):
        return [job_of(gang) for gang in _reserved(event)]
    return [event.job] if hasattr(event, "job") and not isinstance(event, e.JobSubmitted) else []


def _reserved(event: e.StartsPromised) -> list[str]:
    return [*(each.gang for each in event.promises), *event.withdrawn, *(each.gang for each in event.moved)]


class _About(Struct):
    queue: str = ""
    job: str = ""
    gang: str = ""
    user: str = ""


def _view(request: ApiRequest, record: Record, event: Any) -> EventView | None:
    """None if the user may not see the event."""
    about = _about(request, event)
    if about is None:
        return None
    shown = _cut(request, event, about)
    data = msgspec.to_builtins(shown)
    kind = data.pop("type")
    for name in _SECRETS_OF_EVENTS:
        data.pop(name, None)
    return EventView(
        seq=record.seq,
        at_ms=record.at_ms,
        actor=_actor(request, record.actor),
        type=kind,
        text=sentence(shown),
        data=data,
        queue=about.queue,
        job=about.job,
        gang=about.gang,
        user=about.user,
    )


def _actor(request: ApiRequest, recorded: str) -> str:
    is_old = recorded in _OLD_ACTORS and recorded not in request.service.accounts.users
    return "system" if is_old else recorded


def _about(request: ApiRequest, event: Any) -> _About | None:
    """The subject of the event; None if the user may not see it."""
    if isinstance(event, e.JobSubmitted):
        return _of_job(request, event.job, (event.spec.queue, event.user))
    if hasattr(event, "gang"):
        job = job_of(event.gang)
        return _of_job(request, job, known_owner(request.shared, job), event.gang)
    if hasattr(event, "job"):
        return _of_job(request, event.job, known_owner(request.shared, event.job))
    if isinstance(event, e.StartsPromised):
        return _About() if any(map(partial(sees_gang, request), _reserved(event))) else None
    if isinstance(event, e.NodeEvent | e.Founded):
        return _About() if request.may_somewhere(Verb.NODES_READ) else None
    if isinstance(event, fl.FleetEvent):
        return _About() if request.may(Verb.FLEETS_READ) else None
    if isinstance(event, e.QueueEvent):
        queue = event.spec.name if isinstance(event, e.QueueSet) else event.queue
        return _About(queue=queue) if request.may(Verb.QUEUES_READ, queue) else None
    if isinstance(event, a.SecretSet | a.SecretRemoved):
        return _About(queue=event.queue) if request.may(Verb.SECRETS_READ, event.queue) else None
    if isinstance(event, a.TemplateSet | a.TemplateRemoved) and not event.user:
        return _About() if request.may_somewhere(Verb.JOBS_SUBMIT) else None
    if isinstance(event, _USER_EVENTS):
        queue = getattr(event, "queue", "")
        return _About(queue=queue, user=event.user) if request.may(Verb.USERS_READ, queue, event.user) else None
    return _About() if request.may(Verb.USERS_READ) else None


def _visible_reservations(request: ApiRequest, event: e.StartsPromised) -> e.StartsPromised:
    sees = partial(sees_gang, request)
    moved = [each if sees(each.by) else replace(each, by=HIDDEN_GANG) for each in event.moved if sees(each.gang)]
    promises = tuple(each for each in event.promises if sees(each.gang))
    return replace(event, promises=promises, withdrawn=tuple(filter(sees, event.withdrawn)), moved=tuple(moved))


def _of_job(request: ApiRequest, job: str, owner: tuple[str, str] | None, gang: str = "") -> _About | None:
    if owner is None or not request.may(Verb.EVENTS_READ, *owner):
        return None
    return _About(owner[0], job, gang, owner[1])


def _cut(request: ApiRequest, event: Any, about: _About) -> Any:
    """The event without what the reader may not know: environment of others' jobs, and the gang that preempted it."""
    if isinstance(event, e.JobSubmitted) and not request.may(Verb.JOBS_CHANGE, about.queue, about.user):
        gangs = tuple(
            gang if gang.work is None else replace(gang, work=replace(gang.work, env=(), secrets=()))
            for gang in event.spec.gangs
        )
        return replace(event, spec=replace(event.spec, gangs=gangs))
    if isinstance(event, a.TemplateSet):
        return replace(event, text="") if event.user not in ("", request.user) else event
    if isinstance(event, e.StartsPromised):
        return _visible_reservations(request, event)
    if isinstance(event, e.GangEvicted) and event.beneficiary and not sees_gang(request, event.beneficiary):
        return replace(event, beneficiary=HIDDEN_GANG)
    return event
