"""What is answered when something cannot be done: statuses, stable codes, and nothing of how it came about.

Knows refusals and faults. Must not know who asked. What cannot be foreseen is not described here: it is a 500 with a
request id, and the rest of the story is in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from corral.core.intake.refusal import Refusal
from corral.server.auth import redacted
from corral.wire.api import FaultView, Problem

PROBLEM_TYPE = b"application/problem+json"

#: Refusals that speak of the present: the same request may be accepted later. All others are faults of the request.
_OF_THE_PRESENT = frozenset(
    {
        "already_drained", "cannot_hold", "dependency_failed", "job_exists", "job_over", "last_administrator",
        "node_in_use", "not_drained", "not_held", "not_running", "planner_away", "planner_failed", "quarantined",
        "queue_full", "queue_not_empty", "token_exists",
        "too_many_jobs", "too_many_tokens",
    }
)  # fmt: skip

#: Refusals to those who may do such a thing, but not to this extent.
_OF_RIGHTS = frozenset({"bound_not_given", "guarantee_not_given"})


class Unable(Exception):
    """Ends a request with a problem. Carries all that is told, and headers that belong to it."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str = "",
        hint: str = "",
        field: str = "",
        *,
        faults: Iterable[FaultView] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(code)
        self.status, self.code, self.hint = status, code, hint
        self.detail, self.field = redacted(detail), redacted(field)  # both may repeat what was sent
        self.faults, self.headers = tuple(faults), dict(headers or {})

    def problem(self, request_id: str) -> Problem:
        return Problem(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            code=self.code,
            detail=self.detail,
            hint=self.hint,
            field=self.field,
            request_id=request_id,
            type=f"urn:corral:problem:{self.code}",
            faults=self.faults,
        )


def refused(refusal: Refusal) -> Unable:
    """What the core or the table of rights refused."""
    status = 507 if refusal.code == "disk_full" else 403 if refusal.code in _OF_RIGHTS else 422
    status = 409 if refusal.code in _OF_THE_PRESENT else status
    return Unable(status, refusal.code, refusal.why, refusal.hint, refusal.field)


def not_found(kind: str, name: str) -> Unable:
    """There is no such thing, or none that may be seen: the two are the same to whoever asks."""
    return Unable(404, f"no_such_{kind}", f"there is no {kind} {name[:100]!r}")


def forbidden(verb: str, where: str = "") -> Unable:
    place = f" in {where}" if where else ""
    return Unable(403, "forbidden", f"you may not do this here: it needs {verb}{place}", "ask a lead or administrator")


def out_of_scope(verb: str) -> Unable:
    return Unable(403, "out_of_scope", f"this token is not good for {verb}", "use a token whose scope includes it")


def unauthenticated(refusal: Refusal) -> Unable:
    error = "" if refusal.code == "no_token" else f', error="invalid_token", error_description="{refusal.why}"'
    challenge = f'Bearer realm="corral"{error}'
    return Unable(401, refusal.code, refusal.why, refusal.hint, headers={"WWW-Authenticate": challenge})


def bad_json(why: str, field: str = "") -> Unable:
    return Unable(400, "bad_json", why, "send one JSON document in UTF-8", field)


def fault_view(fault: Any) -> FaultView:
    """A fault of a document, whoever found it."""
    return FaultView(path=tuple(fault.path), code=fault.code, why=redacted(fault.why), hint=redacted(fault.hint))
