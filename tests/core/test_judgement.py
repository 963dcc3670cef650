"""What is blamed when a gang fails: nothing before it is known what came first."""

from __future__ import annotations

from itertools import pairwise

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.model import FailureClass, FirstFailure, Gang, GangState
from tests.world import World, demand_of

LEASE_MS = 10_000


def gang_on_two_nodes() -> tuple[World, Gang]:
    """Two machines of eight GPUs and a third that is free; one task on each of two."""
    world = World().rack("a", 3).queue("team")
    return world, world.run("train", "team", demand_of(8, 2))


def state_of(gang: Gang) -> GangState:
    return gang.state


def on(gang: Gang, task: int) -> str:
    return gang.seats[task].node


def exits(world: World, gang: Gang, task: int, code: int = 1, failure: FailureClass | None = None) -> None:
    world.tell(f.TasksDown(gang.id, gang.attempt, 1 << task, code, failure, on(gang, task)))


def test_peers_that_fail_before_their_node_is_found_lost_are_no_fault_of_the_user():
    """The collectives of the others break at once; that a machine is gone is known a lease later."""
    world, gang = gang_on_two_nodes()
    exits(world, gang, 0)
    assert state_of(gang) is GangState.STOPPING
    world.wait(LEASE_MS)
    world.tell(f.NodeGone(on(gang, 1)))
    assert state_of(gang) is GangState.WAITING
    assert gang.retries == {FailureClass.NODE_LOST: 1}
    world.cycle()
    assert gang.attempt == 2, "and it goes on with what is left"


def test_a_node_that_ends_its_tasks_and_is_lost_then_is_to_blame_for_both():
    world, gang = gang_on_two_nodes()
    exits(world, gang, 1, 143)
    node = on(gang, 1)
    exits(world, gang, 0)
    assert state_of(gang) is GangState.STOPPING, "its seats are held until it is known"
    world.wait(LEASE_MS // 2)
    world.tell(f.NodeGone(node))
    assert gang.retries == {FailureClass.NODE_LOST: 1}


def test_what_no_machine_explains_is_the_users_after_a_lease():
    world, gang = gang_on_two_nodes()
    exits(world, gang, 0)
    exits(world, gang, 1)
    world.wait(LEASE_MS - 1)
    assert state_of(gang) is GangState.STOPPING
    world.wait(1)
    assert state_of(gang) is GangState.FAILED


@pytest.mark.parametrize("known_ms", [11_000, 18_000], ids=["lease of 8 s", "lease of 15 s"])
def test_a_node_is_to_blame_that_is_found_lost_as_late_as_the_lease_allows(known_ms: int):
    world, gang = gang_on_two_nodes()
    node = on(gang, 1)
    for task in (1, 0):
        down = f.TasksDown(gang.id, gang.attempt, 1 << task, 1, None, on(gang, task), judge_ms=known_ms)
        world.tell(down)
    world.wait(known_ms - 1)
    assert state_of(gang) is GangState.STOPPING
    world.tell(f.NodeGone(node))
    assert state_of(gang) is GangState.WAITING
    assert gang.retries == {FailureClass.NODE_LOST: 1}


def test_where_no_other_machine_could_be_the_cause_no_one_waits():
    world = World().rack("a", 2).queue("team")
    one = world.run("one", "team", demand_of(8))
    world.down(one, 1)
    assert state_of(one) is GangState.FAILED
    several = world.run("several", "team", demand_of(4, 2))
    assert on(several, 0) == on(several, 1)
    exits(world, several, 0)
    exits(world, several, 1)
    assert state_of(several) is GangState.FAILED


def test_a_gang_that_succeeds_waits_for_no_one():
    world, gang = gang_on_two_nodes()
    exits(world, gang, 0, 0)
    exits(world, gang, 1, 0)
    assert state_of(gang) is GangState.SUCCEEDED


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_rank_that_was_killed_explains_the_others_who_is_received_first(order: tuple[int, int]):
    world, gang = gang_on_two_nodes()
    for task in order:
        if task == 1:
            exits(world, gang, 1, 137, FailureClass.KILLED)
        else:
            exits(world, gang, 0)
    assert state_of(gang) is GangState.WAITING
    assert gang.retries == {FailureClass.KILLED: 1}


def test_a_job_that_is_killed_again_and_again_is_not_tried_for_ever():
    world = World().rack("a", 1).queue("team")
    gang = world.run("train", "team", demand_of(8))
    for _ in range(10):
        if state_of(gang) is GangState.FAILED:
            break
        world.wait(120_000)
        world.down(gang, 137, failure=FailureClass.KILLED)
        world.wait(120_000)
        world.cycle()
        if state_of(gang) is GangState.STARTING:
            world.up(gang)
    assert state_of(gang) is GangState.FAILED


# ---- starts that fail ------------------------------------------------------------------------------------------------


def test_a_start_that_failed_is_tried_elsewhere_after_a_while():
    world = World().rack("a", 2).queue("team")
    gang = world.submit("train", "team", demand_of(8))
    world.cycle()
    first = on(gang, 0)
    world.down(gang, 126, failure=FailureClass.START_FAILED, node=first)
    world.cycle()
    assert state_of(gang) is GangState.WAITING, "not at once"
    world.wait(10_000)
    world.cycle()
    assert state_of(gang) is GangState.STARTING
    assert on(gang, 0) != first


def test_starts_that_fail_never_count_against_the_user():
    """However often, and where there is no other machine."""
    world = World().rack("a", 1).queue("team")
    gang = world.submit("train", "team", demand_of(8))
    times = []
    for _ in range(12):
        while state_of(gang) is GangState.WAITING:
            world.wait(5_000)
            world.cycle()
        times.append(world.now)
        world.down(gang, 126, failure=FailureClass.START_FAILED, node=on(gang, 0))
    assert state_of(gang) is GangState.WAITING
    pauses = [after - before for before, after in pairwise(times)]
    assert pauses == sorted(pauses)
    assert pauses[-1] >= 60_000


def test_one_start_of_several_that_failed_sends_all_elsewhere():
    world = World().rack("a", 3).queue("team")
    gang = world.submit("train", "team", demand_of(8, 2))
    world.cycle()
    bad = on(gang, 1)
    world.tell(f.TasksUp(gang.id, 1, 0b01))
    exits(world, gang, 1, 126, FailureClass.START_FAILED)
    exits(world, gang, 0, 143)
    assert gang.retries == {FailureClass.START_FAILED: 1}
    world.wait(10_000)
    world.cycle()
    assert bad not in {seat.node for seat in gang.seats}
    assert gang.seats


# ---- the first failure -----------------------------------------------------------------------------------------------


def fails(world: World, gang: Gang, task: int, at_ms: int, said: str, failure: FailureClass | None = None) -> None:
    node = on(gang, task)
    first = FirstFailure(node, task, at_ms, exit_code=task + 1, rank=task, said=said)
    world.tell(f.TasksDown(gang.id, gang.attempt, 1 << task, task + 1, failure, node, first_failure=first))


def ends_of(world: World) -> tuple[list[e.GangStopped], list[e.GangFinished]]:
    stopped = [event for event in world.journal if isinstance(event, e.GangStopped)]
    return stopped, [event for event in world.journal if isinstance(event, e.GangFinished)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_rank_that_failed_first_is_named_whoever_is_heard_first(order: tuple[int, int]):
    world, gang = gang_on_two_nodes()
    node = on(gang, 1)
    for task in order:
        fails(world, gang, task, *((2_000, "connection reset") if task == 0 else (1_000, "ValueError: bad batch")))
    world.wait(LEASE_MS)
    (stopped,), (finished,) = ends_of(world)
    assert stopped.first_failure is not None
    assert (stopped.first_failure.rank, stopped.first_failure.node, stopped.exit_code) == (1, node, 2)
    assert finished.why == f"rank 1 on {node} failed first: ValueError: bad batch"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_plain_exit_beside_a_rank_that_was_killed_is_not_the_first_failure(order: tuple[int, int]):
    world, gang = gang_on_two_nodes()
    for task in order:
        if task == 1:
            fails(world, gang, 1, 2_000, "out of memory", FailureClass.OUT_OF_MEMORY)
        else:
            fails(world, gang, 0, 1_000, "connection reset")  # by a clock that is late
    (stopped,), _ = ends_of(world)
    assert stopped.failure is FailureClass.OUT_OF_MEMORY
    assert stopped.first_failure is None or stopped.first_failure.rank == 1


def test_what_fails_beside_a_lost_node_is_not_the_first_failure():
    world, gang = gang_on_two_nodes()
    fails(world, gang, 0, 1_000, "connection reset")
    world.wait(LEASE_MS)
    world.tell(f.NodeGone(on(gang, 1)))
    (stopped,), _ = ends_of(world)
    assert (stopped.failure, stopped.first_failure) == (FailureClass.NODE_LOST, None)
