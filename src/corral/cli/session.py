"""From a command to a server: a client with the user's credentials; its errors become ``Complaint``.

Knows which exit code an error has. Imports the client only when a command runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from corral.cli.errors import BAD_INPUT, NOT_FOUND, REFUSED, TIMED_OUT, UNREACHABLE, Complaint

if TYPE_CHECKING:
    from corral.client.blocking import Client
    from corral.client.errors import ClientError

C = TypeVar("C", bound="Client")

#: Where to find the names that exist, by the code of a refusal.
_WHERE_LISTED = {
    "no_such_job": "corral ps --over --all",
    "no_such_queue": "corral queue",
    "no_such_node": "corral node",
    "no_such_user": "corral user; only administrators see and change others (your roles: corral whoami)",
    "no_such_role": "corral user",
    "no_such_token": "corral token; only administrators see those of others (your roles: corral whoami)",
    "no_such_secret": "corral secret",
    "no_such_fleet": "corral fleet",
    "no_such_batching queue": "corral batch",
}
DEBUG_VARIABLE = "CORRAL_DEBUG"


@contextmanager
def connected(patience_s: float = 20.0) -> Iterator[Client]:
    """A client for one command. Fails at once if no server answers; waits for a server that goes away later."""
    from corral.client.blocking import Client

    with connected_as(Client, patience_s, first_patience_s=0) as client:
        yield client


@contextmanager
def connected_as(kind: type[C], patience_s: float = 20.0, first_patience_s: float | None = None) -> Iterator[C]:
    """The same with a client of this kind, which may also wait for its first answer."""
    from corral.client.errors import ClientError

    try:
        client = kind(patience_s=patience_s, first_patience_s=first_patience_s)
        with client:
            yield client
    except ClientError as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        raise complaint_of(error) from None


def complaint_of(error: ClientError) -> Complaint:
    from corral.client.errors import BadCredentials, NotFound, Problem, Timeout, Unreachable

    if isinstance(error, Problem):
        code = NOT_FOUND if isinstance(error, NotFound) else BAD_INPUT if error.status in (400, 422) else REFUSED
        if error.status >= 500:
            code = UNREACHABLE
        return Complaint(_what(error), error.hint or _hint(error), exit_code=code)
    if isinstance(error, Timeout):
        return Complaint(str(error), error.hint, exit_code=TIMED_OUT)
    code = UNREACHABLE if isinstance(error, BadCredentials | Unreachable) else 1
    return Complaint(str(error), error.hint, exit_code=code)


def _what(error: ClientError) -> str:
    lines = [str(error)]
    lines += [f"{_where(fault.path)}: {fault.why}" + _meant(fault.hint) for fault in getattr(error, "faults", ())]
    return "\n  ".join(lines)


def _where(path: tuple[str | int, ...]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".") or "the document"


def _meant(hint: str) -> str:
    return f" ({hint})" if hint else ""


def _hint(error: ClientError) -> str:
    code = getattr(error, "code", "")
    if code in _WHERE_LISTED:
        return f"list them with: {_WHERE_LISTED[code]}"
    status, request = getattr(error, "status", 0), getattr(error, "request_id", "")
    if status == 401:
        return "ask an administrator for a token, and put it into CORRAL_TOKEN or credentials.json"
    if status == 403:
        return "ask an administrator for a role; yours: corral whoami"
    if status == 404:
        return "it may be gone, or you may not see it; your roles: corral whoami"
    return f"details are in the server log, request {request}" if status >= 500 and request else ""
