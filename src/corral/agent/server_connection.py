"""The interface between an agent and its server: requests, answers, and the ways in which a request can fail.

`ServerConnection` is the protocol; `GatewayConnection` implements it. Does not know addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from corral.remote.messages import (
    AgentAnswer,
    AgentReport,
    DesiredAnswer,
    DesiredAsk,
    LeaseAnswer,
    LogDelivery,
    LogReceipt,
    Renewal,
)


class NoAnswer(Exception):
    """There was no answer, so it is unknown whether the request arrived."""


class Refused(Exception):
    """The server refused the request. ``code`` is stable."""

    def __init__(self, status: int, code: str, why: str, hint: str = "") -> None:
        super().__init__(f"{why} ({code}, {status})" + (f"; {hint}" if hint else ""))
        self.status = status
        self.code = code
        self.hint = hint


class ServerConnection(Protocol):
    answer_s: float  # how long a renewal waits for its answer

    def renew(self, asked: Renewal) -> LeaseAnswer: ...

    def when_granted(self, tell: Callable[[LeaseAnswer], None]) -> None:
        """Set what is called with a lease that was not asked for: a server grants a last one when it stops."""

    def report(self, report: AgentReport) -> AgentAnswer: ...

    def desired(self, ask: DesiredAsk) -> DesiredAnswer | None:
        """Returns when there are new orders, or None after a long time without."""

    def logs(self, delivery: LogDelivery) -> LogReceipt: ...

    def hang_up(self) -> None:
        """Close the connection and release the threads that wait; the next request opens a new one."""
