"""Undo restores everything; aggregates never drift."""

from hypothesis import given
from hypothesis import strategies as st

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import amounts
from tests.core.test_capacity import columns as image
from tests.core.test_capacity import recounted
from tests.properties.clusters import capacities

CHANGES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 17), st.integers(0, 255), st.sampled_from([0, 0, 10_000])),
    max_size=25,
)


def change(capacity: Capacity, what: int, n: int, mask: int, slice_mib: int) -> None:
    """One change of any kind that the present state allows."""
    n %= len(capacity.topology.nodes)
    mask &= (1 << len(capacity.topology.nodes[n].gpus)) - 1
    cpu = amounts({"cpu_milli": 500}) if capacity.amount_left(n, "cpu_milli") is not None else ()
    whole = [gpu for gpu in range(mask.bit_length()) if mask >> gpu & 1 and (n, gpu) not in capacity.vram]
    if what == 0:
        free = mask & capacity.free[n]
        capacity.take(n, free & -free if slice_mib else free, slice_mib if free else 0, cpu)
    elif what == 1:
        capacity.give_back(n, sum(1 << gpu for gpu in whole), 0, cpu)
    elif what == 2:
        capacity.claim(n, mask, cpu)
    elif what == 3:
        capacity.unclaim(n, mask, cpu)
    elif what == 4:
        capacity.set_up(n, bool(slice_mib), mask)
    else:
        for (node, gpu), left in list(capacity.vram.items()):
            if left + 10_000 <= 80_000:
                capacity.give_back(node, 1 << gpu, 10_000, ())


@given(capacities(), CHANGES)
def test_undo_restores_everything(capacity, changes):
    before, mark = image(capacity), capacity.mark()
    for each in changes:
        change(capacity, *each)
    capacity.undo(mark)
    assert image(capacity) == before


@given(capacities(), CHANGES, CHANGES)
def test_undo_to_a_later_mark_keeps_what_came_before_it(capacity, first, second):
    for each in first:
        change(capacity, *each)
    kept, mark = image(capacity), capacity.mark()
    for each in second:
        change(capacity, *each)
    capacity.undo(mark)
    assert image(capacity) == kept


@given(capacities(), CHANGES)
def test_aggregates_equal_a_recount(capacity, changes):
    for each in changes:
        change(capacity, *each)
    assert (capacity.rooms, capacity.sizes) == recounted(capacity)


@given(capacities(), CHANGES)
def test_a_gpu_is_free_exactly_when_it_is_up_and_neither_used_nor_claimed(capacity, changes):
    for each in changes:
        change(capacity, *each)
    for n in range(len(capacity.topology.nodes)):
        assert capacity.free[n] == capacity.up[n] & ~capacity.used[n] & ~capacity.claimed[n]
