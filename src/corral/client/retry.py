"""When to retry a request, and how a response is read.

A request is repeated after a lost connection if it is idempotent or was never sent, and after "too busy" (429, 503)
when the server says so. Does not know sockets: it is a conversation like any other.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import msgspec

from corral.client.call import ApiCall, Pause, RawAnswer, Talk
from corral.client.errors import NotFound, Problem, Unreachable
from corral.client.servers import Servers
from corral.io.backoff import Backoff
from corral.wire.api.answers import ProblemView

T = TypeVar("T")

_BUSY = (429, 503)


class RetryPolicy(msgspec.Struct):
    """How long a request is retried. ``first_s`` applies until the server was reached for the first time."""

    seconds: float = 10.0
    first_s: float = 10.0
    is_reached: bool = False

    @property
    def left_s(self) -> float:
        return self.seconds if self.is_reached else self.first_s


def patience_for(servers: Servers, seconds: float, first_s: float | None) -> RetryPolicy:
    """With several servers, one that cannot be reached is no reason to fail at once."""
    return RetryPolicy(seconds, seconds if first_s is None or servers.others else first_s)


class Patient:
    """The state of a client that conversations need."""

    patience: RetryPolicy


def answered(client: Patient, call: ApiCall[T]) -> Talk[T]:
    """The decoded response to a request; a refusal is raised."""
    return read(call, (yield from asked(client, call)))


def asked(client: Patient, call: ApiCall[Any]) -> Talk[RawAnswer]:
    """The response to a request, of any status."""
    began_s, backoff = time.monotonic(), Backoff()
    while True:
        wait_s = backoff.failed()
        try:
            answer: RawAnswer = yield call
        except Unreachable as error:
            client.patience.is_reached |= error.connected
            may_repeat = call.repeatable or not error.connected
            if not may_repeat or time.monotonic() - began_s + wait_s > client.patience.left_s:
                raise
        else:
            client.patience.is_reached = True
            wait_s = max(wait_s, _retry_after_s(answer))
            if answer.status not in _BUSY or time.monotonic() - began_s + wait_s > client.patience.left_s:
                return answer
        yield Pause(wait_s)


def _retry_after_s(answer: RawAnswer) -> float:
    stated = answer.headers.get("retry-after", "")
    return float(stated) if stated.isdecimal() else 0.0


def read(call: ApiCall[T], answer: RawAnswer) -> T:
    """The body of a successful response; a refusal is raised."""
    if answer.status >= 400:
        raise problem_of(answer)
    if call.answer is bytes:
        return answer.body  # type: ignore[return-value]
    if call.answer is type(None):
        return None
    return msgspec.json.decode(answer.body, type=call.answer)


def problem_of(answer: RawAnswer) -> Problem:
    kind = NotFound if answer.status == 404 else Problem
    try:
        problem = msgspec.json.decode(answer.body, type=ProblemView)
    except (msgspec.DecodeError, UnicodeDecodeError):
        what = f"the answer has status {answer.status} and does not come from Corral"
        return kind(answer.status, "not_corral", what, "check the address: CORRAL_URL, or credentials.json")
    what = problem.detail or problem.title
    return kind(answer.status, problem.code, what, problem.hint, problem.field, problem.request_id, problem.faults)
