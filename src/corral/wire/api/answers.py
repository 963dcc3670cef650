"""Common bases, and the answer to what cannot be done.

Shapes and units only: nothing of HTTP, of rights, or of how an answer is found.
"""

from __future__ import annotations

from msgspec import Struct


class Answer(Struct, kw_only=True, frozen=True, gc=False, omit_defaults=False):
    """Answers name every field; clients ignore fields they do not know, so that answers can grow."""


class Body(Struct, kw_only=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Bodies and query parameters refuse fields they do not know."""


class FaultView(Answer, frozen=True):
    """One thing that is wrong with a document: where (keys and positions from its top), what, and what to do."""

    path: tuple[str | int, ...]
    code: str
    why: str
    hint: str = ""


class Problem(Answer, frozen=True):
    """Any answer of status 400 and above (RFC 9457). ``code`` is stable; ``faults`` are all those of a document."""

    title: str
    status: int
    code: str
    detail: str = ""
    hint: str = ""
    field: str = ""
    request_id: str = ""
    type: str = "about:blank"
    faults: tuple[FaultView, ...] = ()
