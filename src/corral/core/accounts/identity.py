"""The account that a job runs as: decided when the job is accepted, checked as long as it exists.

Knows jobs and users, and the site's rules for accounts of machines. A change of a user can suspend the user's jobs
(they are cancelled if that lasts), and undoing it resumes them. It never makes a job run as another account: only an
administrator can do that, by releasing the job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec import Struct

from corral.core import events as e
from corral.core.accounts.accounts import Accounts, User
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import Cause, Gang, GangState, Job, Suspension
from corral.core.state import State

DAY_MS = 86_400_000

#: Why tasks cannot run as this account on the nodes; empty: they can.
CannotRunAs = Callable[[str], str]


class AccountRules(Struct, frozen=True, kw_only=True):
    """``default``: the account for jobs of users without an account of their own; empty: there is none.
    ``cancel_after_ms``: when jobs of a removed or disabled user are cancelled."""

    default: str = ""
    cancel_after_ms: int = DAY_MS


def account_for(accounts: Accounts, name: str, rules: AccountRules, cannot_run_as: CannotRunAs) -> str | Refusal:
    """The account that a job of this user runs as if submitted now; empty: that of the server, which is not root."""
    user = accounts.users.get(name)
    account = rules.default if user is None else _account_of(user, rules)
    why = cannot_run_as(account)
    if not why:
        return account
    if account:
        hint = f"set another account: corral user set {name} --account ACCOUNT"
        return Refusal("cannot_run_as", f"jobs of {name} run as {account!r}, but {why}", hint, "account")
    hint = f"corral user set {name} --account ACCOUNT; or a default for all users: corral up --account ACCOUNT"
    return Refusal("no_account", f"{name} has no account on the nodes, and {why}", hint, "account")


def review(
    state: State,
    accounts: Accounts,
    users: Collection[str] | None,
    rules: AccountRules,
    cannot_run_as: CannotRunAs,
    now_ms: int,
) -> list[e.Event]:
    """Suspend or resume jobs of these users (None: all users), by the current users and rules of the site."""
    if users is not None and not any(
        user in queue.user_jobs for queue in state.queues.queues.values() for user in users
    ):
        return []
    needs_account = bool(cannot_run_as(""))
    found: list[e.Event] = []
    fine: set[tuple[str, str | None]] = set()  # (user, account) that need no change: few pairs cover most jobs
    for job in state.jobs.values():
        if job.suspended is None and (job.user, job.account) in fine:
            continue
        if job.is_over or job.cancelled or (users is not None and job.user not in users):
            continue
        user = accounts.users.get(job.user)
        wanted = rules.default if user is None else _account_of(user, rules)
        if needs_account and not job.account and wanted and user is not None and not user.disabled:
            found.append(e.JobResumed(now_ms, job.id, wanted))  # it had no account and could not run
            continue
        why = _suspension(job, user, wanted, needs_account)
        if why is None and job.suspended is not None:
            found.append(e.JobResumed(now_ms, job.id))
        elif why is not None and why is not job.suspended:
            found += _suspended(state, job, why, rules, now_ms)
        elif why is None:
            fine.add((job.user, job.account))
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
    """Suspend a job. Waiting gangs are not scheduled. Running ones may finish; they are stopped, with grace, if the
    user was removed, or if they are still starting."""
    is_left = why in (Suspension.USER_REMOVED, Suspension.USER_DISABLED)
    if is_left and job.cancel_ms is not None:
        cancel_ms: int | None = job.cancel_ms  # counted from its first suspension
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
    state: State, accounts: Accounts, job_id: str, account: str | Refusal, is_administrator: bool, now_ms: int
) -> list[e.Event] | Refusal:
    """Release a held job. A job whose user has another account now runs as that one, if an administrator releases it.
    ``account``: what a job of its user would run as if submitted now."""
    job = state.jobs.get(job_id)
    if job is None or job.suspended is None:
        return commands.release(state, job_id, now_ms)
    released: list[e.Event] = [e.JobReleased(now_ms, job_id)] if job.held else []
    user = accounts.users.get(job.user)
    if job.suspended is Suspension.USER_REMOVED or user is None:
        hint = f"corral cancel {job_id}, or create the user again: corral user set {job.user}"
        return Refusal("user_removed", f"the user of job {job_id}, {job.user}, was removed", hint)
    if job.suspended is Suspension.USER_DISABLED:
        hint = f"corral user set {job.user} --enable"
        return Refusal("user_disabled", f"the user of job {job_id}, {job.user}, is disabled", hint)
    if job.suspended is Suspension.NO_ACCOUNT:
        hint = f"corral user set {job.user} --account ACCOUNT"
        return Refusal("no_account", f"{job.user} has no account on the nodes", hint)
    if not is_administrator:
        why = (
            f"job {job_id} was accepted to run as {job.account or 'the server'}, but {job.user} has another account now"
        )
        return Refusal("account_changed", why, "ask an administrator to release it, or submit it again")
    if isinstance(account, Refusal):
        return account
    return [*released, e.JobResumed(now_ms, job_id, account)]


def suspension_text(why: Suspension, job: str, user: str, account: str) -> str:
    """The text that explains why a suspended job waits."""
    match why:
        case Suspension.USER_REMOVED:
            return f"its user {user} was removed"
        case Suspension.USER_DISABLED:
            return f"its user {user} is disabled: corral user set {user} --enable"
        case Suspension.ACCOUNT_CHANGED:
            what = f"it was accepted to run as {account or 'the server'}, but {user} has another account now"
            return f"{what}: an administrator can let it run as the new one with corral release {job}"
        case Suspension.NO_ACCOUNT:
            return f"{user} has no account on the nodes: corral user set {user} --account ACCOUNT"


def due(state: State, now_ms: int) -> list[str]:
    """Jobs that were suspended for too long and must be cancelled."""
    jobs = (state.jobs[name] for name in state.suspended)
    return [job.id for job in jobs if job.cancel_ms is not None and job.cancel_ms <= now_ms and not job.cancelled]
