"""Columns of what is free: each change, its inverse, and the aggregates against a recount."""

import random

import pytest

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import TaskDemand, amounts
from corral.core.cluster.topology import Topology
from tests.world import node_spec, open_capacity

CPU = amounts({"cpu_milli": 1000})
COLUMNS = ("open", "up", "used", "claimed", "free", "vram", "left", "pledged", "rooms", "sizes")


def cluster() -> Capacity:
    nodes = [node_spec(f"{rack}{i}", 4, (rack,), cpu_milli=4000) for rack in "ab" for i in range(2)]
    nodes.append(node_spec("c0", 8, ("c",), model="A100"))  # says nothing about CPUs
    return open_capacity(Topology(("rack",), nodes))


def columns(capacity: Capacity) -> dict[str, object]:
    kept = {name: getattr(capacity.copy(), name) for name in COLUMNS}
    kept["pledged"] = {key: value for key, value in capacity.pledged.items() if value}
    return kept


def test_what_is_taken_is_no_longer_free_and_comes_back_when_given_back():
    capacity = cluster()
    before = columns(capacity)
    capacity.take(0, 0b0011, 0, CPU)
    assert capacity.free[0] == 0b1100
    assert capacity.amount_left(0, "cpu_milli") == 3000
    capacity.give_back(0, 0b0011, 0, CPU)
    assert columns(capacity) == before


def test_a_gpu_shared_by_slices_is_free_again_only_when_its_last_slice_is_back():
    capacity = cluster()
    before = columns(capacity)
    for _ in range(2):
        capacity.take(0, 0b0001, 30_000, ())
    assert capacity.vram == {(0, 0): 20_000}
    assert capacity.free[0] == 0b1110
    capacity.give_back(0, 0b0001, 30_000, ())
    assert capacity.vram == {(0, 0): 50_000}
    assert capacity.free[0] == 0b1110
    capacity.give_back(0, 0b0001, 30_000, ())
    assert columns(capacity) == before


def test_shared_slots_offers_only_gpus_with_room_for_the_slice_that_no_one_claims():
    capacity = cluster()
    capacity.take(0, 0b0001, 30_000, ())
    capacity.take(1, 0b0010, 70_000, ())
    capacity.take(2, 0b0100, 10_000, ())
    capacity.claim(2, 0b0100, ())
    assert list(capacity.shared_slots(TaskDemand(slice_mib=20_000))) == [(50_000, 0, 0)]


def test_a_claim_on_a_used_gpu_keeps_it_from_others_once_its_user_has_left():
    capacity = cluster()
    capacity.take(0, 0b0001, 0, ())
    capacity.claim(0, 0b0001, ())
    capacity.give_back(0, 0b0001, 0, ())
    assert capacity.free[0] == 0b1110
    capacity.unclaim(0, 0b0001, ())
    assert capacity.free[0] == 0b1111


def test_an_amount_claimed_is_not_offered_to_newcomers_beyond_what_the_leaving_give_back():
    capacity = cluster()
    capacity.take(0, 0b0001, 0, amounts({"cpu_milli": 3000}))
    capacity.claim(0, 0b0001, amounts({"cpu_milli": 3500}))
    assert capacity.amount_left(0, "cpu_milli") == 1000 - 3500
    capacity.pledge(0, amounts({"cpu_milli": 3000}), -1)  # the holder is evicted
    assert capacity.amount_left(0, "cpu_milli") == 1000 - 500


def test_what_the_leaving_will_give_back_is_not_offered_before_they_have_left():
    capacity = cluster()
    capacity.take(0, 0b0001, 0, amounts({"cpu_milli": 3000}))
    capacity.pledge(0, amounts({"cpu_milli": 3000}), -1)
    assert capacity.amount_left(0, "cpu_milli") == 1000


TASKS = {
    "as many as the scarcest amount allows": (0, {"cpu_milli": 1500}, 9, 2),
    "never more than asked": (0, {"cpu_milli": 1}, 3, 3),
    "none where the capacity is unknown": (4, {"cpu_milli": 1}, 9, 0),
    "none where a name is known nowhere": (0, {"licence": 1}, 9, 0),
    "zero of a known amount bounds nothing": (0, {"cpu_milli": 0}, 9, 9),
    "zero of an unknown amount is still unknown": (4, {"cpu_milli": 0}, 9, 0),
}


@pytest.mark.parametrize(("node", "wanted", "most", "expected"), TASKS.values(), ids=TASKS.keys())
def test_tasks_by_amounts(node, wanted, most, expected):
    assert cluster().tasks_by_amounts(node, amounts(wanted), most) == expected


def test_a_node_that_is_closed_has_nothing_free_and_a_sick_gpu_is_left_out():
    capacity = cluster()
    capacity.set_up(0, True, 0b1101)
    assert capacity.free[0] == 0b1101
    capacity.set_up(0, False, 0b1111)
    assert capacity.free[0] == 0
    assert capacity.up[0] == 0


def test_undo_goes_back_to_the_mark_and_no_further():
    capacity = cluster()
    capacity.take(0, 0b0001, 0, CPU)
    kept = columns(capacity)
    mark = capacity.mark()
    capacity.take(0, 0b0010, 10_000, CPU)
    capacity.claim(1, 0b1111, CPU)
    capacity.set_up(2, False, 0)
    capacity.undo(mark)
    assert columns(capacity) == kept


def test_a_copy_and_its_origin_do_not_see_each_others_changes():
    origin = cluster()
    before = columns(origin)
    twin = origin.copy()
    twin.take(0, 0b0001, 10_000, CPU)
    twin.claim(1, 0b0001, CPU)
    assert columns(origin) == before
    assert columns(twin) != before


def test_the_capacity_of_the_state_has_no_undo_log():
    with pytest.raises(AssertionError, match="only a draft"):
        Capacity(Topology((), ())).mark()


def recounted(capacity: Capacity) -> tuple[list[list[int]], list[int]]:
    topology = capacity.topology
    rooms = [[0] * (topology.gpus_max + 1) for _ in topology.layouts]
    sizes = [0] * len(topology.layouts)
    for n, kind in enumerate(topology.kind):
        free = (capacity.up[n] & ~capacity.used[n] & ~capacity.claimed[n]).bit_count()
        rooms[kind][free] |= 1 << n
        sizes[kind] |= 1 << free
    return rooms, sizes


@pytest.mark.parametrize("seed", range(5))
def test_aggregates_equal_a_recount_after_any_sequence_of_changes(seed):
    rng, capacity, held = random.Random(seed), cluster(), []
    for _ in range(80):
        n = rng.randrange(5)
        free = capacity.free[n]
        if rng.random() < 0.5 and free:
            mask = free & -free
            slice_mib = rng.choice((0, 0, 20_000))
            capacity.take(n, mask, slice_mib, ())
            held.append((n, mask, slice_mib))
        elif rng.random() < 0.6 and held:
            capacity.give_back(*held.pop(rng.randrange(len(held))), ())
        elif rng.random() < 0.5:
            capacity.set_up(n, rng.random() < 0.8, rng.getrandbits(4))
        else:
            (capacity.claim if rng.random() < 0.5 else capacity.unclaim)(n, 1 << rng.randrange(4), ())
        assert (capacity.rooms, capacity.sizes) == recounted(capacity)
