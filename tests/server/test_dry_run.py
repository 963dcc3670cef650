"""A dry run works on a copy that is thrown away: whatever happens in it, the planner's state is as before."""

import os
import signal
import time

import msgspec
import pytest
from msgspec import structs

from corral.core.accounts.accounts import Accounts
from corral.core.engine import apply_all
from corral.core.intake.commands import submit_many
from corral.core.intake.refusal import Refusal
from corral.core.model import After, Dependency, GangSpec, JobSpec
from corral.core.plan import Place, Plan
from corral.core.snapshot import Snapshot
from corral.policy.catalog import standard
from corral.server.journal_state import JournalState
from corral.server.planner import pipe_frames, process
from corral.server.planner.forked import TrialFailed
from corral.server.planner.process import PlannerProcess
from corral.server.planner.questions import PlannerAnswer, PlannerQuestion
from tests.world import World, demand_of


def world() -> World:
    made = World().rack("a", 2, gpus=4).queue("team")
    made.run("1", demand=demand_of(gpus=4), name="nightly")
    made.submit("2", demand=demand_of(gpus=4, tasks=2))
    return made


def planner_of(made: World, policy=None, timeout_s: float = 60.0) -> PlannerProcess:
    planner = PlannerProcess(policy or standard(), timeout_s)
    planner.answer(pipe_frames.BEGIN, JournalState(made.state, Accounts()).pack())
    return planner


def job(gpus: int = 1, **spec: object) -> JobSpec:
    return JobSpec(queue="team", gangs=(GangSpec(demand_of(gpus=gpus)),), **spec)  # type: ignore[arg-type]


def tried(planner: PlannerProcess, made: World, **specs: JobSpec) -> PlannerAnswer:
    question = PlannerQuestion(made.now, user="ann", specs={name[1:]: spec for name, spec in specs.items()})
    answer = planner.answer(pipe_frames.TRY, msgspec.json.encode(question))
    assert answer is not None
    return msgspec.json.decode(answer, type=PlannerAnswer)


def test_the_answer_is_what_the_policy_plans_after_a_submission():
    made = world()
    answer = tried(planner_of(made), made, j3=job(time_limit_ms=60_000), j4=job(gpus=4))
    made.take(submit_many(made.state, {"3": job(time_limit_ms=60_000), "4": job(gpus=4)}, "ann", made.now))
    decisions = {each.gang: each for each in standard()(made.snapshot()).decisions}
    assert [each.gang for each in answer.prospects] == ["3/main", "4/main"]
    placed = decisions["3/main"]
    assert isinstance(placed, Place)
    assert (answer.prospects[0].seats, answer.prospects[0].starts_ms) == (placed.seats, made.now)
    assert "4/main" not in decisions
    assert answer.prospects[1].hold is not None


@pytest.mark.parametrize(
    "spec",
    [
        job(),
        job(gpus=4),
        job(name="nightly", singleton=True),
        job(after=(Dependency("1", After.OK),)),
        job(begin_ms=2_000_000, deadline_ms=9_000_000),
        job(array=(0, 1, 2), array_parallel=1),
    ],
    ids=["starts", "waits", "singleton", "dependent", "later", "array"],
)
def test_nothing_is_left_of_it(spec):
    made = world()
    planner = planner_of(made)
    before = planner.answer(pipe_frames.IMAGE, b"")
    plan = structs.replace(planner.policy(Snapshot(planner.state, made.now)), why=None)
    tried(planner, made, j3=spec)
    assert planner.answer(pipe_frames.IMAGE, b"") == before
    assert structs.replace(planner.policy(Snapshot(planner.state, made.now)), why=None) == plan


def test_a_refused_job_is_refused():
    made = world()
    refusal = tried(planner_of(made), made, j3=job(gpus=5)).refusal
    assert refusal is not None


def poisoned(snapshot: Snapshot):
    names = {snapshot.state.jobs[name].spec.name for name in snapshot.state.jobs}
    if "raises" in names:
        raise KeyError("a fault of the policy")
    if "hangs" in names:
        time.sleep(3600)
    if "crashes" in names:
        os.kill(os.getpid(), signal.SIGKILL)
    return standard()(snapshot)


@pytest.mark.parametrize(
    ("name", "what"),
    [("raises", "a fault of the policy"), ("hangs", "no plan within"), ("crashes", "ended with status 9")],
)
def test_a_dry_run_that_fails_leaves_the_planner_as_it_was(name, what):
    made = world()
    planner = planner_of(made, poisoned, timeout_s=2.0)
    before = planner.answer(pipe_frames.IMAGE, b"")
    with pytest.raises(TrialFailed, match=what):
        tried(planner, made, j3=job(name=name))
    assert planner.answer(pipe_frames.IMAGE, b"") == before
    assert tried(planner, made, j3=job()).prospects[0].seats


def test_the_last_plan_says_why_a_gang_waits_as_long_as_nothing_has_happened(monkeypatch):
    made, plans, decide = world(), [], standard()

    def counted(snapshot: Snapshot) -> Plan:
        plans.append(decide(snapshot))
        return plans[-1]

    monkeypatch.setattr(process, "smallest_changes", lambda *_: [])
    planner = planner_of(made, counted)
    plan = planner.answer(pipe_frames.PLAN, msgspec.json.encode(made.now))
    assert plan is not None
    assert msgspec.json.decode(plan, type=Plan) == structs.replace(plans[0], why=None)
    question = PlannerQuestion(made.now, gang="2/main")
    assert planner.why(question) == planner.why(question)
    assert len(plans) == 1
    events = submit_many(planner.state, {"3": job()}, "ann", made.now)
    assert not isinstance(events, Refusal)
    apply_all(planner.state, events, made.now)
    planner.why(question)
    assert len(plans) == 2
