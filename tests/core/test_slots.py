"""How many tasks fit where: islands, NVLink domains, spread, slices, amounts that are unknown."""

import pytest

from corral.core.cluster.resources import Demand, TaskDemand, amounts
from corral.core.cluster.slots import could_take, describe, fits, slots
from corral.core.cluster.topology import Topology
from tests.world import demand_of, node_spec, open_capacity


def two_racks(gpus: int = 8, islands: int = 1, level: str = "rack", **has):
    nodes = [node_spec(f"{rack}{i}", gpus, (rack,), islands, **has) for rack in "ab" for i in range(2)]
    return open_capacity(Topology((level,), nodes))


COLUMNS = {
    "whole GPUs divide the node": (two_racks(), demand_of(gpus=3, tasks=9), [2, 2, 2, 2]),
    "a tp group may not span islands": (two_racks(islands=2), demand_of(gpus=3, tasks=9, tp=3), [2, 2, 2, 2]),
    "islands of two hold no group of three": (two_racks(islands=4), demand_of(3, 9, tp=3), [0] * 4),
    "a task of two groups takes a group from each island": (
        two_racks(islands=2), demand_of(gpus=8, tasks=4, tp=4), [1, 1, 1, 1],
    ),
    "a group of four two-GPU tasks needs eight GPUs of one island": (
        two_racks(islands=2), demand_of(gpus=2, tasks=8, tp=8), [0, 0, 0, 0],
    ),
    "a group of two two-GPU tasks fits an island of four": (
        two_racks(islands=2), demand_of(gpus=2, tasks=8, tp=4), [4, 4, 4, 4],
    ),
    "without tensor parallelism a task may span islands": (
        two_racks(islands=4), demand_of(gpus=3, tasks=9), [2, 2, 2, 2],
    ),
    "spread over nodes": (two_racks(), demand_of(tasks=4, spread="node", spread_max=2), [2, 2, 2, 2]),
    "spread over racks cuts each rack as a whole": (
        two_racks(), demand_of(tasks=4, spread="rack", spread_max=3), [3, 0, 3, 0],
    ),
    "amounts bound the tasks": (
        two_racks(cpu_milli=2500), demand_of(tasks=9, amounts=(("cpu_milli", 1000),)), [2] * 4,
    ),
    "an unknown amount allows none": (two_racks(), demand_of(amounts=(("cpu_milli", 1),)), [0, 0, 0, 0]),
    "slices are counted per GPU and never across two": (
        two_racks(gpus=2), Demand(task=TaskDemand(slice_mib=50_000), tasks=9), [2, 2, 2, 2],
    ),
    "tasks without GPUs are bounded by amounts alone": (
        two_racks(cpu_milli=4000),
        Demand(task=TaskDemand(amounts=amounts({"cpu_milli": 1500})), tasks=9),
        [2] * 4,
    ),
    "an NVLink level lets a group span nodes but not domains": (
        two_racks(gpus=4, level="nvlink"), demand_of(gpus=4, tasks=4, tp=8), [1, 1, 1, 1],
    ),
    "whole groups only in each NVLink domain": (
        two_racks(gpus=4, level="nvlink"), demand_of(gpus=4, tasks=6, tp=12), [0, 0, 0, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("capacity", "demand", "expected"), COLUMNS.values(), ids=COLUMNS.keys())
def test_slots(capacity, demand, expected):
    assert slots(capacity, demand) == expected


def test_nodes_to_avoid_have_no_slots():
    assert slots(two_racks(), demand_of(), ["a1", "unknown"]) == [8, 0, 8, 8]


def test_a_shared_gpu_counts_for_slices_and_not_for_whole_gpus():
    capacity = two_racks(gpus=1)
    capacity.take(0, 1, 50_000, ())
    assert slots(capacity, Demand(task=TaskDemand(slice_mib=30_000), tasks=4)) == [1, 2, 2, 2]
    assert slots(capacity, demand_of()) == [0, 1, 1, 1]


FITS = {
    "the whole cluster": (demand_of(gpus=8, tasks=4), True),
    "one task too many": (demand_of(gpus=8, tasks=5), False),
    "spares count": (demand_of(gpus=8, tasks=4, spares=1), False),
    "two whole nodes in a rack": (demand_of(gpus=8, tasks=2, within="rack"), True),
    "three whole nodes in a rack of two": (demand_of(gpus=8, tasks=3, within="rack"), False),
    "eight tasks on one node": (demand_of(tasks=8, within="node"), True),
    "nine tasks on one node of eight": (demand_of(tasks=9, within="node"), False),
    "one task to each rack": (demand_of(tasks=2, spread="rack"), True),
    "three tasks to two racks, one each": (demand_of(tasks=3, spread="rack"), False),
}


@pytest.mark.parametrize(("demand", "expected"), FITS.values(), ids=FITS.keys())
def test_fits(demand, expected):
    capacity = two_racks()
    assert fits(capacity.topology, slots(capacity, demand), demand, demand.tasks) is expected


@pytest.mark.parametrize(("demand", "expected"), FITS.values(), ids=FITS.keys())
def test_the_quick_bound_never_denies_what_fits(demand, expected):
    assert could_take(two_racks(), demand, demand.tasks) or not expected


def test_describe_reads_like_a_sentence_part():
    assert describe(TaskDemand(gpus=1, amounts=amounts({"cpu_milli": 5}))) == "1 GPU, 0.005 CPUs"
    assert describe(TaskDemand(amounts=amounts({"memory_mib": 64, "licence": 1}))) == "1 licence, 64 MiB of memory"
    assert describe(TaskDemand(slice_mib=7)) == "7 MiB of a GPU"
    assert describe(TaskDemand()) == "nothing"
