"""Amounts and demands: canonical forms, and unknown apart from zero."""

import pytest

from corral.core.cluster.resources import GPU_MILLI, Demand, Gpu, TaskDemand, amount_of, amounts
from tests.world import demand_of


def test_amounts_are_sorted_so_that_equal_amounts_are_equal_values():
    assert amounts({"b": 1, "a": 2}) == amounts([("a", 2), ("b", 1)]) == (("a", 2), ("b", 1))


def test_an_amount_that_is_not_stated_is_unknown_and_not_zero():
    stated = amounts({"cpu_milli": 0})
    assert amount_of(stated, "cpu_milli") == 0
    assert amount_of(stated, "memory_mib") is None


H100 = Gpu("g", "H100", 80_000)

ACCEPTANCE = {
    "a task that names no model takes any": (TaskDemand(gpus=1), True),
    "a named model is taken": (TaskDemand(gpus=1, models=("A100", "H100")), True),
    "another model is not": (TaskDemand(gpus=1, models=("A100",)), False),
    "exactly the least VRAM is enough": (TaskDemand(gpus=1, vram_mib_min=80_000), True),
    "a MiB less than the least is not": (TaskDemand(gpus=1, vram_mib_min=80_001), False),
    "exactly the most VRAM is allowed": (TaskDemand(gpus=1, vram_mib_max=80_000), True),
    "a MiB above the most is not": (TaskDemand(gpus=1, vram_mib_max=79_999), False),
    "a slice as large as the GPU is taken": (TaskDemand(slice_mib=80_000), True),
    "a slice larger than the GPU is not": (TaskDemand(slice_mib=80_001), False),
}


@pytest.mark.parametrize(("task", "expected"), ACCEPTANCE.values(), ids=ACCEPTANCE.keys())
def test_accepts(task, expected):
    assert task.accepts(H100) is expected


SIZES = {
    "a fixed gang has one size": (demand_of(tasks=4), [4]),
    "an elastic gang steps down from the most to the fewest": (
        demand_of(tasks=8, tasks_min=2, step=3),
        [8, 5, 2],
    ),
    "a step of one gives every size": (demand_of(tasks=3, tasks_min=1), [3, 2, 1]),
}


@pytest.mark.parametrize(("demand", "sizes"), SIZES.values(), ids=SIZES.keys())
def test_sizes(demand, sizes):
    assert list(demand.sizes()) == sizes
    assert demand.smallest == sizes[-1]
    assert demand.is_elastic == (len(sizes) > 1)


CHUNKS = {
    "no tensor parallelism": (8, 1, 1),
    "a group inside a task": (8, 4, 1),
    "a group that is a task": (8, 8, 1),
    "a group of four tasks": (2, 8, 4),
    "a group of eight single-GPU tasks": (1, 8, 8),
}


@pytest.mark.parametrize(("gpus", "tp", "chunk"), CHUNKS.values(), ids=CHUNKS.keys())
def test_chunk_is_the_number_of_tasks_a_group_spans(gpus, tp, chunk):
    assert demand_of(gpus=gpus, tasks=8, tp=tp).chunk == chunk


def test_equal_demands_are_one_key():
    assert len({demand_of(gpus=2, within="rack"), demand_of(gpus=2, within="rack"), Demand(task=TaskDemand(1))}) == 2


def test_spares_are_charged_like_tasks():
    demand = demand_of(gpus=2, tasks=3, spares=1, amounts=amounts({"cpu_milli": 500}))
    assert demand.charge(3) == {GPU_MILLI: 8000, "cpu_milli": 2000}
