"""How an agent speaks to the server: it asks, and is answered; and why it may not be.

`Line` is the seam; `GatewayLine` (in `gateway_line`) is the real one. Knows nothing of addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from corral.backends.fleet.messages import (
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
    """Nobody knows whether it arrived."""


class Refused(Exception):
    """The server has said no. ``code`` is stable."""

    def __init__(self, status: int, code: str, why: str, hint: str = "") -> None:
        super().__init__(f"{why} ({code}, {status})" + (f"; {hint}" if hint else ""))
        self.status, self.code, self.hint = status, code, hint


class Line(Protocol):
    answer_s: float  # so long a renewal waits for its answer

    def renew(self, asked: Renewal) -> LeaseAnswer: ...

    def when_granted(self, tell: Callable[[LeaseAnswer], None]) -> None:
        """Who is told of a lease that nobody waits for: the last one of a server that stops."""
        ...

    def report(self, said: AgentReport) -> AgentAnswer: ...

    def desired(self, ask: DesiredAsk) -> DesiredAnswer | None:
        """Returns when there is something, or nothing for long."""
        ...

    def logs(self, delivery: LogDelivery) -> LogReceipt: ...

    def hang_up(self) -> None:
        """Let go whoever waits; the next question begins anew."""
        ...
