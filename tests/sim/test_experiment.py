"""A whole question to the simulator: what is put together, how it ends, and that it is the same every time."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from corral.core import events as e
from corral.core.intake.refusal import Refusal
from corral.sim.experiment import Scenario, simulate
from corral.sim.faults import FaultRates
from corral.sim.report.result import Result
from corral.sim.run import Simulation
from corral.sim.traces.trace import Trace, TraceJob
from corral.sim.world import TYPICAL
from tests.sim.runs import HOUR, MINUTE, cluster

TRACE = Trace(
    "small",
    tuple(
        TraceJob(
            id=f"j{n}",
            submit_ms=1_000 + n * 10 * MINUTE,
            work_ms=(1 + n % 3) * HOUR,
            gpus=(1, 2, 4, 8, 16)[n % 5],
            team=("red", "blue")[n % 2],
            user=f"u{n % 3}",
        )
        for n in range(20)
    ),
)
TWO = cluster("2x8")


def answered(scenario: Scenario, **more: Any) -> Result:
    found = simulate(TRACE, TWO, scenario, **more)
    assert isinstance(found, Result), found
    return found


def test_a_run_ends_with_all_its_jobs() -> None:
    result = answered(Scenario())
    assert (result.policy, result.workload, result.cut_ms) == ("standard", "small", None)
    assert result.measures.total.succeeded == 20


@pytest.mark.parametrize(
    "scenario", [Scenario(policy="nobody"), Scenario(estimates="guessed")], ids=["policy", "estimates"]
)
def test_what_there_is_not_is_refused(scenario: Scenario) -> None:
    found = simulate(TRACE, TWO, scenario)
    assert isinstance(found, Refusal)
    assert found.hint


@pytest.mark.parametrize("estimates", ["learned", "exact", "hours", "stated", "none"])
def test_every_kind_of_estimate_serves_all_jobs(estimates: str) -> None:
    assert answered(Scenario(policy="fair", estimates=estimates)).measures.total.succeeded == 20


def test_a_run_that_is_ended_at_a_time_says_so() -> None:
    result = answered(Scenario(until_ms=2 * HOUR))
    assert result.cut_ms == 2 * HOUR
    assert result.history.end_ms <= 1_000 + 2 * HOUR
    assert result.measures.total.unfinished > 0


def test_a_time_after_the_end_cuts_nothing() -> None:
    assert answered(Scenario(until_ms=1_000 * HOUR)).cut_ms is None


def test_an_interrupt_gives_what_there_is() -> None:
    def stop(simulation: Simulation) -> None:
        if simulation.steps == 30:
            raise KeyboardInterrupt

    result = answered(Scenario(), watch=stop)
    assert result.cut_ms is not None
    assert result.cut_ms >= result.history.end_ms - 1_000 > 0
    assert result.measures.total.unfinished > 0


def test_costs_and_distance_make_runs_longer() -> None:
    free = answered(Scenario(slowdown=None))
    costly = answered(Scenario(costs=TYPICAL))
    assert _mean(costly) > _mean(free)


def _mean(result: Result) -> float:
    assert result.measures.total.completion_ms is not None
    return result.measures.total.completion_ms.mean


def test_faults_are_the_same_for_every_policy_and_lose_no_job() -> None:
    losses = []
    for policy in ("fifo", "standard"):
        journal: list[e.Event] = []
        faults = FaultRates(node_hours=6, node_repair_hours=0.5, lost_reports=0.1)
        result = answered(Scenario(policy=policy, costs=TYPICAL, faults=faults), journal=journal.extend)
        assert result.measures.total.unfinished == 0
        losses.append([(event.at_ms, event.node) for event in journal if isinstance(event, e.NodeLost)])
    shared = min(map(len, losses))
    assert shared > 2
    assert losses[0][:shared] == losses[1][:shared]


def test_the_same_question_has_the_same_journal() -> None:
    def journal() -> bytes:
        found: list[e.Event] = []
        scenario = Scenario(costs=TYPICAL, time_share=2, faults=FaultRates(node_hours=20, lost_reports=0.2, seed=7))
        answered(scenario, journal=found.extend)
        return msgspec.json.encode(found)

    assert journal() == journal()


def test_a_guarantee_is_kept_at_the_cost_of_borrowers() -> None:
    jobs = (("b", 1_000, "blue"), ("r", HOUR, "red"))
    trace = Trace("two", tuple(TraceJob(id=n, submit_ms=at, work_ms=9 * HOUR, gpus=8, team=t) for n, at, t in jobs))

    def preemptions(**more: Any) -> int:
        found = simulate(trace, cluster("1x8"), Scenario(**more))
        assert isinstance(found, Result)
        return found.measures.total.preemptions

    assert (preemptions(), preemptions(guarantees=(("red", 8),))) == (0, 1)
