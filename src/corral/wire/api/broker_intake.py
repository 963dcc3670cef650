"""Messages of a broker on their way to the server, what became of each, and what the intake reports of itself.

Types and units only, not HTTP, rights, or how an answer is computed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from corral.wire.api.answers import Answer, Body, ProblemView

MESSAGES_MAX = 500
_Count = Annotated[int, Meta(ge=0, le=1 << 53)]


class IntakeMessage(Body, frozen=True):
    """One message. ``id``: its message id, which makes it submitted once. ``token``: of the user, as for the API;
    without one, ``user`` is the user that the broker has authenticated. ``batch``: the batching queue that its items
    are for; empty: the body is a job document, or ``{"jobs": [...]}``."""

    id: Annotated[str, Meta(max_length=255)]
    body: str
    token: Annotated[str, Meta(max_length=4096)] = ""
    user: Annotated[str, Meta(max_length=255)] = ""
    batch: Annotated[str, Meta(max_length=255)] = ""


class IntakeStatus(Body, frozen=True):
    """What an intake reports. ``waiting``: messages in the broker; ``published``: the last record of the journal that
    was published; ``paused``: why it takes no messages now."""

    name: Annotated[str, Meta(min_length=1, max_length=100)]
    broker: Literal["rabbitmq", "redis"]
    waiting: _Count = 0
    dead: _Count = 0
    published: _Count = 0
    paused: Annotated[str, Meta(max_length=300)] = ""


class IntakeBody(Body, frozen=True):
    """Messages, each judged by itself; there may be none."""

    messages: list[IntakeMessage] = field(default_factory=list)
    status: IntakeStatus | None = None


class IntakeOutcome(Answer, frozen=True):
    """What became of a message: durable ``jobs`` or ``items``; or a problem, the same as the API would answer.
    ``retry_ms``: over 0 if it is not the fault of the message, and it should be sent again after this time."""

    id: str
    user: str = ""
    jobs: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    problem: ProblemView | None = None
    retry_ms: int = 0


class IntakeAnswer(Answer, frozen=True):
    """In the order of the messages."""

    outcomes: tuple[IntakeOutcome, ...]


class IntakeView(Answer, frozen=True):
    """An intake as it last reported, ``seen_s_ago``."""

    name: str
    broker: str
    waiting: int
    dead: int
    published: int
    paused: str
    seen_s_ago: float


class IntakeList(Answer, frozen=True):
    intakes: tuple[IntakeView, ...]
