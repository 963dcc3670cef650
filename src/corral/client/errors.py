"""What can go wrong between a client and a server: each says what, and where it is known, what to do.

Knows nothing of how requests are sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.wire.api.answers import FaultView


class ClientError(Exception):
    """Everything that a client raises. ``hint`` says what to do; it may be empty."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


class BadCredentials(ClientError):
    """There are no credentials, or none that may be used."""


class Unreachable(ClientError):
    """No answer came. ``connected``: there was somebody, so the request may have been carried out."""

    def __init__(self, what: str, hint: str = "", *, connected: bool = False) -> None:
        super().__init__(what, hint)
        self.connected = connected


class Timeout(ClientError):
    """What was waited for did not happen in time."""


class Problem(ClientError):
    """The server said no. ``code`` is stable and may be compared; ``faults`` are all those of a job document."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str = "",
        hint: str = "",
        field: str = "",
        request_id: str = "",
        faults: tuple[FaultView, ...] = (),
    ) -> None:
        super().__init__(detail or code, hint)
        self.status, self.code, self.detail = status, code, detail
        self.field, self.request_id, self.faults = field, request_id, faults


class NotFound(Problem):
    """There is no such thing, or none that one may see."""
