"""Scores of nodes: small cases by hand, and quick ways to the same answer against plain ones."""

from random import Random

import pytest

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Demand, TaskDemand, amounts
from corral.core.cluster.topology import NodeSpec, Topology
from corral.policy.placement.scoring import Remembered, best_fit, gpu_milli_left
from corral.policy.placement.seating import Bounds, find_seats
from corral.sim.research.scorers import (
    FragmentationDescent,
    LeastFragmentation,
    PublishedBestFit,
    PublishedDotProduct,
    PublishedPacking,
)
from tests.world import World, demand_of, node_spec, open_capacity, state_of


def node(gpus: int, cpu_milli: int = 64_000, slices: tuple[int, ...] = (), used: int = 0) -> Capacity:
    """One node with GPUs of 1000 MiB: slices of so many MiB on the first ones, ``used`` of the last ones taken."""
    capacity = open_capacity(Topology((), [node_spec("n", gpus, vram_mib=1000, cpu_milli=cpu_milli)]))
    for i, mib in enumerate(slices):
        capacity.take(0, 1 << i, mib, ())
    capacity.take(0, ((1 << used) - 1) << gpus - used, 0, ())
    return capacity


def task(gpus: int = 0, milli: int = 0, cpu_milli: int = 4_000) -> Demand:
    return Demand(task=TaskDemand(gpus=gpus, slice_mib=milli, amounts=amounts({CPU_MILLI: cpu_milli})))


ONE_OR_TWO = [(TaskDemand(gpus=1), 1), (TaskDemand(gpus=2), 1)]
WITH_CPU = [(TaskDemand(gpus=1, amounts=((CPU_MILLI, 4_000),)), 1)]
SLICES = [(TaskDemand(slice_mib=600), 3), (TaskDemand(gpus=1), 1)]

CASES = {
    # (1 - (60/128 + 1/8) / 2) * 100 = 70.3
    "best fit: CPU and GPU left after count half each": (PublishedBestFit(), node(2), task(1), (70, 0b01)),
    # (1 - (60/128 + 1.8/8) / 2) * 100 = 65.3
    "best fit: a slice goes to the fullest GPU that holds it": (
        PublishedBestFit(), node(3, slices=(300, 600)), task(milli=300), (65, 0b010),
    ),
    "best fit: without GPUs only the CPU after counts": (PublishedBestFit(), node(0), task(), (76, 0)),
    # (1 - (64/128 * 4/128 + 2/8 * 1/8) / 2) * 100 = 97.7
    "dot product: what is wanted times what is left": (PublishedDotProduct(), node(2), task(1), (97, 0b01)),
    "packing: a free node of two": (PublishedPacking(), node(2), task(1), (31, 0b01)),
    "packing: two free GPUs of a node in use": (PublishedPacking(), node(4, used=1), task(2), (48, 0b0011)),
    "packing: a GPU in use with 400 left": (PublishedPacking(), node(2, slices=(600,)), task(milli=300), (96, 0b01)),
    "packing: no GPUs, no preference": (PublishedPacking(), node(2), task(), (0, 0)),
    # before: nothing is wasted; after: one GPU wastes 500 and two GPUs waste 1500
    "fragmentation: opening a GPU for half of it": (
        LeastFragmentation(ONE_OR_TWO), node(2), task(milli=500), (-2000, 0b01),
    ),
    # that is 1000 in expectation: 100 / (1 + e)
    "the same in published points": (FragmentationDescent(ONE_OR_TWO), node(2), task(milli=500), (26, 0b01)),
    # before: 500 + 1500; after: 0 + 1000. On the other GPU: 1000 + 1000
    "fragmentation: filling the GPU that is shared": (
        LeastFragmentation(ONE_OR_TWO), node(2, slices=(500,)), task(milli=500), (1000, 0b01),
    ),
    "filling the GPU that is shared in published points": (
        FragmentationDescent(ONE_OR_TWO), node(2, slices=(500,)), task(milli=500), (62, 0b01),
    ),
    # 2000 left in CPU: nobody can use the two GPUs any more; 100 / (1 + e^2)
    "fragmentation: CPU that GPUs need": (
        FragmentationDescent(WITH_CPU), node(2, 8_000), task(cpu_milli=6_000), (11, 0),
    ),
    "fragmentation: CPU that no GPU needs": (
        FragmentationDescent(WITH_CPU), node(2, 12_000), task(cpu_milli=6_000), (50, 0),
    ),
    # before: 3 * 0 + 700; after on the first GPU: 3 * 300 + 300; on the second: 3 * 0 + 1300
    "fragmentation: what is left should be of use": (
        LeastFragmentation(SLICES), node(2, slices=(300,)), task(milli=400), (-500, 0b01),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("scorer", "capacity", "demand", "expected"), CASES.values(), ids=CASES.keys())
def test_a_node_scores(scorer, capacity, demand, expected):
    assert scorer(capacity, demand, 0, -1) == expected


# ---- quick and plain -----------------------------------------------------------------------------------------------

TASKS = (
    TaskDemand(gpus=1, amounts=((CPU_MILLI, 2_000), (MEMORY_MIB, 512))),
    TaskDemand(gpus=2, models=("A100",)),
    TaskDemand(slice_mib=250, amounts=((CPU_MILLI, 1_000),)),
    TaskDemand(slice_mib=600, models=("A100", "T4")),
    TaskDemand(slice_mib=1_500),
    TaskDemand(amounts=((CPU_MILLI, 3_000),)),
)
TYPICAL = [*((each, weight) for weight, each in enumerate(TASKS, start=1)), (TaskDemand(gpus=4), 9)]
SCORERS = {
    "best fit": best_fit,
    "published best fit": PublishedBestFit(),
    "dot product": PublishedDotProduct(),
    "packing": PublishedPacking(),
    "least fragmentation": LeastFragmentation(TYPICAL),
    "fragmentation descent": FragmentationDescent(TYPICAL),
}


def some_capacity(random: Random) -> Capacity:
    nodes: list[NodeSpec] = []
    for n in range(random.randint(3, 12)):
        vram, model = random.choice(((1_000, "T4"), (1_000, "A100"), (2_000, "A100")))
        has = {CPU_MILLI: random.choice((4_000, 16_000)), MEMORY_MIB: 4_096} if random.random() < 0.9 else {}
        nodes.append(node_spec(f"n{n}", random.choice((1, 2, 4)), (), model=model, vram_mib=vram, **has))
    return open_capacity(Topology((), nodes))


def change(capacity: Capacity, random: Random) -> None:
    """Something happens on some node."""
    n = random.randrange(len(capacity.topology.nodes))
    free, everything = capacity.free[n], (1 << len(capacity.topology.nodes[n].gpus)) - 1
    match random.randrange(6):
        case 0:
            capacity.claim(n, free & random.getrandbits(4), ((CPU_MILLI, 500),))
        case 1:
            capacity.unclaim(n, capacity.claimed[n], ())
        case 2:
            capacity.set_up(n, random.random() < 0.8, everything & random.getrandbits(4))
        case _:
            one = random.choice(TASKS)
            found = find_seats(capacity, Demand(task=one), 1, scorer=best_fit)
            if found is not None:
                seat = found.seats[0]
                capacity.take(capacity.topology.number[seat.node], seat.gpus, seat.slice_mib, one.amounts)


@pytest.mark.parametrize("scorer", SCORERS.values(), ids=SCORERS.keys())
@pytest.mark.parametrize("seed", range(4))
def test_remembered_scores_choose_what_plain_ones_choose(scorer, seed):
    """On capacities that change and are undone, two of them in turn, bounded now and then, and for many tasks."""
    random = Random(seed)
    remembered = Remembered(scorer)
    worlds = [some_capacity(random) for _ in range(2)]
    for _ in range(80):
        capacity = worlds[random.random() < 0.2]
        mark = capacity.mark()
        change(capacity, random)
        bounds = Bounds({0: 1}, {}, capacity.free) if random.random() < 0.2 else Bounds({}, {}, ())
        demand = Demand(task=random.choice(TASKS), tasks=random.choice((1, 1, 3)))
        plain = find_seats(capacity, demand, demand.tasks, bounds=bounds, scorer=scorer)
        assert find_seats(capacity, demand, demand.tasks, bounds=bounds, scorer=remembered) == plain
        if random.random() < 0.2:
            capacity.undo(mark)


def plainly_wasted(capacity: Capacity, n: int) -> int:
    """The definition: of every typical task what it leaves of the free GPU, by its weight."""
    gpus, left, total = capacity.topology.nodes[n].gpus, gpu_milli_left(capacity, n), 0
    for one, weight in TYPICAL:
        usable = 0
        if one.wants_gpu and capacity.tasks_by_amounts(n, one.amounts, 1):
            wanted = [one.slice_mib * 1000 / gpu.vram_mib if one.slice_mib else 1000 for gpu in gpus]
            fit = [
                milli for gpu, milli, each in zip(gpus, left, wanted, strict=True) if one.accepts(gpu) and milli >= each
            ]
            usable = sum(fit) if len(fit) >= max(1, one.gpus) else 0
        total += weight * (sum(left) - usable)
    return total


@pytest.mark.parametrize("seed", range(10))
def test_fragmentation_is_what_its_definition_says_before_and_after(seed):
    random = Random(seed)
    capacity, scorer = some_capacity(random), LeastFragmentation(TYPICAL)
    for _ in range(40):
        change(capacity, random)
        n = random.randrange(len(capacity.topology.nodes))
        before = plainly_wasted(capacity, n)
        assert scorer.wasted(capacity, n) == before
        demand = Demand(task=random.choice(TASKS))
        found = find_seats(capacity, demand, 1, scorer=scorer)
        if found is not None:
            seat = found.seats[0]
            n = capacity.topology.number[seat.node]
            score, _ = scorer(capacity, demand, n, capacity.topology.accepted(demand.task)[capacity.topology.kind[n]])
            before, mark = plainly_wasted(capacity, n), capacity.mark()
            capacity.take(n, seat.gpus, seat.slice_mib, demand.task.amounts)
            assert score == before - plainly_wasted(capacity, n)
            capacity.undo(mark)


# ---- by name -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["best_fit", "fgd"])
def test_a_policy_that_scores_keeps_the_empty_node_whole(name):
    world = World(name).rack("a", 2, 4).queue("team")
    for job in ("first", "second", "third"):
        world.submit(job, demand=demand_of(1))
        world.cycle()
    last = world.submit("last", demand=demand_of(4))
    world.cycle()
    assert state_of(last) == "starting"
