"""Histories: what the fold makes of events that are put together by hand, and of the journal of a real engine."""

from __future__ import annotations

import pytest

from corral.core import events as e
from corral.core.cluster.resources import Demand, Gpu, Seat, TaskDemand
from corral.core.cluster.topology import NodeSpec
from corral.core.model import Cause, FailureClass, GangSpec, GangState, JobSpec
from corral.sim.history import Recorder, record
from tests.simulation.driver import Driver

TWO = NodeSpec("a1", tuple(Gpu(f"g{i}", "H100", 80_000) for i in range(2)))


def spec(gpus: int = 1, tasks: int = 1, slice_mib: int = 0, **terms) -> JobSpec:
    demand = Demand(task=TaskDemand(gpus=gpus, slice_mib=slice_mib), tasks=tasks, spares=terms.pop("spares", 0))
    return JobSpec(queue="team", gangs=(GangSpec(demand),), **terms)


def submitted(at_ms: int, job: str, wanted: JobSpec) -> e.JobSubmitted:
    return e.JobSubmitted(at_ms, job, wanted, "ann")


def test_a_run_is_followed_from_its_seats_to_its_end():
    history = record(
        [
            e.NodeAdded(0, TWO),
            submitted(10, "j", spec(2)),
            e.GangPlaced(20, "j/main", 1, (Seat("a1", 3),)),
            e.GangStarted(25, "j/main", 1),
            e.CheckpointCommitted(40, "j/main", 1, 1),
            e.GangEvicted(50, "j/main", 1, Cause.PRIORITY, 80),
            e.GangStopped(60, "j/main", 1, FailureClass.PREEMPTED, 0, 40, 15),
            e.GangRequeued(60, "j/main", 1),
            e.GangPlaced(70, "j/main", 2, (Seat("a1", 3),)),
            e.GangStarted(75, "j/main", 2),
            e.GangStopped(90, "j/main", 2, None, 0, 0, 30),
            e.GangFinished(90, "j/main", 2, GangState.SUCCEEDED),
            e.JobEnded(90, "j", True),
        ]
    )
    job = history.jobs["j"]
    first, second = job.runs
    assert (job.queue, job.user, job.gpu_milli, job.submitted_ms, job.ended_ms) == ("team", "ann", 2000, 10, 90)
    assert job.outcome == "succeeded"
    assert (first.placed_ms, first.started_ms, first.ended_ms, first.saved_ms) == (20, 25, 60, 40)
    assert (first.cause, first.failure, first.lost_gpu_ms, first.is_last) == ("priority", "preempted", 40, False)
    assert (second.attempt, second.gpu_milli, second.nodes, second.is_last) == (2, 2000, ("a1",), True)
    assert (history.begin_ms, history.end_ms, history.events) == (0, 90, 13)


def test_a_repair_ends_one_run_and_begins_another_and_loses_what_was_not_saved():
    history = record(
        [
            e.NodeAdded(0, TWO),
            submitted(0, "j", spec(1, tasks=2)),
            e.GangPlaced(0, "j/main", 1, (Seat("a1", 1), Seat("a1", 2))),
            e.GangStarted(1_000, "j/main", 1),
            e.CheckpointCommitted(4_000, "j/main", 1, 1),
            e.TasksLost(6_000, "j/main", 1, 1, "a1", FailureClass.NODE_LOST),
            e.GangRepaired(7_000, "j/main", 2, (Seat("a1", 1), Seat("a1", 2))),
        ]
    )
    first, second = history.jobs["j"].runs
    assert (first.ended_ms, first.failure, first.lost_gpu_ms) == (7_000, "node_lost", 2 * 3_000)
    assert (second.placed_ms, second.ended_ms, second.failure) == (7_000, None, "")


def test_a_slice_holds_its_part_of_the_vram_and_spares_count_as_held():
    history = record(
        [
            e.NodeAdded(0, TWO),
            submitted(0, "s", spec(0, slice_mib=20_000)),
            submitted(0, "t", spec(1, spares=1)),
            e.GangPlaced(0, "s/main", 1, (Seat("a1", 2, 20_000),)),
            e.GangPlaced(0, "t/main", 1, (Seat("a1", 1),), (Seat("a2", 1),)),
        ]
    )
    assert history.jobs["s"].runs[0].gpu_milli == 250
    (run,) = history.jobs["t"].runs
    assert (run.gpu_milli, run.spares, run.nodes) == (2000, 1, ("a1", "a2"))
    assert history.jobs["t"].gpu_milli == 2000


def test_arrays_and_roles_are_gangs_of_one_job():
    history = record(
        [
            e.NodeAdded(0, TWO),
            submitted(0, "x/y", spec(1, array=(3, 5))),
            e.GangPlaced(1, "x/y[5]/main", 1, (Seat("a1", 1),)),
            e.GangPlaced(2, "x/y[3]/main", 1, (Seat("a1", 2),)),
        ]
    )
    job = history.jobs["x/y"]
    assert (job.gangs, job.gpu_milli) == (2, 2000)
    assert [run.gang for run in job.runs] == ["x/y[5]/main", "x/y[3]/main"]


def test_capacity_follows_nodes_that_come_fall_silent_return_and_go():
    history = record(
        [
            e.NodeAdded(0, TWO),
            e.NodeAdded(0, NodeSpec("a2", TWO.gpus[:1])),
            e.NodeLost(10, "a1"),
            e.NodeReturned(20, "a1"),
            e.NodeRemoved(30, "a2"),
        ]
    )
    assert history.capacity == [(0, 3000), (10, 1000), (20, 3000), (30, 2000)]
    assert history.nodes == {"a1": [(0, 2000), (10, 0), (20, 2000)], "a2": [(0, 1000), (30, 0)]}


def test_a_lost_node_that_is_removed_goes_only_once():
    history = record([e.NodeAdded(0, TWO), e.NodeLost(10, "a1"), e.NodeRemoved(20, "a1")])
    assert history.capacity == [(0, 2000), (10, 0)]


ENDINGS = {
    "all well": ((GangState.SUCCEEDED, GangState.SUCCEEDED), "succeeded"),
    "one failed": ((GangState.SUCCEEDED, GangState.FAILED), "failed"),
    "one failed and the rest was cancelled": ((GangState.FAILED, GangState.CANCELLED), "failed"),
    "cancelled": ((GangState.SUCCEEDED, GangState.CANCELLED), "cancelled"),
}


@pytest.mark.parametrize(("states", "outcome"), ENDINGS.values(), ids=ENDINGS.keys())
def test_the_outcome_of_a_job_is_that_of_its_worst_gang(states, outcome):
    finished = [e.GangFinished(5, f"j[{n}]/main", 1, state) for n, state in enumerate(states)]
    succeeded = all(state is GangState.SUCCEEDED for state in states)
    history = record([submitted(0, "j", spec(array=(0, 1))), *finished, e.JobEnded(5, "j", succeeded)])
    assert history.jobs["j"].outcome == outcome


def test_batches_give_the_same_history_as_one_journal():
    events: list[e.Event] = [
        e.NodeAdded(7, TWO),
        submitted(8, "j", spec()),
        e.GangPlaced(9, "j/main", 1, (Seat("a1", 1),)),
        e.JobHeld(9, "j"),
    ]
    recorder = Recorder()
    for event in events:
        recorder([event])
    recorder([])
    recorder.refuse()
    assert recorder.history.refused == 1
    recorder.history.refused = 0
    assert recorder.history == record(events)


@pytest.mark.parametrize("seed", range(6))
def test_the_history_of_a_wild_run_agrees_with_the_state_it_led_to(seed):
    """Nodes come and go, gangs are preempted, repaired and resized: what each gang was served is in its runs."""
    driver = Driver(seed, check_every=1_000)
    driver.run(150)
    history, state = record(driver.journal), driver.state
    assert history.jobs.keys() >= state.jobs.keys()  # what the state has forgotten stays in the history
    assert history.capacity[-1][1] == state.queues.total.get("gpu_milli", 0)
    served: dict[str, int] = {}
    for job in (history.jobs[name] for name in state.jobs):
        assert job.gangs == len(state.jobs[job.id].gangs)
        assert (job.ended_ms is not None) == state.jobs[job.id].is_over
        assert (job.outcome == "succeeded") == state.jobs[job.id].succeeded
        for run in job.runs:
            if run.ended_ms is not None:
                held_gpu_ms = run.gpu_milli * (run.ended_ms - run.placed_ms) // 1000
                served[run.gang] = served.get(run.gang, 0) + held_gpu_ms
    assert served == {name: gang.served_gpu_ms for name, gang in state.gangs.items() if name in served}
