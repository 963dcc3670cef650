"""A job that has ended can be dropped from memory without effect."""

from corral.core import events as e
from corral.core.apply import apply
from corral.core.cluster.resources import Demand, TaskDemand
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.laws import check
from corral.core.model import After, Dependency, GangSpec, GangState, JobSpec
from tests.simulation.driver import Driver, run_seed


def test_a_job_that_is_not_over_stays():
    driver = Driver(3)
    driver.run(60)
    live = next(job.id for job in driver.state.jobs.values() if not job.is_over)
    answer = commands.forget(driver.state, live, driver.now)
    assert isinstance(answer, Refusal)
    assert answer.code == "job_not_over"
    assert isinstance(commands.forget(driver.state, "nobody", driver.now), Refusal)


def test_nothing_is_left_of_a_job_that_was_forgotten():
    driver = run_seed(5, 200)
    for name in list(driver.state.jobs):
        events = commands.forget(driver.state, name, driver.now)
        assert not isinstance(events, Refusal)
        for event in events:
            apply(driver.state, event)
    check(driver.state)
    assert not driver.state.jobs
    assert not driver.state.gangs
    assert driver.state.next_job > 1
    assert list(driver.state.due(driver.now + 10**9)) == []


def test_a_dependent_still_starts_when_one_of_two_parents_is_forgotten():
    driver = Driver(1)
    state = driver.state
    spec = _one_gpu()
    for name in ("first", "second"):
        driver._command(commands.submit(state, name, spec, "ann", driver.now))
    child = type(spec)(
        queue=spec.queue, gangs=spec.gangs, after=(Dependency("first", After.ANY), Dependency("second", After.ANY))
    )
    driver._command(commands.submit(state, "child", child, "ann", driver.now))
    driver._command(commands.cancel(state, "first", driver.now))
    driver._command(commands.forget(state, "first", driver.now))
    assert "first" not in state.jobs
    assert state.gangs["child/main"].blockers
    driver._command(commands.cancel(state, "second", driver.now))
    assert not state.gangs["child/main"].blockers
    assert state.gangs["child/main"].state is GangState.WAITING
    assert any(isinstance(event, e.JobForgotten) for event in driver.journal)


def test_a_parent_ends_though_its_dependent_was_cancelled_and_forgotten():
    driver = Driver(1)
    state, now = driver.state, driver.now
    driver._command(commands.submit(state, "parent", _one_gpu(), "ann", now))
    child = JobSpec(queue="ops", gangs=_one_gpu().gangs, after=(Dependency("parent", After.ANY),))
    driver._command(commands.submit(state, "child", child, "ann", now))
    for command, name in ((commands.cancel, "child"), (commands.forget, "child"), (commands.cancel, "parent")):
        driver._command(command(state, name, now))
    assert state.jobs["parent"].is_over


def _one_gpu():
    return JobSpec(queue="ops", gangs=(GangSpec(Demand(task=TaskDemand(gpus=1))),))
