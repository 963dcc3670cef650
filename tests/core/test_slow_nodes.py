"""A gang with a slow rank: what is noted, and when it moves away from the node."""

from __future__ import annotations

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.model import Cause, Gang, GangState
from tests.world import World, demand_of


def training(nodes: int = 3, leaves: bool = True) -> tuple[World, Gang]:
    """Two nodes of a rack have a task each; the others are free."""
    world = World().rack("a", nodes).queue("team")

    return world, world.run("train", "team", demand_of(8, 2), checkpoints=True, leaves_slow_nodes=leaves)


def slow(world: World, gang: Gang, percent: int = 130, task: int = 1) -> str:
    node = gang.seats[task].node
    world.tell(f.Slowed(gang.id, gang.attempt, node, percent))
    return node


def saves(world: World, gang: Gang, step: int = 10) -> None:
    world.wait(1_000)
    world.tell(f.Saved(gang.id, gang.attempt, step))


def state_of(gang: Gang) -> GangState:
    return gang.state


def test_it_moves_after_its_next_checkpoint_and_avoids_the_node():
    world, gang = training()
    node = slow(world, gang)
    assert state_of(gang) is GangState.RUNNING, "not before it has saved"
    saves(world, gang)
    assert state_of(gang) is GangState.STOPPING
    assert gang.eviction is not None
    assert (gang.eviction.cause, gang.eviction.node) == (Cause.MOVE, node)
    world.tell(f.TasksDown(gang.id, gang.attempt, 0b11, 85))
    world.cycle()
    assert gang.attempt == 2
    assert gang.profile.avoid == (node,)
    assert node not in {seat.node for seat in gang.seats}
    assert not gang.retries, "no failure is counted"


@pytest.mark.parametrize(
    ("nodes", "leaves"),
    [
        pytest.param(3, False, id="only jobs that ask for it leave"),
        pytest.param(2, True, id="only if there is a place elsewhere"),
    ],
)
def test_it_stays(nodes: int, leaves: bool):
    world, gang = training(nodes, leaves)
    node = slow(world, gang)
    saves(world, gang)
    assert state_of(gang) is GangState.RUNNING
    assert gang.slow_node == node


def test_it_stays_where_the_other_nodes_are_taken():
    world, gang = training()
    world.run("other", "team", demand_of(8, 1))
    slow(world, gang)
    saves(world, gang)
    assert state_of(gang) is GangState.RUNNING


def test_it_stays_once_the_rank_is_as_fast_as_the_others():
    world, gang = training()
    node = slow(world, gang)
    world.tell(f.Slowed(gang.id, gang.attempt, node, 100))
    saves(world, gang)
    assert state_of(gang) is GangState.RUNNING


def test_stale_reports_change_nothing():
    world, gang = training()
    for attempt, node in ((7, gang.seats[0].node), (1, "a2"), (1, "unknown")):
        before = len(world.journal)
        world.tell(f.Slowed(gang.id, attempt, node, 150))
        assert len(world.journal) == before
    world.tell(f.Slowed(gang.id, 1, gang.seats[0].node, 100))
    assert not any(isinstance(event, e.GangSlowed) for event in world.journal)
