"""As whom tasks may run on this machine, by what this process is itself. Starts nothing."""

from __future__ import annotations

import os
import pwd

from corral.backends.base import ACCOUNTLESS
from corral.backends.local.task import isolation

#: Where a process that is root would run a task of nobody in particular.
NO_ACCOUNT = "Corral runs as root there, so the task would run as root"
GIVE_ONE = "give the user an account: corral user set NAME --account ACCOUNT"


SEPARATION = "separation"
ALL_SEE_ALL = (
    "all tasks run as one account and can read one another's environment, files and logs, and the server's data"
)


def why_not_as(account: str) -> str:
    """Why this process cannot run a task as this account; empty: it can. That there is such an account is seen when the
    task starts."""
    if os.geteuid() == 0:
        return "" if account else NO_ACCOUNT
    if not account or account == own_account():
        return ""
    return f"the machine's Corral runs as {own_account()}, not as root, and can run nothing as {account!r}"


def separation(data: str, further: tuple[str, ...]) -> tuple[list[str], str]:
    """What tasks of this process' own account shall not see, and why that cannot be kept from them; both are empty
    where tasks have accounts of their own."""
    if os.geteuid() == 0:
        return [], ""
    why = isolation.works()
    return ([] if why else [data, *further]), why


def lacking(account: str, not_separated: str) -> dict[str, str]:
    """What this machine lacks, as it tells the server. ``account``: for tasks that name none."""
    why = why_not_as(account)
    found = {ACCOUNTLESS: why} if why else {}
    return found | ({SEPARATION: f"{not_separated}; {ALL_SEE_ALL}"} if not_separated else {})


def own_account() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
