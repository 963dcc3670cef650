"""Who a job runs as, decided when it is accepted; and what a change of its user may do to it: stop it, nothing else."""

from __future__ import annotations

import pytest

from corral.core import events as e
from corral.core.accounts import identity
from corral.core.accounts.accounts import Accounts, UserRemoved, UserSet
from corral.core.accounts.identity import AccountRules, account_for, review
from corral.core.image import from_image, take_image
from corral.core.intake.refusal import Refusal
from corral.core.laws import check
from corral.core.model import Blocker, GangSpec, GangState, JobSpec, QueueSpec, Settings, Suspension
from corral.core.snapshot import Snapshot
from corral.server.journal_state import JournalState
from tests.simulation.changing_cluster import ChangingDriver
from tests.world import World, demand_of

ROOT = "this server is root"
DAY_MS = 86_400_000


def as_root(account: str) -> str:
    return "" if account else ROOT


def as_anybody(_: str) -> str:
    return ""


def people(**accounts: str) -> Accounts:
    found = Accounts()
    for user, account in accounts.items():
        found.apply(UserSet(1, user, account))
    return found


@pytest.mark.parametrize(
    ("account", "default", "is_root", "expected"),
    [
        ("ann-unix", "", True, "ann-unix"),
        ("ann-unix", "research", True, "ann-unix"),
        ("", "research", True, "research"),
        ("", "root", True, "root"),
        ("root", "", True, "root"),
        ("", "", True, "no_account"),
        ("", "", False, ""),
        ("", "research", False, "research"),
    ],
)
def test_what_a_new_job_runs_as(account: str, default: str, is_root: bool, expected: str) -> None:
    rules = AccountRules(default=default)
    found = account_for(people(ann=account), "ann", rules, as_root if is_root else as_anybody)
    assert (found.code if isinstance(found, Refusal) else found) == expected


SPEC = JobSpec(queue="team", gangs=(GangSpec(demand_of(gpus=8)),))


class Harness:
    """A job of ann's, accepted with an account, on a small cluster."""

    def __init__(self, account: str | None = "ann-unix") -> None:
        self.world, self.accounts = World().rack("a", 1).queue("team"), people(ann="ann-unix")
        self.rules, self.cannot_run_as = AccountRules(cancel_after_ms=DAY_MS), as_root
        self.world.apply(e.JobSubmitted(self.world.now, "1", SPEC, "ann", account))
        self.job = self.world.state.jobs["1"]

    @property
    def gang(self) -> GangState:
        return self.world.state.gangs["1/main"].state

    def review(self) -> list[str]:
        now_ms = self.world.now
        events = review(self.world.state, self.accounts, {"ann"}, self.rules, self.cannot_run_as, now_ms)
        self.world.take(events)
        check(self.world.state)
        return [type(event).__name__ for event in events]

    def set(self, account: str = "ann-unix", disabled: bool = False) -> list[str]:
        self.accounts.apply(UserSet(2, "ann", account, disabled))
        return self.review()

    def remove(self) -> list[str]:
        self.accounts.apply(UserRemoved(2, "ann"))
        return self.review()

    def release(self, *, is_administrator: bool = True) -> str:
        account = account_for(self.accounts, "ann", self.rules, self.cannot_run_as)
        found = identity.release(self.world.state, self.accounts, "1", account, is_administrator, self.world.now)
        if isinstance(found, Refusal):
            return found.code
        self.world.take(found)
        return "released"


def test_nothing_follows_where_nothing_has_changed() -> None:
    harness = Harness()
    assert harness.set() == []
    harness.world.cycle()
    assert harness.gang is GangState.STARTING


def test_a_disabled_user_s_job_is_out_of_line_until_the_user_is_back() -> None:
    harness = Harness()
    assert harness.set(disabled=True) == ["JobSuspended"]
    harness.world.cycle()
    assert (harness.gang, harness.job.suspended) == (GangState.WAITING, Suspension.USER_DISABLED)
    assert harness.release() == "user_disabled"
    assert harness.set() == ["JobResumed"]
    harness.world.cycle()
    assert (harness.gang, harness.job.account) == (GangState.STARTING, "ann-unix")


def test_a_removed_user_s_job_waits_for_its_end() -> None:
    harness = Harness()
    assert harness.remove() == ["JobSuspended"]
    assert harness.release() == "user_removed"
    state, now_ms = harness.world.state, harness.world.now
    assert identity.due(state, now_ms + DAY_MS - 1) == []
    assert identity.due(state, now_ms + DAY_MS) == ["1"]


def test_the_time_to_its_end_is_not_drawn_out_by_further_changes() -> None:
    harness = Harness()
    harness.set(disabled=True)
    first = harness.job.cancel_ms
    harness.world.now += 5_000
    harness.remove()
    assert (harness.job.suspended, harness.job.cancel_ms) == (Suspension.USER_REMOVED, first)


@pytest.mark.parametrize(
    ("change", "leaves"),
    [("removed", True), ("disabled", False), ("another account", False)],
)
def test_what_runs_leaves_where_its_user_is_gone_and_may_finish_otherwise(change: str, leaves: bool) -> None:
    harness = Harness()
    harness.world.cycle()
    harness.world.take([e.GangStarted(harness.world.now, "1/main", 1)])
    if change == "removed":
        harness.remove()
    else:
        harness.set("other" if change == "another account" else "ann-unix", disabled=change == "disabled")
    assert harness.gang is (GangState.STOPPING if leaves else GangState.RUNNING)
    assert harness.world.state.gangs["1/main"].blockers & Blocker.SUSPENDED, "and does not start again"


def test_what_was_only_just_placed_is_called_back() -> None:
    harness = Harness()
    harness.world.cycle()
    harness.set(disabled=True)
    assert harness.gang is GangState.STOPPING


def test_another_account_holds_a_job_until_an_administrator_says_that_it_shall_run_as_that() -> None:
    harness = Harness()
    harness.set("other")
    assert (harness.job.suspended, harness.job.account) == (Suspension.ACCOUNT_CHANGED, "ann-unix")
    assert identity.due(harness.world.state, harness.world.now * 1000) == [], "it waits for as long as it takes"
    assert harness.release(is_administrator=False) == "account_changed"
    assert harness.release() == "released"
    assert (harness.job.suspended, harness.job.account) == (None, "other")


def test_no_one_can_release_a_job_to_an_account_as_which_no_machine_can_run_it() -> None:
    harness = Harness()
    harness.cannot_run_as = lambda account: "" if account == "ann-unix" else "no machine can"
    harness.set("other")
    assert harness.release() == "cannot_run_as"
    assert harness.job.suspended is Suspension.ACCOUNT_CHANGED


def test_a_job_accepted_without_an_account_never_runs_as_root() -> None:
    harness = Harness(account="")
    harness.accounts = people(ann="")
    assert harness.review() == ["JobSuspended"]
    assert [str(harness.job.suspended)] == ["no_account"]
    assert harness.release() == "no_account"
    assert harness.set("ann-unix") == ["JobResumed"]
    assert (harness.job.suspended, harness.job.account) == (None, "ann-unix")


@pytest.mark.parametrize("kept", ["event", "image"])
def test_what_was_written_before_accounts_were_fixed_has_the_account_of_its_user(kept: str) -> None:
    known = JournalState.nothing(Settings())
    known.apply(e.QueueSet(1, QueueSpec(name="team")))
    known.apply(UserSet(1, "ann", "ann-unix"))
    known.apply(e.JobSubmitted(2, "1", SPEC, "ann"))
    known.apply(e.JobSubmitted(2, "2", SPEC, "gone"))
    if kept == "image":
        known.state.jobs["1"].account = None
        known = JournalState.unpack(known.pack())
    known.apply(UserSet(3, "ann", "other"))
    assert (known.state.jobs["1"].account, known.state.jobs["2"].account) == ("ann-unix", None)


@pytest.mark.parametrize("seed", range(6))
def test_laws_hold_while_users_come_and_go(seed: int) -> None:
    driver = ChangingDriver(seed, "standard")
    nobody, everybody = Accounts(), Accounts()
    for _ in range(3):
        driver.run(30)
        for job in driver.state.jobs.values():
            everybody.apply(UserSet(1, job.user, job.account or ""))
        for accounts in (nobody, everybody):
            driver.take(review(driver.state, accounts, None, AccountRules(), as_anybody, driver.now))
            check(driver.state)
            assert from_image(take_image(driver.state)).suspended.keys() == driver.state.suspended.keys()
            if accounts is nobody:
                waiting = [g for g in driver.state.gangs.values() if g.state is GangState.WAITING]
                assert all(gang.blockers & Blocker.SUSPENDED for gang in waiting)
                plan = driver.chosen(Snapshot(driver.state, driver.now))
                assert not [each for each in plan.decisions if type(each).__name__ in ("Place", "MakeRoom")]
    assert not driver.state.suspended
