"""The seam between the intake and a broker: what a broker must do, and the values that pass between them.

Knows neither an actual broker nor the server. ``rabbitmq`` and ``redis_streams`` implement it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from corral.wire.api.answers import ProblemView
from corral.wire.brokers.broker_names import BODY_BYTES_MAX

_TEXT_MAX = 4096


class BrokerLost(Exception):
    """The connection has ended, or the broker refused. What was received and not acknowledged is delivered again."""


class Delivery(Struct, eq=False):
    """A message. ``user``: as the broker has authenticated it. ``mark``: what the broker needs to acknowledge it.
    ``fault``: why it cannot be handed to the server at all. ``tries``: how often the server has failed with it."""

    id: str
    body: bytes
    lane: str
    mark: Any
    token: str = ""
    user: str = ""
    batch: str = ""
    is_cut: bool = False
    fault: ProblemView | None = None
    tries: int = 0


class StateChange(Struct, frozen=True):
    """An event to publish. ``id`` is the same when it is published again."""

    id: str
    key: str
    body: bytes


class PendingItems(Struct, frozen=True):
    """Items of a batching queue that were accepted, and whose results are still to be published."""

    message: str
    batch: str
    user: str
    ids: tuple[str, ...]


class DeadLetter(Struct, frozen=True):
    """A refused message, with the problem that the API would have answered."""

    id: str
    at_ms: int
    lane: str
    problem: ProblemView
    body: str = ""
    token: str = ""
    batch: str = ""
    user: str = ""
    size: int = 0
    is_cut: bool = False  # only the beginning of its body was kept


class BrokerCounts(Struct, frozen=True):
    waiting: int
    dead: int


class Broker(Protocol):
    """One connection at a time. Everything may raise ``BrokerLost``; then it is closed and opened again."""

    kind: str

    async def open(self) -> None:
        """Connect, create what is missing, and begin to receive."""

    async def close(self) -> None:
        """End the connection; never raises."""

    async def receive(self, most: int, wait_s: float) -> list[Delivery]:
        """Messages, the urgent ones first; none if none came within the time."""

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        """The messages are done: they are not delivered again."""

    async def bury(self, delivery: Delivery, problem: ProblemView) -> None:
        """Move a message to the dead letters. Returns when it is stored there."""

    async def publish(self, changes: Sequence[StateChange], cursor: int | None) -> None:
        """Publish state changes in order. The cursor, if there is one, is stored only after all of them are."""

    async def cursor(self) -> int | None:
        """As it was stored last; None: never."""

    async def counts(self) -> BrokerCounts: ...

    async def keep_items(self, pending: Sequence[PendingItems]) -> None:
        """Store items whose results are to be published. Returns when they are stored."""

    async def pending_items(self, most: int) -> list[tuple[Any, PendingItems]]:
        """Stored items, each with its mark. One that is not dropped comes again after a reconnection."""

    async def drop_items(self, marks: Sequence[Any]) -> None: ...


#: Whether a dead letter is to be removed.
Judge = Callable[[DeadLetter], Awaitable[bool]]


class DeadLetters(Protocol):
    """Looks at dead letters, for operators. Not used by the intake. Used in ``async with``."""

    async def __aenter__(self) -> DeadLetters: ...

    async def __aexit__(self, *_: object) -> None: ...

    async def sift(self, judge: Judge, most: int) -> None:
        """Shows the oldest ones to ``judge``, and removes those for which it says so; all others stay."""


def dead_letter(delivery: Delivery, problem: ProblemView) -> bytes:
    """How a dead letter is stored."""
    letter = DeadLetter(
        id=delivery.id,
        at_ms=time.time_ns() // 1_000_000,
        lane=delivery.lane,
        problem=problem,
        body=delivery.body.decode(errors="replace"),
        token=delivery.token,
        batch=delivery.batch,
        user=delivery.user,
        size=len(delivery.body),
        is_cut=delivery.is_cut or delivery.fault is not None,
    )
    return msgspec.json.encode(letter)


def read_dead_letter(raw: bytes) -> DeadLetter:
    """A stored dead letter; one that is not Corral's own is shown as such."""
    try:
        return msgspec.json.decode(raw, type=DeadLetter)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        why = problem(400, "not_a_dead_letter", "it was not put here by an intake")
        return DeadLetter(id="?", at_ms=0, lane="", problem=why, size=len(raw), is_cut=True)


def problem(status: int, code: str, detail: str, hint: str = "", field: str = "") -> ProblemView:
    """A problem of a message that no server has seen, in the form of the API."""
    title = {400: "Bad Request", 413: "Content Too Large", 415: "Unsupported Media Type"}.get(status, "Refused")
    return ProblemView(
        title=title, status=status, code=code, detail=detail, hint=hint, field=field, type=f"urn:corral:problem:{code}"
    )


def bounded_text(value: Any) -> str:
    """A header as text: what is not text, or is too long, counts as not given."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            return ""
    return value if isinstance(value, str) and len(value) <= _TEXT_MAX else ""


def delivery_of(
    lane: str, mark: Any, body: bytes, *, id: Any, token: Any, user: Any, batch: Any, encoding: str, kind: str
) -> Delivery:
    """A message with its limits checked, so that nothing unbounded goes further."""
    fault = None
    if len(body) > BODY_BYTES_MAX:
        why = f"the message has {len(body)} bytes; the limit is {BODY_BYTES_MAX}"
        fault = problem(413, "body_too_large", why, "send several smaller messages")
    elif encoding and encoding.lower() not in ("identity", "utf-8", "utf8"):
        why = f"the message has the content encoding {encoding[:40]!r}"
        fault = problem(415, "encoded_body", why, "send it without one", "content_encoding")
    elif kind and kind.partition(";")[0].strip().lower() not in ("application/json", "text/plain"):
        why = f"the content type of the message is {kind[:60]!r}"
        fault = problem(415, "not_json", why, "send application/json", "content_type")
    else:
        try:
            body.decode()
        except UnicodeDecodeError as error:
            fault = problem(400, "bad_json", f"the message is not UTF-8: {error.reason}", "send JSON in UTF-8")
    is_cut = len(body) > BODY_BYTES_MAX
    return Delivery(
        id=bounded_text(id)[:255],
        body=body[: BODY_BYTES_MAX // 16] if is_cut else body,
        lane=lane,
        mark=mark,
        token=bounded_text(token),
        user=bounded_text(user)[:255],
        batch=bounded_text(batch)[:255],
        is_cut=is_cut,
        fault=fault,
    )
