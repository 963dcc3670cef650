"""What every placement keeps to, whatever the cluster looks like."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

from hypothesis import assume, given
from hypothesis import strategies as st

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import Demand, Seat, TaskDemand
from corral.core.cluster.slots import could_take, fits, slots
from corral.core.cluster.topology import Topology
from corral.policy.placement.scoring import best_fit
from corral.policy.placement.seating import FREE, Bounds, choose, find_seats, seats_on, spread_of
from corral.sim.research.scorers import LeastFragmentation
from tests.properties.clusters import capacities, columns, demands, topologies
from tests.world import demand_of


def check_seats(capacity: Capacity, demand: Demand, seats: tuple[Seat, ...], bounds: Bounds = FREE) -> None:
    """Every hard rule of a placement, recomputed from the seats alone."""
    topology, task = capacity.topology, demand.task
    taken: dict[int, int] = {}
    counts: Counter[int] = Counter()
    for each in seats:
        n = topology.number[each.node]
        gpus = topology.nodes[n].gpus
        assert each.gpus.bit_count() == task.gpus
        assert not each.gpus & ~capacity.free[n], "a GPU that is not free"
        assert not each.gpus & taken.get(n, 0), "a GPU twice"
        assert not each.gpus & bounds.barred.get(n, 0), "a GPU that is barred"
        assert all(task.accepts(gpus[i]) for i in range(len(gpus)) if each.gpus >> i & 1)
        taken[n] = taken.get(n, 0) | each.gpus
        counts[n] += 1
    for n, count in counts.items():
        for name, amount in task.amounts:
            left = capacity.amount_left(n, name)
            assert left is not None
            assert left - bounds.amounts.get(n, {}).get(name, 0) >= amount * count
    check_tree(topology, demand, counts)
    check_groups(topology, demand, seats)


def check_tree(topology: Topology, demand: Demand, counts: Counter[int]) -> None:
    if demand.within == "node":
        assert len(counts) == 1
    elif demand.within:
        level = topology.level_index(demand.within)
        assert level is not None
        assert len({topology.above[n][level] for n in counts}) == 1
    if demand.spread:
        level = topology.level_index(demand.spread)
        held: Counter[int] = Counter()
        for n, count in counts.items():
            held[n if level is None else topology.above[n][level]] += count
        assert max(held.values()) <= demand.spread_max


def check_groups(topology: Topology, demand: Demand, seats: tuple[Seat, ...]) -> None:
    """Every ``tp`` consecutive ranks share an NVLink domain: an island, or a domain of the NVLink level."""
    if demand.tp == 1:
        return
    level = topology.nvlink_level
    ranks: list[object] = []
    for each in seats:
        n = topology.number[each.node]
        devices = [i for i in range(each.gpus.bit_length()) if each.gpus >> i & 1]
        islands = [(n, topology.nodes[n].gpus[i].island) for i in devices]
        places = [topology.above[n][level]] * len(devices) if level is not None else sorted(islands)
        ranks += places
    for at in range(0, len(ranks), demand.tp):
        assert len(set(ranks[at : at + demand.tp])) == 1, f"ranks {at}.. lie in {ranks[at : at + demand.tp]}"


@given(capacities(), demands())
def test_seats_keep_every_hard_constraint(capacity, demand):
    found = find_seats(capacity, demand, demand.tasks)
    if found is not None:
        assert (len(found.seats), len(found.spares)) == (demand.tasks, demand.spares)
        check_seats(capacity, demand, found.everything)


@given(capacities(), demands())
def test_seats_are_found_exactly_when_slots_say_that_it_fits(capacity, demand):
    does_fit = fits(capacity.topology, slots(capacity, demand), demand, demand.tasks)
    assert (find_seats(capacity, demand, demand.tasks) is not None) == does_fit


@given(capacities(), demands())
def test_the_quick_bound_never_denies_what_fits(capacity, demand):
    if fits(capacity.topology, slots(capacity, demand), demand, demand.tasks):
        assert could_take(capacity, demand, demand.tasks)


@given(capacities(("nvlink",)), st.integers(1, 4), st.sampled_from([(1, 4), (2, 4), (2, 8), (4, 8), (8, 16)]))
def test_groups_may_span_nodes_of_one_nvlink_domain_and_no_further(capacity, groups, shape):
    gpus, tp = shape
    demand = demand_of(gpus=gpus, tasks=groups * (tp // gpus), tp=tp)
    found = find_seats(capacity, demand, demand.tasks)
    if found is not None:
        check_seats(capacity, demand, found.everything)


@given(capacities(), demands(), st.data())
def test_seats_keep_out_of_what_is_promised_to_others(capacity, demand, data):
    full = [(1 << len(node.gpus)) - 1 for node in capacity.topology.nodes]
    barred = {n: data.draw(st.integers(0, mask)) for n, mask in enumerate(full) if data.draw(st.booleans())}
    kept = {n: {"cpu_milli": 2000} for n in barred}
    bounds = Bounds(barred, kept, capacity.up)
    found = find_seats(capacity, demand, demand.tasks, (), bounds)
    if found is not None:
        check_seats(capacity, demand, found.everything, bounds)
    with patch.object(Bounds, "may_leave", lambda *_: True):
        assert find_seats(capacity, demand, demand.tasks, (), bounds) == found, "the quick no is never wrong"


@given(capacities(), demands(), st.data())
def test_nodes_to_avoid_are_avoided(capacity, demand, data):
    names = [node.name for node in capacity.topology.nodes]
    avoid = data.draw(st.lists(st.sampled_from(names), max_size=3))
    found = find_seats(capacity, demand, demand.tasks, avoid)
    if found is not None:
        assert not {each.node for each in found.everything} & set(avoid)
        check_seats(capacity, demand, found.everything)


@given(capacities(), demands())
def test_one_task_the_fast_way_is_as_good_as_the_general_way(capacity, demand):
    """The same answer to whether it fits, and a node left as tight as the general way leaves it."""
    single = demand_of(demand.task.gpus, 1, tp=min(demand.tp, demand.task.gpus), models=demand.task.models)
    fast = find_seats(capacity, single, 1)
    counts = choose(capacity.topology, slots(capacity, single), single, 1)
    assert (fast is None) == (counts is None)
    if fast is not None and counts is not None:
        general = seats_on(capacity, single, counts, FREE)
        check_seats(capacity, single, fast.seats)
        check_seats(capacity, single, general)
        number = capacity.topology.number
        left = [capacity.free[number[s.node]].bit_count() for s in (*fast.seats, *general)]
        assert left[0] <= left[1], "the fast way takes from the node with fewest free GPUs"


@given(capacities(), st.sampled_from([10_000, 30_000, 50_000]), st.integers(1, 6))
def test_slices_never_pass_the_vram_of_a_gpu(capacity, slice_mib, tasks):
    demand = Demand(task=TaskDemand(slice_mib=slice_mib), tasks=tasks)
    found = find_seats(capacity, demand, tasks)
    if found is None:
        assert sum(slots(capacity, demand)) < tasks
        return
    taken: Counter[tuple[int, int]] = Counter()
    for each in found.seats:
        taken[capacity.topology.number[each.node], each.gpus.bit_length() - 1] += slice_mib
    for (n, gpu), mib in taken.items():
        is_free = capacity.free[n] >> gpu & 1
        assert mib <= (80_000 if is_free else capacity.vram[n, gpu])
        assert is_free or not capacity.claimed[n] >> gpu & 1


@given(st.data())
def test_choose_gives_exactly_what_is_wanted_from_what_each_node_has(data):
    topology = data.draw(topologies())
    column = data.draw(columns(topology))
    wanted = data.draw(st.integers(1, 12))
    within = data.draw(st.sampled_from(["", "rack", "zone", "node"]))
    demand = demand_of(tasks=wanted, within=within)
    counts = choose(topology, column, demand, wanted)
    assert (counts is not None) == fits(topology, column, demand, wanted)
    if counts is not None:
        assert counts == sorted(counts)
        assert sum(count for _, count in counts) == wanted
        assert all(0 < count <= column[n] for n, count in counts)
        check_tree(topology, demand, Counter(dict(counts)))


@given(capacities(), demands())
def test_ranks_follow_the_tree(capacity, demand):
    found = find_seats(capacity, demand, demand.tasks)
    if found is not None:
        numbers = [capacity.topology.number[each.node] for each in found.seats]
        assert numbers == sorted(numbers)


@given(capacities(), demands())
def test_the_spread_is_reported_as_it_is(capacity, demand):
    found = find_seats(capacity, demand, demand.tasks)
    if found is not None:
        topology = capacity.topology
        told = spread_of(topology, found.everything)
        nodes = {topology.number[each.node] for each in found.everything}
        assert told.domains[-1] == len(nodes)
        assert told.domains[0] == 1
        assert list(told.domains) == sorted(told.domains)


@given(capacities(), demands(), st.booleans())
def test_scored_placement_keeps_hard_constraints_and_leaves_the_capacity_as_it_was(capacity, demand, is_best_fit):
    assume(demand.tp == 1)
    scorer = best_fit if is_best_fit else LeastFragmentation([(TaskDemand(gpus=1), 3), (TaskDemand(gpus=8), 1)])
    before = (capacity.free.copy(), capacity.vram.copy())
    found = find_seats(capacity, demand, demand.tasks, scorer=scorer)
    assert (capacity.free, capacity.vram) == before
    assert (found is not None) == (find_seats(capacity, demand, demand.tasks) is not None)
    if found is not None:
        check_seats(capacity, demand, found.everything)
