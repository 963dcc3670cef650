"""Error answers: statuses and stable codes, without internal details.

Knows refusals and faults. Must not know the requesting user. Unexpected errors are not described here: they are a 500
with a request id, and the details are in the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from corral.core.accounts.accounts import Role
from corral.core.intake.refusal import Refusal
from corral.server.auth import TABLE, Verb, redacted
from corral.wire.api import FaultView, ProblemView

PROBLEM_TYPE = b"application/problem+json"

#: Refusals that depend on the current state: the same request may be accepted later. All others are request errors.
_OF_THE_PRESENT = frozenset(
    {
        "already_cordoned",
        "already_drained",
        "cannot_hold",
        "dependency_failed",
        "job_exists",
        "job_over",
        "last_administrator",
        "node_in_use",
        "not_cordoned",
        "not_drained",
        "not_held",
        "not_running",
        "planner_away",
        "planner_failed",
        "quarantined",
        "queue_full",
        "queue_not_empty",
        "token_exists",
        "too_many_jobs",
        "too_many_tokens",
    }
)

#: Refusals of users who have the right, but not to this extent.
_OF_RIGHTS = frozenset({"bound_not_given", "guarantee_not_given"})


class ApiError(Exception):
    """Ends a request with an error answer. Holds its content and its headers."""

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
        self.status = status
        self.code = code
        self.detail, self.field = redacted(detail), redacted(field)  # both may repeat what was sent
        self.hint = hint
        self.faults = tuple(faults)
        self.headers = dict(headers or {})

    def problem(self, request_id: str) -> ProblemView:
        return ProblemView(
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


def refused(refusal: Refusal) -> ApiError:
    """The answer for a refusal of the core or of the table of rights."""
    status = 507 if refusal.code == "disk_full" else 403 if refusal.code in _OF_RIGHTS else 422
    status = 409 if refusal.code in _OF_THE_PRESENT else status
    return ApiError(status, refusal.code, refusal.why, refusal.hint, refusal.field)


def not_found(kind: str, name: str) -> ApiError:
    """It does not exist, or the user may not see it: the answer is the same."""
    return ApiError(404, f"no_such_{kind}", f"there is no {kind} {name[:100]!r}")


def forbidden(verb: str, where: str = "") -> ApiError:
    suffix = f" in {where}" if where else ""
    roles = [role for role in reversed(Role) if role in TABLE.get(Verb(verb), {})]
    one_of = " or ".join(filter(None, (", ".join(roles[:-1]), roles[-1])))
    hint = f"it needs the role {one_of}{suffix}; ask an administrator. Your roles: corral whoami"
    return ApiError(403, "forbidden", f"you do not have the right {verb}{suffix}", hint)


def out_of_scope(verb: str) -> ApiError:
    why = f"the scope of this token does not include {verb}"
    return ApiError(403, "out_of_scope", why, "use a token whose scope includes it")


def unauthenticated(refusal: Refusal) -> ApiError:
    error = "" if refusal.code == "no_token" else f', error="invalid_token", error_description="{refusal.why}"'
    challenge = f'Bearer realm="corral"{error}'
    return ApiError(401, refusal.code, refusal.why, refusal.hint, headers={"WWW-Authenticate": challenge})


def bad_json(why: str, field: str = "") -> ApiError:
    return ApiError(400, "bad_json", why, "send one JSON document in UTF-8", field)


def fault_view(fault: Any) -> FaultView:
    """The answer type for an error in a document."""
    return FaultView(path=tuple(fault.path), code=fault.code, why=redacted(fault.why), hint=redacted(fault.hint))
