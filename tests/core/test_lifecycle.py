"""The state machine of a gang: the table is complete, and every transition in it is really taken."""

from typing import get_args

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.apply import FOLDS, apply
from corral.core.apply_gangs import FOLD_GANGS
from corral.core.intake import commands, gang_changes
from corral.core.lifecycle import TRANSITIONS, diagram, may_follow
from corral.core.model import HOLDING, TERMINAL, Gang, GangState
from corral.core.state import State
from tests.simulation.driver import Driver
from tests.world import World, demand_of, seat

EVENTS = get_args(e.Event)
GANG_EVENTS = get_args(e.GangEvent)
Move = tuple[GangState, type, GangState]
TABLE: set[Move] = {
    (state, event, after) for state, moves in TRANSITIONS.items() for event, nexts in moves.items() for after in nexts
}


def test_every_event_is_folded_by_exactly_one_function():
    assert set(FOLDS) | set(FOLD_GANGS) == set(EVENTS)
    assert not set(FOLDS) & set(FOLD_GANGS)


def test_the_table_speaks_of_every_state_and_every_gang_event():
    assert set(TRANSITIONS) == set(GangState)
    assert {event for moves in TRANSITIONS.values() for event in moves} == set(GANG_EVENTS)


def test_nothing_follows_a_terminal_state_and_everything_else_has_a_way_on():
    for state, moves in TRANSITIONS.items():
        assert bool(moves) == (state not in TERMINAL)


@pytest.mark.parametrize("state", sorted(HOLDING))
def test_every_state_that_holds_seats_can_give_them_back(state):
    assert may_follow(state, e.GangStopped)


def test_an_event_that_does_not_belong_is_met_by_an_assertion():
    made = World().rack("a", 1).queue("team")
    gang = made.submit("j")
    with pytest.raises(AssertionError, match="GangStarted in state waiting"):
        apply(made.state, e.GangStarted(made.now, gang.id, 0))


def test_the_diagram_shows_every_change_of_state():
    lines = diagram().splitlines()
    for state, event, after in TABLE:
        if state is not after:
            assert f"    {state} --> {after}: {event.__name__}" in lines


def moves_in(journal: list[e.Event], state: State) -> set[Move]:
    """The transitions a journal takes."""
    taken = set()
    for event in journal:
        gang = state.gangs.get(event.gang) if isinstance(event, GANG_EVENTS) else None
        before = None if gang is None else gang.state
        apply(state, event)
        if gang is not None and before is not None:
            taken.add((before, type(event), gang.state))
    return taken


def two_nodes_one_gang(**spec) -> tuple[World, Gang]:
    made = World().rack("a", 4).queue("team", guarantee=16).queue("other")
    seats = [seat(f"a{i}", *range(8)) for i in range(3)]
    demand = spec.pop("demand", demand_of(gpus=8, tasks=3))
    return made, made.run("j", demand=demand, seats=seats, **spec)


def a_second_node_is_lost_before_the_first_is_repaired() -> World:
    made, _ = two_nodes_one_gang()
    made.tell(f.NodeGone("a0"))
    made.tell(f.NodeGone("a1"))
    return made


def a_checkpoint_is_reported_by_the_survivors() -> World:
    made, gang = two_nodes_one_gang()
    made.tell(f.NodeGone("a0"))
    made.save(gang, 1)
    return made


def a_survivor_ends_before_the_lost_are_replaced() -> World:
    made, gang = two_nodes_one_gang()
    made.tell(f.NodeGone("a0"))
    made.tell(f.TasksDown(gang.id, gang.attempt, 0b010))
    return made


def a_node_is_lost_under_a_gang_that_leaves() -> World:
    made, gang = two_nodes_one_gang()
    made.take(commands.requeue(made.state, "j", made.now))
    made.tell(f.NodeGone("a0"))
    assert gang.state is GangState.STOPPING
    return made


def a_gang_that_shrinks_is_held() -> World:
    made, gang = two_nodes_one_gang(demand=demand_of(gpus=8, tasks=3, tasks_min=1))
    made.submit("high", demand=demand_of(gpus=8, tasks=3), priority=1)
    made.cycle()
    assert gang.state is GangState.STOPPING
    assert gang.claim, "it is to go on with fewer seats"
    made.take(commands.hold(made.state, "j", made.now))
    return made


def a_task_ends_before_the_others_have_started() -> World:
    made = World().rack("a", 1).queue("team")
    gang = made.submit("j", demand=demand_of(tasks=3))
    made.cycle()
    made.tell(f.TasksDown(gang.id, gang.attempt, 0b001))
    return made


def change_by_itself(made: World, gang: Gang) -> World:
    for change in (gang_changes.hold, gang_changes.release, gang_changes.cancel):
        made.take(change(made.state, [gang.id], made.now))
    return made


def a_gang_is_held_released_and_cancelled_while_it_starts() -> World:
    made = World().rack("a", 1).queue("team")
    gang = made.submit("j")
    made.cycle()
    made.take(gang_changes.change_priority(made.state, [gang.id], 3, made.now))
    return change_by_itself(made, gang)


def a_gang_is_held_released_and_cancelled_while_it_runs() -> World:
    made, gang = two_nodes_one_gang()
    made.take(gang_changes.change_priority(made.state, [gang.id], 3, made.now))
    return change_by_itself(made, gang)


def a_gang_is_held_released_and_cancelled_while_it_is_broken() -> World:
    made, gang = two_nodes_one_gang()
    made.tell(f.NodeGone("a0"))
    made.take(gang_changes.change_priority(made.state, [gang.id], 3, made.now))
    return change_by_itself(made, gang)


def a_gang_is_held_released_and_cancelled_while_it_leaves() -> World:
    made, gang = two_nodes_one_gang()
    made.take(commands.requeue(made.state, "j", made.now))
    made.take(gang_changes.change_priority(made.state, [gang.id], 3, made.now))
    return change_by_itself(made, gang)


def a_gang_waits_for_a_slow_rank() -> World:
    made, gang = two_nodes_one_gang()
    made.tell(f.Slowed(gang.id, gang.attempt, gang.seats[0].node, 130))
    return made


RARE = (
    a_gang_waits_for_a_slow_rank,
    a_gang_is_held_released_and_cancelled_while_it_starts,
    a_gang_is_held_released_and_cancelled_while_it_runs,
    a_gang_is_held_released_and_cancelled_while_it_is_broken,
    a_gang_is_held_released_and_cancelled_while_it_leaves,
    a_task_ends_before_the_others_have_started,
    a_second_node_is_lost_before_the_first_is_repaired,
    a_checkpoint_is_reported_by_the_survivors,
    a_survivor_ends_before_the_lost_are_replaced,
    a_node_is_lost_under_a_gang_that_leaves,
    a_gang_that_shrinks_is_held,
)

#: A broken gang is repaired or evicted; it does not stop by itself.
NEVER_TAKEN: set[Move] = {(GangState.BROKEN, e.GangStopped, GangState.WAITING)}


def test_every_transition_of_the_table_is_taken_and_no_other():
    taken: set[Move] = set()
    for rare in RARE:
        made = rare()
        taken |= moves_in(made.journal, State(made.state.settings))
    for seed in range(12):
        driver = Driver(seed, check_every=1_000_000)
        driver.run(400)
        taken |= moves_in(driver.journal, State(driver.state.settings))
    missing = sorted(f"{state} {event.__name__} {after}" for state, event, after in TABLE - NEVER_TAKEN - taken)
    assert not missing
    assert taken <= TABLE - NEVER_TAKEN
