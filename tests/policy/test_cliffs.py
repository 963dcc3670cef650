"""No cliffs in a plan: many shapes, elastic gangs and promises cost what few of them do, in steps and not in time."""

from __future__ import annotations

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import Seat
from corral.core.engine import Policy
from corral.core.intake.refusal import Refusal
from corral.core.model import GangSpec, JobSpec
from corral.policy.backfill.prospect import Prospect
from corral.policy.catalog import policy, standard
from tests.steps import steps
from tests.world import World, demand_of


def full(nodes: int, chosen: Policy | Refusal) -> World:
    """Every GPU is taken, for an hour."""
    assert not isinstance(chosen, Refusal)
    made = World(chosen).rack("a", nodes, cpu_milli=10_000_000).queue("team")
    made.checks = False
    for n in range(nodes):
        seats = [Seat(f"a{n}", 0xFF)]
        made.run(f"r{n}", demand=demand_of(8), seats=seats, time_limit_ms=3_600_000 + n)
    return made


def plan_steps(made: World) -> int:
    made.cycle()  # what is worked out once
    return steps(made.cycle)


def test_gangs_of_which_no_two_are_alike_cost_no_more_than_ten_times_the_like_ones():
    def measure(distinct: int) -> int:
        made = full(4, policy("standard"))
        for n in range(300):
            made.submit(f"w{n}", demand=demand_of(8, amounts=(("cpu_milli", 1 + n * distinct),)))
        return plan_steps(made)

    assert measure(1) < 10 * measure(0)


def test_elastic_gangs_that_cannot_grow_ask_once_for_all_of_them(monkeypatch):
    made = World().rack("a", 10, gpus=4, cpu_milli=8_000).queue("team")
    made.checks = False
    demand = demand_of(0, tasks=4, tasks_min=1, amounts=(("cpu_milli", 1_000),))
    for n in range(80):
        made.run(f"e{n}", demand=demand, seats=[Seat(f"a{n % 10}")], restart_cost_ms=1_000)
    made.wait(3_600_000)
    asked: list[object] = []

    def nothing(capacity: Capacity, *about: object) -> list[int]:
        asked.append(about)
        return [0] * len(capacity.topology.nodes)

    monkeypatch.setattr("corral.policy.cycle.elastic.bounded_slots", nothing)
    made.cycle()
    assert len(asked) == 1


def test_a_promise_looks_again_only_at_nodes_that_were_promised_since(monkeypatch):
    looked: list[int] = []
    original = Prospect.fits_beside

    def counted(self: Prospect, *about: object) -> object:
        looked.append(1)
        return original(self, *about)  # type: ignore[arg-type]

    made = full(16, standard(depth=16))
    for n in range(32):
        made.submit(f"w{n}", demand=demand_of(8), time_limit_ms=7_200_000)
    monkeypatch.setattr(Prospect, "fits_beside", counted)
    plan = made.cycle()
    assert len(plan.reservations) == 16
    assert len(looked) <= 2 * 16, "and not once for each promise and each node that has one"


def test_the_terms_of_queues_are_looked_over_once_after_many_were_made():
    made = World().rack("a", 1)
    made.checks = False

    def measure(count: int) -> int:
        return steps(lambda: [made.queue(f"q{count}-{n}") for n in range(count)])

    few = measure(40)
    assert measure(80) < 2.6 * few
    spec = JobSpec(queue="q80-3", gangs=(GangSpec(demand_of()),))
    assert spec.queue in made.state.queues.queues
