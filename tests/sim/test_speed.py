"""Speed by distance: the outermost level that a job crosses counts, and what NVLink reaches is near."""

from __future__ import annotations

import pytest

from corral.core import apply as folding
from corral.core.cluster.resources import Demand, Seat, TaskDemand
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import GangSpec, JobSpec, QueueSpec, Settings
from corral.core.state import State
from corral.sim.speed import DEFAULT_SLOWDOWN, ByDistance, Slowdown
from tests.sim.runs import HOUR, Told, cluster, job

EIGHT, FOUR = 0xFF, 0x0F
FIGURES = Slowdown(across_nodes=900, across=(("rack", 800), ("spine", 700)), scattered=500, torn=400)


def on(text: str, topology: str, tp: int = 1) -> State:
    """A cluster with one job of tasks of eight GPUs."""
    machines = cluster(text, topology)
    state = State(Settings(levels=machines.levels))
    demand = Demand(task=TaskDemand(gpus=8), tasks=2, tp=tp)
    asked = [commands.add_node(state, node, 1) for node in machines.nodes]
    asked.append(commands.set_queue(state, QueueSpec(name="all"), 1))
    for answer in asked:
        _take(state, answer)
    _take(state, commands.submit(state, "j", JobSpec(queue="all", gangs=(GangSpec(demand),)), "ann", 1))
    return state


def _take(state: State, answer: commands.Answer) -> None:
    assert not isinstance(answer, Refusal), answer
    for event in answer:
        folding.apply(state, event)


PLACES = {
    "one node": (("n0", "n0"), FOUR, 1000),
    "two nodes of a rack": (("n0", "n1"), EIGHT, 900),
    "two racks of a spine": (("n1", "n2"), EIGHT, 800),
    "two spines": (("n0", "n4"), EIGHT, 700),
    "far apart and near together: far counts": (("n0", "n1", "n4"), EIGHT, 700),
    "scattered though one node would do": (("n0", "n1"), FOUR, 900 * 500 // 1000),
    "a node that is gone": (("n0", "gone"), EIGHT, 1000),
}


@pytest.mark.parametrize(("nodes", "gpus", "speed"), PLACES.values(), ids=PLACES.keys())
def test_speed_follows_the_outermost_level_that_is_crossed(nodes: tuple[str, ...], gpus: int, speed: int) -> None:
    model = ByDistance(on("8x8", "rack=2,spine=2"), FIGURES)
    assert model("j", [Seat(node, gpus) for node in nodes]) == speed


def test_a_level_without_a_figure_costs_what_the_one_below_costs() -> None:
    model = ByDistance(on("8x8", "rack=2,row=2"), FIGURES)
    assert model("j", [Seat("n0", EIGHT), Seat("n7", EIGHT)]) == 800


def test_what_nvlink_reaches_is_as_near_as_one_node() -> None:
    model = ByDistance(on("8x8", "nvlink=2,rack=2", tp=16), FIGURES)
    assert model("j", [Seat("n0", EIGHT), Seat("n1", EIGHT)]) == 1000


def test_a_tensor_parallel_group_beyond_nvlink_is_torn() -> None:
    seats = [Seat("n0", EIGHT), Seat("n1", EIGHT)]
    assert ByDistance(on("8x8", "nvlink=1,rack=2", tp=8), FIGURES)("j", seats) == 900
    assert ByDistance(on("8x8", "nvlink=2,rack=2", tp=16), FIGURES)("j", [Seat("n1", EIGHT), Seat("n2", EIGHT)]) == (
        900 * 400 // 1000
    )


def test_groups_that_are_each_within_reach_are_not_torn() -> None:
    seats = [Seat(f"n{n}", EIGHT) for n in range(4)]
    assert ByDistance(on("8x8", "nvlink=2,rack=2", tp=16), FIGURES)("j", seats) == 900


def test_a_job_that_never_talks_loses_nothing() -> None:
    seats = [Seat("n0", EIGHT), Seat("n4", EIGHT)]
    state = on("8x8", "rack=2,spine=2")
    assert ByDistance(state, FIGURES, {"j": 0})("j", seats) == 1000
    assert ByDistance(state, FIGURES, {"j": 500})("j", seats) == 850


def test_default_figures_fall_with_the_distance() -> None:
    figures = [DEFAULT_SLOWDOWN.across_nodes, *(speed for _, speed in DEFAULT_SLOWDOWN.across)]
    assert figures[0] < 1000
    assert figures == sorted(figures, reverse=True)
    assert 0 < DEFAULT_SLOWDOWN.torn < DEFAULT_SLOWDOWN.scattered < 1000


def test_a_run_takes_as_much_longer() -> None:
    arrivals = [job("a", 1_000, 9 * HOUR, tasks=2)]
    assert Told(arrivals, cluster("2x8")).ended_ms("a") == 1_000 + 9 * HOUR
    assert Told(arrivals, cluster("2x8"), speed=lambda *_: 900).ended_ms("a") == 1_000 + 10 * HOUR
