"""Messages from a broker: each is submitted as its own user, as if that user had sent it to the API.

Knows how a message names its user, and which refusals pass by themselves. A message never has more rights than the
token in it, or than the user that the broker has authenticated. Knows no broker.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import structlog
from msgspec.structs import asdict, replace

from corral.core.intake.refusal import Refusal
from corral.server.api.handlers.submission import known_submission, submit, submit_many
from corral.server.api.http.bodies import read_body
from corral.server.api.http.problems import ApiError, forbidden, out_of_scope, unauthenticated
from corral.server.api.http.request import ApiRequest, Reply
from corral.server.auth import Principal, Verb, authenticate, is_in_scope, token_owner
from corral.server.batches.batch_handlers import submit_items
from corral.store.journal import JournalUnusable
from corral.wire import api
from corral.wire.api.batch import BatchItemsBody, ItemList
from corral.wire.api.broker_intake import (
    MESSAGES_MAX,
    IntakeAnswer,
    IntakeBody,
    IntakeList,
    IntakeMessage,
    IntakeOutcome,
    IntakeStatus,
    IntakeView,
)
from corral.wire.brokers.broker_names import BODY_BYTES_MAX, ID_CHARS_MAX

log = structlog.get_logger(__name__)

INTAKES_MAX = 100
FORGOTTEN_S = 600.0
_RETRY_MS = 1_000
#: The message is not at fault: the server, or what it depends on, is away or busy.
_PASSING = (429, 500, 502, 503, 504, 507)
_PASSING_CODES = ("planner_away", "planner_failed", "not_leading")


async def take(request: ApiRequest) -> Reply:
    """Submit messages. The answer is sent when everything that was accepted is durable."""
    if not request.may(Verb.INTAKE):
        raise forbidden(Verb.INTAKE)
    body: IntakeBody = request.body
    if len(body.messages) > MESSAGES_MAX:
        why = f"the request has {len(body.messages)} messages; the limit is {MESSAGES_MAX}"
        raise ApiError(422, "too_many_messages", why, "send several smaller requests", "messages")
    if body.status is not None:
        _note(request, body.status)
    outcomes = await asyncio.gather(*(_outcome(request, message) for message in body.messages))
    for message, outcome in zip(body.messages, outcomes, strict=True):
        kind = "items" if message.batch else "jobs"
        word = "accepted" if outcome.problem is None else "delayed" if outcome.retry_ms else "refused"
        request.shared.metrics.intake_took(kind, word)
    return IntakeAnswer(outcomes=tuple(outcomes))


async def show(request: ApiRequest) -> Reply:
    """The intakes that reported lately."""
    if not request.may(Verb.METRICS_READ):
        raise forbidden(Verb.METRICS_READ)
    return IntakeList(intakes=tuple(views(request.shared.intakes)))


def views(known: dict[str, tuple[float, IntakeStatus]]) -> list[IntakeView]:
    now_s = time.monotonic()
    return [
        IntakeView(**asdict(status), seen_s_ago=round(now_s - at_s, 1))
        for at_s, status in known.values()
        if now_s - at_s < FORGOTTEN_S
    ]


def _note(request: ApiRequest, status: IntakeStatus) -> None:
    known = request.shared.intakes
    known.pop(status.name, None)
    known[status.name] = (time.monotonic(), status)
    if len(known) > INTAKES_MAX:
        del known[next(iter(known))]


# ---- one message -----------------------------------------------------------------------------------------


async def _outcome(request: ApiRequest, message: IntakeMessage) -> IntakeOutcome:
    user = ""
    try:
        _check_message(message)
        who = await _sender(request, message)
        if isinstance(who, IntakeOutcome):
            return who
        user = who.user
        if not is_in_scope(who, Verb.JOBS_SUBMIT):
            raise out_of_scope(Verb.JOBS_SUBMIT)
        if message.batch:
            return await _items(request, who, message)
        return IntakeOutcome(id=message.id, user=user, jobs=await _jobs(request, who, message))
    except ApiError as unable:
        return _refusal(request, message, user, unable)
    except JournalUnusable:
        away = ApiError(503, "database_away", "the server cannot reach its database", "try again")
        return _refusal(request, message, user, away)
    except Exception:
        if request.service.has_failed:
            raise
        log.exception("message_failed", request_id=request.request_id, message=message.id[:100])
        why = "internal error; details are in the server log under this request id"
        return _refusal(request, message, user, ApiError(500, "internal", why))


def _check_message(message: IntakeMessage) -> None:
    if not message.id:
        hint = "set the message id: it makes the message submitted once, however often it is delivered"
        raise ApiError(422, "no_message_id", "the message has no id", hint, "message_id")
    if len(message.id) > ID_CHARS_MAX:
        why = f"the message id has {len(message.id)} characters; the limit is {ID_CHARS_MAX}"
        raise ApiError(422, "bad_key", why, "use a shorter one, such as a UUID", "message_id")
    if len(message.body) > BODY_BYTES_MAX:
        why = f"the message has more than {BODY_BYTES_MAX} bytes"
        raise ApiError(413, "body_too_large", why, "send several smaller messages")


async def _sender(request: ApiRequest, message: IntakeMessage) -> Principal | IntakeOutcome:
    """The user of a message: of its token, or else the one that the broker has authenticated. A message that was
    submitted before its token expired gets the answer that it had."""
    accounts, now_ms = request.service.accounts, request.service.now_ms()
    if not message.token:
        if not message.user:
            hint = "put a token into the header corral-token, or let the broker check the property user-id"
            raise ApiError(401, "no_token", "the message names no user", hint)
        user = accounts.users.get(message.user)
        if user is None or user.disabled:
            why = f"there is no user {message.user[:64]!r}, or it is disabled"
            raise ApiError(401, "no_such_sender", why, "create the user under the name that it has in the broker")
        return Principal(user.name, "")
    who = authenticate(accounts, f"Bearer {message.token}", now_ms)
    if not isinstance(who, Refusal):
        return who
    owner = token_owner(accounts, message.token) if who.code in ("token_expired", "user_disabled") else ""
    if owner and not message.batch:
        known = await known_submission(_as(request, Principal(owner, ""), message), _is_many(message.body))
        if known is not None:
            return IntakeOutcome(id=message.id, user=owner, jobs=known)
    raise unauthenticated(who)


def _as(request: ApiRequest, who: Principal, message: IntakeMessage) -> ApiRequest:
    """The request that the user would have sent."""
    headers = {b"idempotency-key": message.id.encode("utf-8", "replace")}
    theirs = ApiRequest(request.shared, who, request.request_id, {"batch": message.batch}, headers, request.address)
    theirs.query = api.SubmitParameters()
    theirs.body = message.body.encode()
    return theirs


def _is_many(body: str) -> bool:
    """Whether the body is ``{"jobs": [...]}`` and not a job document, which has no such key."""
    return body.lstrip()[1:].lstrip().startswith('"jobs"')


async def _jobs(request: ApiRequest, who: Principal, message: IntakeMessage) -> tuple[str, ...]:
    theirs = _as(request, who, message)
    given: Any = await (submit_many if _is_many(message.body) else submit)(theirs)
    return tuple(job.id for job in given.jobs) if hasattr(given, "jobs") else (given.id,)


async def _items(request: ApiRequest, who: Principal, message: IntakeMessage) -> IntakeOutcome:
    theirs = _as(request, who, message)
    body = read_body(theirs.body, BatchItemsBody)
    ids = body.ids or [f"{message.id}-{number}" for number in range(len(body.items))]
    theirs.body = replace(body, ids=ids, wait_ms=0)
    found = await submit_items(theirs)
    assert isinstance(found, ItemList)
    refused = [view for view in found.items if view.state == "refused"]
    if not refused:
        return IntakeOutcome(id=message.id, user=who.user, items=tuple(ids))
    first = refused[0]
    why = f"{len(refused)} of {len(ids)} items were refused; the first is {first.id}: {first.error}"
    if any(view.retry_ms for view in refused):
        wait_ms = max(view.retry_ms for view in refused)
        unable = ApiError(429, "line_full", why, "retry later")
        return _refusal(request, message, who.user, unable, wait_ms)
    raise ApiError(422, "items_refused", why, "the others were accepted; send these again, corrected", "items")


def _refusal(
    request: ApiRequest, message: IntakeMessage, user: str, unable: ApiError, wait_ms: int = _RETRY_MS
) -> IntakeOutcome:
    passes = unable.status in _PASSING or unable.code in _PASSING_CODES
    problem = unable.problem(request.request_id)
    return IntakeOutcome(id=message.id, user=user, problem=problem, retry_ms=wait_ms if passes else 0)
