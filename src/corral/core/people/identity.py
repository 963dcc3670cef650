"""Who a job runs as: decided when it is accepted, checked for as long as it lives.

Knows jobs and users, and what the site says about accounts of machines. A change of a user can stop the user's jobs
(they are suspended, and cancelled if that lasts), and lets them go on when it is taken back. It never makes one run as
somebody else: only an administrator does, by releasing it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec import Struct

from corral.core import events as e
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import Cause, Gang, GangState, Job, Suspension
from corral.core.people.accounts import Accounts, User
from corral.core.state import State

DAY_MS = 86_400_000

#: Why no task can run as this account on the machines there are; empty: it can.
CannotRunAs = Callable[[str], str]


class AccountRules(Struct, frozen=True, kw_only=True):
    """``default``: what jobs of users run as who have no account of their own; empty: there is none.
    ``cancel_after_ms``: how long jobs of a removed or disabled user are kept."""

    default: str = ""
    cancel_after_ms: int = DAY_MS


def account_for(accounts: Accounts, name: str, rules: AccountRules, cannot_run_as: CannotRunAs) -> str | Refusal:
    """What a job that this user submits now will run as; empty: as the server does, which then is not root."""
    user = accounts.users.get(name)
    account = rules.default if user is None else _account_of(user, rules)
    why = cannot_run_as(account)
    if not why:
        return account
    if account:
        hint = f"corral user set {name} --account ACCOUNT names another one"
        return Refusal("cannot_run_as", f"jobs of {name} run as {account!r}, and {why}", hint, "account")
    hint = f"corral user set {name} --account ACCOUNT; or one for everybody: corral up --account ACCOUNT"
    return Refusal("no_account", f"{name} has no account on the machines, and {why}", hint, "account")


def review(
    state: State,
    accounts: Accounts,
    users: Collection[str] | None,
    rules: AccountRules,
    cannot_run_as: CannotRunAs,
    now_ms: int,
) -> list[e.Event]:
    """What follows for the jobs of these users, of all users if None, from how they and the site are now."""
    if users is not None and not any(
        user in queue.user_jobs for queue in state.queues.queues.values() for user in users
    ):
        return []
    needs_account = bool(cannot_run_as(""))
    found: list[e.Event] = []
    for job in state.jobs.values():
        if job.is_over or job.cancelled or (users is not None and job.user not in users):
            continue
        user = accounts.users.get(job.user)
        wanted = rules.default if user is None else _account_of(user, rules)
        if needs_account and not job.account and wanted and user is not None and not user.disabled:
            found.append(e.JobResumed(now_ms, job.id, wanted))  # it had none, and would not have run
            continue
        why = _suspension(job, user, wanted, needs_account)
        if why is None and job.suspended is not None:
            found.append(e.JobResumed(now_ms, job.id))
        elif why is not None and why is not job.suspended:
            found += _suspended(state, job, why, rules, now_ms)
    return found


def _account_of(user: User, rules: AccountRules) -> str:
    return user.account or rules.default


def _suspension(job: Job, user: User | None, wanted: str, needs_account: bool) -> Suspension | None:
    if user is None:
        return Suspension.USER_REMOVED
    if user.disabled:
        return Suspension.USER_DISABLED
    if not job.account and (needs_account or job.suspended is Suspension.NO_ACCOUNT):
        return Suspension.NO_ACCOUNT
    return Suspension.ACCOUNT_CHANGED if job.account != wanted else None


def _suspended(state: State, job: Job, why: Suspension, rules: AccountRules, now_ms: int) -> list[e.Event]:
    """What waits stays out of line. What runs may finish; it is asked to leave, with its grace, where the user is gone,
    and where it has only just been placed."""
    is_left = why in (Suspension.USER_REMOVED, Suspension.USER_DISABLED)
    if is_left and job.cancel_ms is not None:
        cancel_ms: int | None = job.cancel_ms  # the time runs from when it could first not start
    else:
        cancel_ms = now_ms + rules.cancel_after_ms if is_left else None
    gangs = [state.gangs[name] for name in job.gangs]
    dropped: list[e.Event] = [e.ClaimDropped(now_ms, gang.id, gang.attempt) for gang in gangs if gang.claim]
    found: list[e.Event] = [*dropped, e.JobSuspended(now_ms, job.id, why, cancel_ms)]
    for gang in gangs:
        if _leaves(gang, why):
            found += commands.evict(state, gang, Cause.REQUEUE, now_ms)
    return found


def _leaves(gang: Gang, why: Suspension) -> bool:
    if why is Suspension.USER_REMOVED:
        return gang.holds_seats
    return gang.state is GangState.STARTING


def release(
    state: State, accounts: Accounts, job_id: str, rules: AccountRules, is_administrator: bool, now_ms: int
) -> list[e.Event] | Refusal:
    """Let a job go on that somebody holds. One whose user has another account by now goes on as that one, if an
    administrator says so."""
    job = state.jobs.get(job_id)
    if job is None or job.suspended is None:
        return commands.release(state, job_id, now_ms)
    released: list[e.Event] = [e.JobReleased(now_ms, job_id)] if job.held else []
    user = accounts.users.get(job.user)
    if job.suspended is Suspension.USER_REMOVED or user is None:
        hint = f"corral cancel {job_id}, or make the user again: corral user set {job.user}"
        return Refusal("user_removed", f"the user of job {job_id}, {job.user}, was removed", hint)
    if job.suspended is Suspension.USER_DISABLED:
        hint = f"corral user set {job.user} --enable"
        return Refusal("user_disabled", f"the user of job {job_id}, {job.user}, is disabled", hint)
    account = _account_of(user, rules)
    if job.suspended is Suspension.NO_ACCOUNT:
        hint = f"corral user set {job.user} --account ACCOUNT"
        return Refusal("no_account", f"{job.user} has no account on the machines", hint)
    if not is_administrator:
        why = (
            f"job {job_id} was accepted to run as {job.account or 'the server'}, and {job.user} has another account now"
        )
        return Refusal("account_changed", why, "an administrator may release it, or submit it again")
    return [*released, e.JobResumed(now_ms, job_id, account)]


def suspension_text(why: Suspension, job: str, user: str, account: str) -> str:
    """For whoever asks why a job waits."""
    match why:
        case Suspension.USER_REMOVED:
            return f"its user {user} was removed"
        case Suspension.USER_DISABLED:
            return f"its user {user} is disabled: corral user set {user} --enable"
        case Suspension.ACCOUNT_CHANGED:
            what = f"it was accepted to run as {account or 'the server'}, and {user} has another account now"
            return f"{what}: an administrator lets it run as that one with corral release {job}"
        case Suspension.NO_ACCOUNT:
            return f"{user} has no account on the machines: corral user set {user} --account ACCOUNT"


def due(state: State, now_ms: int) -> list[str]:
    """Jobs whose time is over: they were suspended for too long."""
    jobs = (state.jobs[name] for name in state.suspended)
    return [job.id for job in jobs if job.cancel_ms is not None and job.cancel_ms <= now_ms and not job.cancelled]
