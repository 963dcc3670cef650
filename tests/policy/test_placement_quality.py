"""How good placements are: against an exhaustive solver on small clusters, and over a long stream of work."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from itertools import combinations

import pytest

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import Demand, Seat
from corral.core.cluster.topology import Topology
from corral.policy.placement.seating import find_seats, spread_of
from tests.world import demand_of, node_spec, open_capacity

# ---- against the optimum ------------------------------------------------------------------------------

INSTANCES = 240
Instance = tuple[Capacity, Demand]


def instance(seed: int) -> Instance:
    """Up to ten nodes in two zones of several racks, used at random, and a gang of one to many tasks."""
    rng = random.Random(seed)
    nodes = [
        node_spec(f"z{zone}r{rack}n{i}", 8, (f"z{zone}", f"r{rack}"))
        for zone in range(rng.randint(1, 2))
        for rack in range(rng.randint(1, 3))
        for i in range(rng.randint(1, 2 if zone else 3))
    ]
    capacity = open_capacity(Topology(("zone", "rack"), nodes[:10]))
    for n in range(len(capacity.topology.nodes)):
        capacity.take(n, rng.getrandbits(8) & rng.getrandbits(8) if rng.random() < 0.7 else 0, 0, ())
    gpus = rng.choice((1, 1, 2, 4, 8))
    return capacity, demand_of(gpus, rng.randint(1, max(2, 40 // gpus)))


def exact(capacity: Capacity, demand: Demand) -> tuple[int, int, int] | None:
    """(innermost level, fewest racks, fewest nodes) by trying every set of nodes; None if none will do.

    Fewest racks and fewest nodes are each taken over all placements at the innermost level.
    """
    topology = capacity.topology
    rooms = [mask.bit_count() // demand.task.gpus for mask in capacity.free]
    usable = [n for n, room in enumerate(rooms) if room]
    found: dict[int, tuple[int, int]] = {}
    for size in range(1, len(usable) + 1):
        for chosen in combinations(usable, size):
            if sum(rooms[n] for n in chosen) >= demand.tasks:
                level, racks = lies_in(topology, chosen)
                best = found.get(level, (racks, size))
                found[level] = (min(best[0], racks), min(best[1], size))
    return None if not found else (max(found), *found[max(found)])


def lies_in(topology: Topology, nodes: tuple[int, ...]) -> tuple[int, int]:
    """The innermost level that holds these nodes (one node: a level of its own), and the racks they touch."""
    paths = {topology.nodes[n].path for n in nodes}
    if len(nodes) == 1:
        return 3, 1
    if len(paths) == 1:
        return 2, 1
    return int(len({path[0] for path in paths}) == 1), len(paths)


@cache
def results() -> list[tuple[Instance, tuple[int, int, int], tuple[int, int, int]]]:
    """(instance, what placement gave, the optimum) for every instance that has a solution."""
    found = []
    for seed in range(3 * INSTANCES):
        capacity, demand = instance(seed)
        best, seating = exact(capacity, demand), find_seats(capacity, demand, demand.tasks)
        assert (best is None) == (seating is None), f"seed {seed}"
        if best is not None and seating is not None:
            topology = capacity.topology
            nodes = tuple({topology.number[each.node] for each in seating.seats})
            level, racks = lies_in(topology, nodes)
            found.append(((capacity, demand), (level, racks, len(nodes)), best))
    return found[:INSTANCES]


def test_there_are_enough_instances_of_every_level():
    levels = [best[0] for _, _, best in results()]
    assert len(levels) == INSTANCES
    assert all(levels.count(level) >= 10 for level in range(4))


def test_the_innermost_level_is_always_the_optimum():
    for _, (level, _, _), best in results():
        assert level == best[0]


@pytest.mark.parametrize(("at", "what"), [(1, "racks"), (2, "nodes")], ids=["racks", "nodes"])
def test_no_more_than_five_percent_above_the_fewest(at, what):
    ratios = [given[at] / best[at] for _, given, best in results()]
    mean = sum(ratios) / len(ratios)
    assert mean <= 1.05, f"{what}: {mean:.3f} of the optimum on average, {max(ratios):.2f} at worst"


def test_the_spread_a_plan_states_is_what_it_achieved():
    for (capacity, demand), (_, racks, nodes), _ in results():
        seating = find_seats(capacity, demand, demand.tasks)
        assert seating is not None
        assert spread_of(capacity.topology, seating.seats).domains[2:] == (racks, nodes)


# ---- over time ----------------------------------------------------------------------------------------

RACKS, NODES, GPUS = 6, 4, 8
Placer = Callable[[Capacity, Demand, random.Random], tuple[Seat, ...] | None]


def by_default(capacity: Capacity, demand: Demand, rng: random.Random) -> tuple[Seat, ...] | None:
    found = find_seats(capacity, demand, demand.tasks)
    return None if found is None else found.seats


def one_by_one(pick: Callable[[list[tuple[int, int]], random.Random], int]) -> Placer:
    """Every task by itself on a node that ``pick`` chooses from (free GPUs, node), the tree ignored."""

    def place(capacity: Capacity, demand: Demand, rng: random.Random) -> tuple[Seat, ...] | None:
        mark, seats = capacity.mark(), []
        for _ in range(demand.tasks):
            rooms = [(mask.bit_count(), n) for n, mask in enumerate(capacity.free)]
            rooms = [room for room in rooms if room[0] >= demand.task.gpus]
            if not rooms:
                break
            n = pick(rooms, rng)
            mask = 0
            while mask.bit_count() < demand.task.gpus:
                mask |= (left := capacity.free[n] & ~mask) & -left
            seats.append(Seat(capacity.topology.nodes[n].name, mask))
            capacity.take(n, mask, 0, ())
        capacity.undo(mark)
        return tuple(seats) if len(seats) == demand.tasks else None

    return place


PLACERS: dict[str, Placer] = {
    "default": by_default,
    "best fit": one_by_one(lambda rooms, rng: min(rooms)[1]),
    "worst fit": one_by_one(lambda rooms, rng: min(rooms, key=lambda room: (-room[0], room[1]))[1]),
    "random": one_by_one(lambda rooms, rng: rng.choice(rooms)[1]),
}

#: (GPUs of a task, tasks) and how often: mostly small, now and then several whole nodes
SHAPES = (((1, 1), 8), ((2, 1), 5), ((4, 1), 4), ((8, 1), 2), ((8, 2), 1), ((4, 4), 1))


def largest_that_still_fit(capacity: Capacity) -> int:
    """How many gangs of four whole nodes in one rack could start now."""
    full = (1 << GPUS) - 1
    return sum(
        sum(capacity.free[n] == full for n in range(rack.lo, rack.hi)) // 4 for rack in capacity.topology.by_level[1]
    )


@cache
def fragmentation(name: str) -> tuple[int, int]:
    """(sum over time of the largest gangs that still fit, arrivals turned away) over the same streams."""
    fitting = refused = 0
    for seed in range(6):
        rng = random.Random(seed)
        nodes = [node_spec(f"r{r}n{i}", GPUS, (f"r{r}",)) for r in range(RACKS) for i in range(NODES)]
        capacity = open_capacity(Topology(("rack",), nodes))
        leaving: dict[int, list[tuple[Seat, ...]]] = {}
        for step in range(300):
            for seats in leaving.pop(step, ()):
                for each in seats:
                    capacity.give_back(capacity.topology.number[each.node], each.gpus, 0, ())
            shape = rng.choices([shape for shape, _ in SHAPES], [weight for _, weight in SHAPES])[0]
            lasts = rng.randint(5, 45)
            found = PLACERS[name](capacity, demand_of(*shape), random.Random(seed * 1000 + step))
            if found is None:
                refused += 1
                continue
            for each in found:
                capacity.take(capacity.topology.number[each.node], each.gpus, 0, ())
            leaving.setdefault(step + lasts, []).append(found)
            if step >= 40:
                fitting += largest_that_still_fit(capacity)
    return fitting, refused


def test_the_stream_leaves_room_for_everyone_so_that_the_same_work_is_compared():
    assert fragmentation("default")[1] == fragmentation("best fit")[1] == 0


def test_as_many_of_the_largest_gangs_still_fit_as_with_best_fit():
    assert fragmentation("default")[0] >= fragmentation("best fit")[0]


@pytest.mark.parametrize("other", ["worst fit", "random"])
def test_clearly_more_of_the_largest_gangs_still_fit_than_with(other):
    assert fragmentation("default")[0] >= 1.3 * fragmentation(other)[0]
