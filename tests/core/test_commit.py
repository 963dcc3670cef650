"""A plan may be as old as it likes: what no longer holds is dropped, whole, and nothing is broken."""

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import Seat, amounts
from corral.core.commit import commit
from corral.core.intake import commands
from corral.core.model import Cause, GangState, Health
from corral.core.plan import DropClaim, Evict, Grow, MakeRoom, Place, Plan, Repair, Victim
from tests.world import World, demand_of, seat


def world(nodes: int = 2) -> World:
    return World().rack("a", nodes, 2, cpu_milli=4000).queue("team").queue("other", limit=2)


def committed(made: World, *decisions) -> list[str]:
    """The names of the events that these decisions give. They are applied, and the laws checked."""
    events = commit(made.state, Plan(made.now, tuple(decisions)), made.now)
    made.take(events)
    return [type(event).__name__ for event in events]


WHOLE = (seat("a0", 0, 1), seat("a1", 0, 1))


def pair(made: World, **spec):
    return made.submit("j", demand=demand_of(gpus=2, tasks=2), **spec)


# ---- place --------------------------------------------------------------------------------------------


def test_a_place_that_holds_is_committed():
    made = world()
    gang = pair(made)
    assert committed(made, Place(gang.id, 1, WHOLE)) == ["GangPlaced"]
    assert gang.seats == WHOLE


BAD_PLACES = {
    "an attempt that is over": Place("j/main", 0, WHOLE),
    "an attempt that is not next": Place("j/main", 2, WHOLE),
    "a gang that does not exist": Place("ghost/main", 1, WHOLE),
    "half of the gang": Place("j/main", 1, WHOLE[:1]),
    "one task too many": Place("j/main", 1, (*WHOLE, seat("a0", 0, 1))),
    "spares that were not requested": Place("j/main", 1, WHOLE, WHOLE[:1]),
    "a seat too small": Place("j/main", 1, (WHOLE[0], seat("a1", 0))),
    "a slice instead of GPUs": Place("j/main", 1, (WHOLE[0], Seat("a1", 0b11, 1000))),
    "the same GPUs twice": Place("j/main", 1, (WHOLE[0], WHOLE[0])),
    "a node that is gone": Place("j/main", 1, (WHOLE[0], seat("ghost", 0, 1))),
    "GPUs the node does not have": Place("j/main", 1, (WHOLE[0], seat("a1", 1, 2))),
}


@pytest.mark.parametrize("decision", BAD_PLACES.values(), ids=BAD_PLACES.keys())
def test_a_place_is_dropped_if_it_names(decision):
    made = world()
    gang = pair(made)
    assert committed(made, decision) == []
    assert gang.state is GangState.WAITING


def test_a_place_is_dropped_whole_if_one_of_its_gpus_was_taken():
    made = world()
    gang = pair(made)
    made.run("quick", seats=[seat("a1", 1)])
    assert committed(made, Place(gang.id, 1, WHOLE)) == []


MEANWHILE = {
    "a node was lost": lambda made: made.tell(f.NodeGone("a1")),
    "a node is being drained": lambda made: made.take(commands.drain(made.state, "a1", made.now)),
    "a GPU failed": lambda made: made.tell(f.GpuObserved("a1", 0, Health.FAILED)),
    "the job was held": lambda made: made.take(commands.hold(made.state, "j", made.now)),
    "the job was cancelled": lambda made: made.take(commands.cancel(made.state, "j", made.now)),
    "it was placed already": lambda made: made.cycle(),
    "the node was removed": lambda made: made.take(commands.remove_node(made.state, "a1", made.now)),
    "the queue's limit was lowered": lambda made: made.queue("team", limit=3),
}


@pytest.mark.parametrize("change", MEANWHILE.values(), ids=MEANWHILE.keys())
def test_a_place_is_dropped_if_meanwhile(change):
    made = world()
    gang = pair(made)
    change(made)
    assert committed(made, Place(gang.id, 1, WHOLE)) == []


def test_two_places_that_want_the_same_gpus_are_served_in_the_order_of_the_plan():
    made = world()
    first, second = made.submit("first"), made.submit("second")
    same = (seat("a0", 0),)
    assert committed(made, Place(first.id, 1, same), Place(second.id, 1, same)) == ["GangPlaced"]
    assert (first.state, second.state) == (GangState.STARTING, GangState.WAITING)


def test_two_places_that_together_pass_the_limit_of_their_queue_are_not_both_committed():
    made = world()
    gangs = [made.submit(f"j{i}", "other", demand_of(gpus=2)) for i in range(2)]
    decisions = [Place(gang.id, 1, (WHOLE[i],)) for i, gang in enumerate(gangs)]
    assert committed(made, *decisions) == ["GangPlaced"]


def test_the_same_decision_twice_in_a_plan_is_committed_once():
    made = world()
    gang = pair(made)
    assert committed(made, Place(gang.id, 1, WHOLE), Place(gang.id, 1, WHOLE)) == ["GangPlaced"]


def test_a_place_is_dropped_if_other_amounts_ran_out():
    made = world()
    gang = made.submit("j", demand=demand_of(amounts=amounts({"cpu_milli": 2000})))
    made.run("hog", demand=demand_of(amounts=amounts({"cpu_milli": 3000})), seats=[seat("a0", 0)])
    assert committed(made, Place(gang.id, 1, (seat("a0", 1),))) == []
    assert committed(made, Place(gang.id, 1, (seat("a1", 1),))) == ["GangPlaced"]


def test_slices_of_one_gpu_are_placed_until_it_is_full():
    made = world()
    gangs = [made.submit(f"j{i}", demand=demand_of(gpus=0, slice_mib=30_000)) for i in range(3)]
    decisions = [Place(gang.id, 1, (seat("a0", 0, slice_mib=30_000),)) for gang in gangs]
    assert committed(made, *decisions) == ["GangPlaced", "GangPlaced"]


# ---- make room ----------------------------------------------------------------------------------------


def crowded():
    """A gang of high priority, and two that fill the nodes it wants."""
    made = world()
    low = [made.run(f"low{i}", demand=demand_of(gpus=2), seats=[WHOLE[i]]) for i in range(2)]
    high = pair(made, priority=1)
    victims = tuple(Victim(gang.id, 1, Cause.PRIORITY, 0) for gang in low)
    return made, low, high, MakeRoom(high.id, 1, WHOLE, victims)


def test_room_is_made_and_claimed_as_one():
    made, low, high, decision = crowded()
    assert committed(made, decision) == ["GangEvicted", "GangEvicted", "GangClaimed"]
    assert high.claim == WHOLE
    assert all(gang.eviction is not None and gang.eviction.beneficiary == high.id for gang in low)


def test_a_claim_becomes_seats_only_when_the_victims_have_stopped():
    made, low, high, decision = crowded()
    committed(made, decision)
    assert committed(made, Place(high.id, 1, WHOLE)) == []
    for gang in low:
        made.down(gang, 143)
    assert committed(made, Place(high.id, 1, WHOLE)) == ["GangPlaced"]


def test_what_was_freed_is_held_for_the_claimant():
    made, low, _, decision = crowded()
    committed(made, decision)
    made.down(low[0], 143)
    thief = made.submit("thief", demand=demand_of(gpus=2))
    assert committed(made, Place(thief.id, 1, WHOLE[:1])) == []


def test_a_claimant_sits_on_its_claim_and_nowhere_else():
    made, low, high, decision = crowded()
    committed(made, decision)
    for gang in low:
        made.down(gang, 143)
    assert committed(made, Place(high.id, 1, WHOLE[::-1])) == []


SPOILED = {
    "a victim ended by itself, and its seats went to another": lambda made, low: (
        made.down(low[0]), made.run("next", seats=[seat("a0", 0)]),
    ),
    "a victim began a new attempt": lambda made, low: (made.down(low[0], 85), made.cycle()),
    "a victim is leaving already": lambda made, low: made.take(
        commands.requeue(made.state, "low0", made.now)
    ),
    "a node closed": lambda made, low: made.tell(f.NodeGone("a1")),
    "the claimant was cancelled": lambda made, low: made.take(commands.cancel(made.state, "j", made.now)),
    "the queue may no longer have it": lambda made, low: made.queue("team", limit=1),
}  # fmt: skip


@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_no_one_is_evicted_in_vain_if_meanwhile(spoil):
    made, low, _, decision = crowded()
    spoil(made, low)
    leaving = [gang.id for gang in low if gang.state is GangState.STOPPING]
    assert committed(made, decision) == []
    assert [gang.id for gang in low if gang.state is GangState.STOPPING] == leaving


def test_room_that_was_refused_leaves_nothing_behind_for_the_rest_of_the_plan():
    made, low, high, decision = crowded()
    made.tell(f.NodeGone("a1"))
    single = made.submit("single", demand=demand_of(gpus=2), priority=2)
    room = MakeRoom(single.id, 1, WHOLE[:1], (Victim(low[0].id, 1, Cause.PRIORITY, 0),))
    assert committed(made, decision, room) == ["GangEvicted", "GangClaimed"]
    assert (single.claim, high.claim) == (WHOLE[:1], ())


def test_room_that_was_refused_promises_no_one_the_cpus_of_its_victims():
    made = world()
    victim = made.run("v", demand=demand_of(amounts=amounts({"cpu_milli": 4000})), seats=[seat("a0", 0)])
    made.submit("j", demand=demand_of(gpus=2), priority=1)
    made.submit("k", demand=demand_of(amounts=amounts({"cpu_milli": 4000})), priority=1)
    half = MakeRoom("j/main", 1, (seat("a0", 0),), (Victim(victim.id, 1, Cause.PRIORITY, 0),))
    assert committed(made, half, MakeRoom("k/main", 1, (seat("a0", 1),), ())) == []


def test_victims_have_their_own_grace_to_leave():
    made = world()
    victims = [made.run(f"v{i}", seats=[seat("a0", i)], grace_ms=1000 * (i + 1)) for i in range(2)]
    made.submit("j", demand=demand_of(gpus=2), priority=1)
    told = tuple(Victim(victim.id, 1, Cause.PRIORITY, 0) for victim in victims)
    committed(made, MakeRoom("j/main", 1, (seat("a0", 0, 1),), told))
    assert [gang.eviction and gang.eviction.deadline_ms for gang in victims] == [
        made.now + 1000,
        made.now + 2000,
    ]


def test_a_shared_gpu_is_not_claimed_once_another_user_shares_it():
    made = world(1)
    part = demand_of(gpus=0, slice_mib=10_000)
    victim = made.run("v", demand=part, seats=[seat("a0", 0, slice_mib=10_000)])
    made.submit("j", priority=1)
    late = MakeRoom("j/main", 1, (seat("a0", 0),), (Victim(victim.id, 1, Cause.PRIORITY, 0),))
    made.run("w", demand=part, seats=[seat("a0", 0, slice_mib=10_000)])
    assert committed(made, late) == []


def test_one_victim_is_not_evicted_for_two():
    made, low, high, _ = crowded()
    single = made.submit("single", demand=demand_of(gpus=2), priority=2)
    told = Victim(low[0].id, 1, Cause.PRIORITY, 0)
    first = MakeRoom(single.id, 1, WHOLE[:1], (told,))
    second = MakeRoom(high.id, 1, WHOLE, (told, Victim(low[1].id, 1, Cause.PRIORITY, 0)))
    assert committed(made, first, second) == ["GangEvicted", "GangClaimed"]


def test_a_claim_without_the_seats_its_victims_hold_is_refused():
    made, low, high, _ = crowded()
    decision = MakeRoom(high.id, 1, WHOLE, (Victim(low[0].id, 1, Cause.PRIORITY, 0),))
    assert committed(made, decision) == []


def test_a_claim_of_half_a_gang_is_refused():
    made, low, high, _ = crowded()
    decision = MakeRoom(high.id, 1, WHOLE[:1], (Victim(low[0].id, 1, Cause.PRIORITY, 0),))
    assert committed(made, decision) == []


def test_a_claim_of_too_many_seats_is_refused():
    made, low, _high, _ = crowded()
    victims = tuple(Victim(gang.id, 1, Cause.PRIORITY, 0) for gang in low)
    single = made.submit("single", demand=demand_of(gpus=2), priority=2)
    assert committed(made, MakeRoom(single.id, 1, WHOLE, victims)) == []


def test_a_claim_of_seats_of_the_wrong_size_is_refused():
    made, low, _, _ = crowded()
    single = made.submit("single", demand=demand_of(gpus=2), priority=2)
    decision = MakeRoom(single.id, 1, (seat("a0", 0),), (Victim(low[0].id, 1, Cause.PRIORITY, 0),))
    assert committed(made, decision) == []


# ---- the rest -----------------------------------------------------------------------------------------


def broken():
    made = world(3)
    gang = made.run("j", demand=demand_of(gpus=2, tasks=2), seats=WHOLE)
    made.tell(f.NodeGone("a0"))
    return made, gang


def test_a_repair_keeps_the_survivor_and_begins_a_new_attempt():
    made, gang = broken()
    decision = Repair(gang.id, 2, (seat("a2", 0, 1), WHOLE[1]))
    assert committed(made, decision) == ["GangRepaired"]
    assert (gang.attempt, gang.state) == (2, GangState.STARTING)


def test_a_repair_is_dropped_if_the_new_seat_was_taken():
    made, gang = broken()
    made.run("quick", seats=[seat("a2", 1)])
    assert committed(made, Repair(gang.id, 2, (seat("a2", 0, 1), WHOLE[1]))) == []
    assert gang.state is GangState.BROKEN


def test_a_repair_is_dropped_if_a_survivors_node_was_lost_too():
    made, gang = broken()
    made.tell(f.NodeGone("a1"))
    assert committed(made, Repair(gang.id, 2, (seat("a2", 0, 1), WHOLE[1]))) == []


def test_a_repair_on_the_lost_node_is_dropped():
    made, gang = broken()
    assert committed(made, Repair(gang.id, 2, WHOLE)) == []


def test_an_old_repair_is_dropped_once_the_gang_runs_again():
    made, gang = broken()
    decision = Repair(gang.id, 2, (seat("a2", 0, 1), WHOLE[1]))
    committed(made, decision)
    assert committed(made, decision) == []


def test_an_eviction_names_its_attempt():
    made = world()
    gang = made.run("j")
    assert committed(made, Evict(gang.id, 2, Cause.DRAIN)) == []
    assert committed(made, Evict(gang.id, 1, Cause.DRAIN)) == ["GangEvicted"]
    assert committed(made, Evict(gang.id, 1, Cause.DRAIN)) == []


def test_a_claim_is_dropped_once():
    made, _, high, decision = crowded()
    committed(made, decision)
    assert committed(made, DropClaim(high.id, 0)) == ["ClaimDropped"]
    assert committed(made, DropClaim(high.id, 0)) == []


def elastic():
    made = world(3)
    return made, made.run("j", demand=demand_of(gpus=2, tasks=3, tasks_min=1), seats=WHOLE)


def test_growth_claims_what_it_has_and_more():
    made, gang = elastic()
    grown = (*WHOLE, seat("a2", 0, 1))
    assert committed(made, Grow(gang.id, 1, grown)) == ["GangEvicted", "GangClaimed"]
    made.down(gang, 85)
    made.cycle()
    assert gang.seats == grown


BAD_GROWTH = {
    "without a seat it has": (WHOLE[0], seat("a2", 0, 1)),
    "by a seat too small": (*WHOLE, seat("a2", 0)),
    "to the size it has": WHOLE,
    "beyond the most": (*WHOLE, seat("a2", 0, 1), seat("a2", 0, 1)),
}


@pytest.mark.parametrize("seats", BAD_GROWTH.values(), ids=BAD_GROWTH.keys())
def test_growth_is_dropped_if_it_is(seats):
    made, gang = elastic()
    assert committed(made, Grow(gang.id, 1, seats)) == []


def test_growth_is_dropped_if_the_queue_may_not_have_it():
    made, gang = elastic()
    made.queue("team", limit=5)
    assert committed(made, Grow(gang.id, 1, (*WHOLE, seat("a2", 0, 1)))) == []


def test_an_empty_plan_is_no_event():
    made = world()
    assert commit(made.state, Plan(made.now), made.now) == []
    assert all(not isinstance(event, e.GangEvent) for event in made.journal)
