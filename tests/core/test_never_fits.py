"""A job that can never run here: it names the resource that is short, what was requested, the most there is."""

import pytest

from corral.core.cluster.resources import Demand, TaskDemand, amounts
from corral.core.intake.never_fits import why_never
from tests.world import World, demand_of


def cluster() -> World:
    return World().rack("a", 2, cpu_milli=8000, memory_mib=65_536).rack("b", 1, model="A100")


def cpus(milli: int, **more: int) -> Demand:
    return Demand(task=TaskDemand(amounts=amounts({"cpu_milli": milli, **more})))


CPUS_SHORT = "a task requests 64 CPUs; the largest node has 8 CPUs"
SHORT = {
    "GPUs of a task": (demand_of(gpus=9), "a task requests 9 GPUs; the largest node has 8"),
    "GPUs of a model": (
        demand_of(gpus=9, models=("A100",)),
        "a task requests 9 A100 GPUs; the largest node has 8",
    ),
    "CPUs of a task": (cpus(64_000), CPUS_SHORT),
    "CPUs and memory of a task": (
        cpus(64_000, memory_mib=9_536_744),
        CPUS_SHORT + "; a task requests 9,313.2 GiB of memory; the largest node has 64 GiB of memory",
    ),
    "what no node has": (
        demand_of(amounts=amounts({"licence": 1})),
        "a task requests 1 licence; no node declares any",
    ),
    "VRAM": (demand_of(vram_mib_min=90_112), "no GPU has 88 GiB of VRAM; the largest has 78.1 GiB"),
    "a range of VRAM": (
        demand_of(vram_mib_max=40_960),
        "no GPU has at most 40 GiB of VRAM; there are GPUs with 78.1 GiB",
    ),
    "GPUs of the cluster": (demand_of(gpus=8, tasks=4), "the job requests 32 GPUs; the whole cluster has 24 GPUs"),
    "nodes with enough GPUs": (
        demand_of(gpus=5, tasks=4),
        "the job requests 4 tasks of 5 GPUs at once; the nodes have room for 3",
    ),
    "racks": (demand_of(tasks=3, spread="rack"), "spread over rack leaves room for 2 of 3 tasks"),
}


@pytest.mark.parametrize(("demand", "why"), SHORT.values(), ids=SHORT.keys())
def test_the_resource_that_is_short_is_named(demand: Demand, why: str) -> None:
    refusal = why_never(cluster().state, demand)
    assert refusal is not None
    assert refusal.why == why
    assert refusal.hint


def test_without_any_gpu_it_says_what_to_do() -> None:
    without = World().rack("a", 1, gpus=0, cpu_milli=8000)
    refusal = why_never(without.state, demand_of(gpus=1))
    assert refusal is not None
    assert (refusal.code, refusal.why) == ("no_gpus", "there are no GPUs here; a task requests 1 GPU")
    assert "corral node join" in refusal.hint
    assert "--fake-gpus" in refusal.hint


def test_without_any_node_it_says_what_to_do() -> None:
    refusal = why_never(World().state, demand_of(gpus=1))
    assert refusal is not None
    assert (refusal.code, refusal.why) == ("no_nodes", "no node has joined this cluster")
    assert "corral node join" in refusal.hint
