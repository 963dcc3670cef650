"""The Unix accounts that tasks can run as on this machine, given the account of this process. Starts nothing."""

from __future__ import annotations

import os
import pwd

from corral.runtime.base import ACCOUNTLESS
from corral.runtime.local.task import isolation

#: A root process would run a task without an account as root.
NO_ACCOUNT = "Corral runs as root on this machine, so a task without an account would run as root"
GIVE_ONE = "give the user an account: corral user set NAME --account ACCOUNT"


SEPARATION = "separation"
ALL_SEE_ALL = (
    "all tasks run as one account and can read one another's environment, files and logs, and the server's data"
)


def why_not_as(account: str) -> str:
    """Why this process cannot run a task as this account. Empty: it can. Whether the account exists is checked when the
    task starts."""
    if os.geteuid() == 0:
        return "" if account else NO_ACCOUNT
    if not account or account == own_account():
        return ""
    return f"Corral runs as {own_account()} on this machine, not as root, and cannot run tasks as {account!r}"


def hidden(data: str, further: tuple[str, ...]) -> tuple[list[str], str]:
    """What to hide from tasks that run as this process' own account, and why that is not possible. Both are empty if
    tasks have accounts of their own."""
    if os.geteuid() == 0:
        return [], ""
    why = isolation.works()
    return ([] if why else [data, *further, *_runtime_folders()]), why


def _runtime_folders() -> list[str]:
    """Directories with sockets of programs of this account (container runtimes, its service manager): a task could ask
    those programs to do what it cannot do itself. Only directories that no other account can enter."""
    uid = os.geteuid()
    return [
        place
        for place in dict.fromkeys((f"/run/user/{uid}", os.environ.get("XDG_RUNTIME_DIR", "")))
        if place.startswith("/") and _is_private(place, uid)
    ]


def _is_private(place: str, uid: int) -> bool:
    try:
        found = os.stat(place)
    except OSError:
        return False
    return found.st_uid == uid and not found.st_mode & 0o077


def lacking(account: str, not_separated: str) -> dict[str, str]:
    """What this machine lacks, for its report to the server. ``account``: of tasks without one."""
    why = why_not_as(account)
    found = {ACCOUNTLESS: why} if why else {}
    return found | ({SEPARATION: f"{not_separated}; {ALL_SEE_ALL}"} if not_separated else {})


def own_account() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
