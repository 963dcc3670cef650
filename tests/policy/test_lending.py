"""What is lent, over the whole tree: nobody takes what others keep, and nobody is kept from its own because others keep
something."""

from __future__ import annotations

import pytest

from corral.core.cluster.resources import GPU_MILLI
from corral.core.intake.refusal import Refusal
from corral.core.model import Cause, GangState
from corral.core.plan import MakeRoom
from corral.policy.explain.reasons import NotLent
from tests.world import World, demand_of, state_of


def full_of(made: World, queue: str, gpus: int) -> World:
    """So many GPUs are in use by gangs of one GPU each."""
    for at in range(gpus):
        made.run(f"{queue.replace('/', '.')}{at}", queue, demand_of(gpus=1))
    return made


def told_to_leave(made: World) -> dict[str, int]:
    """The decisions of a plan to make room: how many leave, by queue."""
    found: dict[str, int] = {}
    for decision in made.cycle().decisions:
        assert isinstance(decision, MakeRoom), decision
        for victim in decision.victims:
            queue = made.state.gangs[victim.gang].queue
            found[queue] = found.get(queue, 0) + 1
    return found


@pytest.mark.parametrize("guarantee", [None, 0])
def test_an_owner_takes_back_on_a_full_cluster_although_a_third_queue_states_what_it_lends(guarantee):
    made = World().rack("n", 1, 8).queue("a", guarantee=4).queue("b", guarantee=4)
    made.queue("c", lend=0) if guarantee is None else made.queue("c", guarantee=guarantee, lend=0)
    full_of(made, "b", 8)
    owner = made.submit("owner", "a", demand_of(gpus=4))
    assert told_to_leave(made) == {"b": 4}
    assert owner.claim


def test_an_owner_takes_back_from_who_borrows_and_leaves_what_a_third_queue_keeps():
    made = World().rack("n", 1, 10).queue("a", guarantee=4).queue("b", guarantee=4).queue("c", guarantee=2, lend=0)
    full_of(made, "b", 8)  # two are free, and kept for c
    owner = made.submit("owner", "a", demand_of(gpus=4))
    assert told_to_leave(made) == {"b": 4}
    assert owner.claim
    mine = made.submit("mine", "c", demand_of(gpus=2))
    made.cycle()
    assert state_of(mine) is GangState.STARTING


def test_what_is_not_lent_is_named_also_behind_an_exceeded_limit():
    made = World().rack("n", 1, 10).queue("a", limit=4).queue("c", guarantee=8, lend=0)
    tree = made.state.queues
    found = list(tree.shortfalls("a", "ann", {"gpu_milli": 5000}, 0, made.now))
    assert [each.kind for each in found] == ["limit", "not_lent"]
    assert found[1].bound == 2000


def test_what_a_child_does_not_lend_stays_free_within_the_limit_of_its_parent():
    made = World().rack("n", 1, 10).queue("a", limit=4).queue("a/b", guarantee=2, lend=0)
    for n in range(4):
        made.submit(f"a{n}", "a", demand_of(gpus=1))
    made.cycle()
    assert made.state.queues.queues["a"].used["gpu_milli"] == 2000


def test_a_more_important_gang_makes_room_across_queues_although_a_third_queue_keeps_something():
    made = World().rack("n", 1, 10).queue("a").queue("b").queue("c", guarantee=2, lend=0)
    full_of(made, "b", 8)
    urgent = made.submit("urgent", "a", demand_of(gpus=2), priority=5)
    (decision,) = made.cycle().decisions
    assert isinstance(decision, MakeRoom)
    assert [victim.cause for victim in decision.victims] == [Cause.PRIORITY] * 2
    assert urgent.claim


def test_an_owner_that_waits_is_not_told_that_nobody_lends_to_it():
    made = World().rack("n", 1, 8).rack("m", 1, 2).queue("a", guarantee=4).queue("b").queue("c", guarantee=2, lend=0)
    full_of(made, "b", 8)
    owner = made.submit("owner", "a", demand_of(gpus=4))
    hold = made.hold(owner.id)
    assert not [each for each in hold.reasons if isinstance(each, NotLent)]


def test_who_is_outside_the_parent_does_not_take_what_a_nested_queue_keeps():
    made = World().rack("n", 1, 9).queue("org").queue("org/a", guarantee=8, lend=0).queue("c")
    first, second = made.submit("first", "c", demand_of(gpus=1)), made.submit("second", "c", demand_of(gpus=1))
    made.cycle()
    assert (state_of(first), state_of(second)) == (GangState.STARTING, GangState.WAITING)
    mine = made.submit("mine", "org/a", demand_of(gpus=8))
    made.cycle()
    assert state_of(mine) is GangState.STARTING


def test_work_of_a_queue_itself_does_not_take_what_its_children_keep():
    made = World().rack("n", 1, 4).queue("org").queue("org/a", guarantee=2, lend=0)
    first, second = made.submit("first", "org", demand_of(gpus=2)), made.submit("second", "org", demand_of(gpus=1))
    made.cycle()
    assert (state_of(first), state_of(second)) == (GangState.STARTING, GangState.WAITING)


@pytest.mark.parametrize("nodes", [2, 1], ids=["", "also where the cluster has become too small"])
def test_a_guarantee_that_a_queue_has_from_its_children_is_not_a_right_to_what_they_keep(nodes):
    made = World().rack("n", nodes, 4).queue("a").queue("a/b", guarantee=5, lend=0)
    free = 4 * nodes - 5
    gangs = [made.submit(f"own{at}", "a", demand_of(gpus=1)) for at in range(4)]
    made.cycle()
    assert sum(state_of(gang) is not GangState.WAITING for gang in gangs) == max(0, free)


def test_what_a_parent_and_its_children_keep_is_not_counted_twice():
    made = World().rack("n", 1, 12).queue("org", guarantee=8, lend=4).queue("org/a", guarantee=6, lend=0).queue("c")
    tree, now = made.state.queues, made.now
    assert tree.room("c", GPU_MILLI, now) == 6_000  # a keeps 6; that org itself keeps 4 is less
    full_of(made, "org", 3)
    assert tree.room("c", GPU_MILLI, now) == 3_000
    assert tree.room("org/a", GPU_MILLI, now) == 9_000


def test_where_the_cluster_has_become_too_small_for_all_a_guarantee_counts_for_more_than_what_is_not_lent():
    """Otherwise nobody could have anything: each is kept from what it is guaranteed by what the other keeps."""
    made = World().rack("n", 1, 4).queue("a", guarantee=4, lend=0).queue("b", guarantee=4, lend=0)
    mine = made.submit("mine", "a", demand_of(gpus=4))
    made.cycle()
    assert state_of(mine) is GangState.STARTING


def test_of_a_gang_that_is_at_its_limit_also_others_make_room_for_the_seats_it_needs():
    """One leaves for the sake of the limit, another for the sake of the GPUs of the model that is wanted."""
    made = World().rack("n", 1, 2).rack("m", 1, 2, model="A100").queue("a", limit=2).queue("b")
    own = made.run("own", "a", demand_of(gpus=2, models=("H100",)))
    other = made.run("other", "b", demand_of(gpus=2, models=("A100",)))
    made.submit("urgent", "a", demand_of(gpus=2, models=("A100",)), priority=5)
    (decision,) = made.cycle().decisions
    assert isinstance(decision, MakeRoom)
    assert {victim.gang for victim in decision.victims} == {own.id, other.id}


@pytest.mark.parametrize(
    ("queue", "gpus", "is_refused"),
    [("guest", 5, True), ("guest", 4, False), ("owner", 5, False), ("owner", 8, False), ("part", 5, True)],
)
def test_who_wants_more_than_it_will_ever_be_lent_is_refused_at_once(queue, gpus, is_refused):
    made = World().rack("n", 1, 8).queue("guest").queue("owner", guarantee=4, lend=0).queue("part")
    answer = made.ask("large", queue, demand_of(gpus=gpus))
    assert (isinstance(answer, Refusal) and answer.code == "never_lent") is is_refused
