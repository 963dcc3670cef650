"""Errors between a client and a server: each says what is wrong and, if known, what to do.

Does not know how requests are sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.wire.api.answers import FaultView


class ClientError(Exception):
    """The base of all errors that a client raises. ``hint``: what to do; may be empty."""

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint


class BadCredentials(ClientError):
    """There are no credentials, or none that may be used."""


class Unreachable(ClientError):
    """No answer. ``connected``: a server was reached, so the request may have been executed."""

    def __init__(self, what: str, hint: str = "", *, connected: bool = False) -> None:
        super().__init__(what, hint)
        self.connected = connected


class BatchItemFailed(ClientError):
    """An item of a batching queue failed or was refused. ``number``: its place among the items, from 0."""

    def __init__(self, number: int, item: str, why: str) -> None:
        super().__init__(f"item {number} ({item}): {why}")
        self.number = number
        self.item = item
        self.why = why


class Timeout(ClientError):
    """The awaited event did not happen in time."""


class Problem(ClientError):
    """The server refused. ``code`` is stable and may be compared; ``faults``: all errors in a job document."""

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
        self.status = status
        self.code = code
        self.detail = detail
        self.field = field
        self.request_id = request_id
        self.faults = faults


class NotFound(Problem):
    """It does not exist, or you may not see it."""
