"""Common base types, and the error response.

Types and units only, not HTTP, rights, or how an answer is computed.
"""

from __future__ import annotations

from msgspec import Struct


class Answer(Struct, kw_only=True, frozen=True, gc=False, omit_defaults=False):
    """Responses have every field; clients ignore unknown fields, so that responses can grow. Notebooks show tables."""

    def _repr_html_(self) -> str:
        from corral.wire.api.html_table import html_of

        return html_of(self)


class Body(Struct, kw_only=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Bodies and query parameters with unknown fields are refused."""


class FaultView(Answer, frozen=True):
    """One error in a document: where (keys and positions from its top), what, and what to do."""

    path: tuple[str | int, ...]
    code: str
    why: str
    hint: str = ""


class ProblemView(Answer, frozen=True):
    """A response with a status of 400 or more (RFC 9457). ``code`` is stable; ``faults``: all errors in a document."""

    title: str
    status: int
    code: str
    detail: str = ""
    hint: str = ""
    field: str = ""
    request_id: str = ""
    type: str = "about:blank"
    faults: tuple[FaultView, ...] = ()
