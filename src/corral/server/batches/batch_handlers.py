"""Batching queues: create, show, submit items, results. Items go to the batch process as they are.

Rights are those on the queue of the tree in which the workers run: a user who may submit jobs there may create a
batching queue and submit items.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from hashlib import sha256
from typing import Any

import msgspec

from corral.core.accounts import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import JobSpec
from corral.server.api.http.problems import ApiError, fault_view, not_found, refused
from corral.server.api.http.request import ApiRequest, Reply, StreamAnswer, accepted
from corral.server.auth import Verb
from corral.server.batches.child import BatchAway, BatchChild, BatchProblem
from corral.server.batches.queue_settings import batch_queue_of
from corral.server.batches.scaler import BatchQueueStatus, WorkerScaler, secret_name, worker_document
from corral.server.vault.secret_store import NoKey
from corral.wire.api.batch import BatchDone, BatchQueueList, BatchQueueView, ItemList, ItemView
from corral.wire.job import parse_job

KIND = "text/event-stream"
ITEMS_AT_ONCE_MAX = 10_000
_KIND_OF_THING = "batching queue"


async def list_queues(request: ApiRequest) -> Reply:
    found = await _statuses(request)
    views = [
        _view(request, name, status)
        for name, status in sorted(found.items())
        if request.may(Verb.JOBS_READ, status.body.queue, status.owner)
    ]
    return BatchQueueList(tuple(views))


async def show_queue(request: ApiRequest) -> Reply:
    name = request.path["batch"]
    await _known(request, name, Verb.JOBS_READ)
    status = (await _statuses(request)).get(name)
    if status is None:  # deleted meanwhile
        raise not_found(_KIND_OF_THING, name)
    return _view(request, name, status)


async def set_queue(request: ApiRequest) -> Reply:
    """Create a batching queue or change its settings. Its workers get a token of their own, as a secret."""
    name, body = request.path["batch"], request.body
    spec = accepted(batch_queue_of(name, body))
    request.require(Verb.JOBS_SUBMIT, "queue", body.queue, body.queue)
    if body.queue not in request.service.state.queues.queues:
        raise not_found("queue", body.queue)
    known = (await _statuses(request)).get(name)
    if known is not None:
        request.require(Verb.JOBS_CHANGE, _KIND_OF_THING, name, known.body.queue, known.owner)
        if known.body.queue != body.queue:
            why = f"{name} belongs to queue {known.body.queue}"
            raise refused(Refusal("other_queue", why, "delete it first, or use another name", "queue"))
    _check_job(request, name)
    token = secrets.token_urlsafe(32)
    if known is None:
        await _keep_token(request, name, token)
    owner = request.user if known is None else known.owner
    digest = sha256(token.encode()).hexdigest()
    wrong = await _ask(request, "put", name=name, owner=owner, body=msgspec.to_builtins(body), token=digest)
    _parts(request)[1].forget_status(name)
    if wrong is not None:
        raise refused(Refusal(*wrong))
    return BatchDone(spec.name)


def _check_job(request: ApiRequest, name: str) -> None:
    document = worker_document(name, request.body, "server:0", None)
    spec = parse_job(document, now_ms=request.service.now_ms(), queue=request.body.queue)
    if not isinstance(spec, JobSpec):
        faults = [fault_view(each) for each in spec]
        field = ".".join(map(str, ("job", *faults[0].path)))
        raise ApiError(422, "bad_job", f"the workers cannot be run: {faults[0].why}", faults[0].hint, field)


async def _keep_token(request: ApiRequest, name: str, token: str) -> None:
    queue, queues = request.body.queue, request.service.state.queues.queues
    secret = secret_name(name)
    async with request.shared.turn("secret", queue, secret):
        try:
            await request.shared.look(request.service.secrets.put, queue, secret, token)
        except NoKey as wrong:
            raise ApiError(409, "no_secret_key", str(wrong)) from None
        await request.change_accounts(
            lambda accounts, now_ms: commands.set_secret(accounts, secret, queue, queues, now_ms)
        )


async def remove_queue(request: ApiRequest) -> Reply:
    name = request.path["batch"]
    known = await _known(request, name, Verb.JOBS_CHANGE)
    await _ask(request, "drop", name=name)
    _parts(request)[1].forget_status(name)
    queue, secret = known.body.queue, secret_name(name)
    if (queue, secret) in request.service.accounts.secrets:
        async with request.shared.turn("secret", queue, secret):
            await request.change_accounts(
                lambda accounts, now_ms: commands.remove_secret(accounts, secret, queue, now_ms)
            )
            await request.shared.look(request.service.secrets.drop, queue, secret)
    return BatchDone(name)


async def flush(request: ApiRequest) -> Reply:
    name = request.path["batch"]
    await _known(request, name, Verb.JOBS_CHANGE)
    await _ask(request, "flush", name=name)
    return BatchDone(name)


async def drain(request: ApiRequest) -> Reply:
    return await _drained(request, True)


async def undrain(request: ApiRequest) -> Reply:
    return await _drained(request, False)


async def _drained(request: ApiRequest, is_draining: bool) -> Reply:
    name = request.path["batch"]
    await _known(request, name, Verb.JOBS_CHANGE)
    await _ask(request, "drain", name=name, is_draining=is_draining)
    return BatchDone(name)


# ---- items -----------------------------------------------------------------------------------------------


async def submit_items(request: ApiRequest) -> Reply:
    name, body = request.path["batch"], request.body
    await _known(request, name, Verb.JOBS_SUBMIT)
    if not body.items or len(body.items) > ITEMS_AT_ONCE_MAX:
        why = f"a request has 1 to {ITEMS_AT_ONCE_MAX} items, not {len(body.items)}"
        raise ApiError(422, "bad_items", why, "send several requests", "items")
    if body.ids and (len(body.ids) != len(body.items) or len(set(body.ids)) != len(body.ids)):
        raise ApiError(422, "bad_ids", "`ids` must name each item once", "give one id per item, or none", "ids")
    items = msgspec.to_builtins(body)
    return _items(await _ask(request, "submit", name=name, user=request.user, body=items))


async def results(request: ApiRequest) -> Reply:
    """The state of items; or each result as it comes, as server-sent events."""
    name, body = request.path["batch"], request.body
    known = await _known(request, name, Verb.JOBS_READ)
    if not body.ids or len(body.ids) > ITEMS_AT_ONCE_MAX:
        raise ApiError(422, "bad_ids", f"name 1 to {ITEMS_AT_ONCE_MAX} items", "send several requests", "ids")
    if KIND in request.header(b"accept"):
        holds = _still_reads(request, known)
        return StreamAnswer(_stream(request, name, body.ids), KIND, holds)
    return _items(await _ask(request, "results", name=name, ids=body.ids, wait_ms=body.wait_ms))


def _still_reads(request: ApiRequest, known: BatchQueueStatus) -> Any:
    return lambda: request.may(Verb.JOBS_READ, known.body.queue, known.owner)


async def _stream(request: ApiRequest, name: str, ids: list[str]) -> AsyncGenerator[bytes, None]:
    """One event per item, when it has ended; a comment now and then while nothing ends."""
    left = list(dict.fromkeys(ids))
    while left:
        views = _items(await _ask(request, "results_some", name=name, ids=left, wait_ms=10_000)).items
        ended = [view for view in views if view.state != "waiting"]
        done = {view.id for view in ended}
        left = [each for each in left if each not in done]
        yield (
            b"".join(b"id: %s\ndata: %s\n\n" % (v.id.encode(), msgspec.json.encode(v)) for v in ended) or b": wait\n\n"
        )


def _items(found: Any) -> ItemList:
    return ItemList(tuple(msgspec.convert(found, list[ItemView])))


# ---- the batch process -----------------------------------------------------------------------------------


async def _statuses(request: ApiRequest) -> dict[str, BatchQueueStatus]:
    child, _ = _parts(request)
    if not child.is_running and not child.is_needed:
        return {}
    return msgspec.convert(await _ask(request, "show"), dict[str, BatchQueueStatus])


async def _known(request: ApiRequest, name: str, verb: Verb) -> BatchQueueStatus:
    """A batching queue that the user may use in this way. What they may not see does not exist."""
    _child, scaler = _parts(request)
    status = scaler.statuses.get(name)
    if status is None:
        status = (await _statuses(request)).get(name)
    if status is None:
        raise not_found(_KIND_OF_THING, name)
    request.require(verb, _KIND_OF_THING, name, status.body.queue, status.owner)
    return status


def _parts(request: ApiRequest) -> tuple[BatchChild, WorkerScaler]:
    parts = request.service.batches
    if parts is None:
        raise ApiError(503, "not_leading", "only the leader has batching queues", "send the request to the leader")
    return parts


async def _ask(request: ApiRequest, verb: str, **about: Any) -> Any:
    try:
        return await _parts(request)[0].ask(verb, **about)
    except BatchAway as away:
        raise ApiError(503, "batches_away", str(away), "try again", headers={"Retry-After": "1"}) from None
    except BatchProblem as wrong:
        raise ApiError(wrong.status, wrong.code, str(wrong)) from None


def _view(request: ApiRequest, name: str, status: BatchQueueStatus) -> BatchQueueView:
    scaler = _parts(request)[1]
    return BatchQueueView(
        name=name,
        owner=status.owner,
        queue=status.body.queue,
        settings=status.body,
        stats=status.stats,
        is_draining=status.is_draining,
        problem=scaler.problems.get(name, ""),
        jobs=tuple(scaler.jobs.get(name, ())),
    )
