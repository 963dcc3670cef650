"""One experiment: a workload on a cluster under a policy, with costs and faults.

Assembles the parts and returns a result that reports can show. Everything in which two runs may differ is in the
scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from corral.core import events as e
from corral.core.engine import Policy
from corral.core.intake.refusal import Refusal
from corral.core.model import NEVER_MS, Settings
from corral.sim.cluster_spec import ClusterSpec
from corral.sim.faults import FaultRates, Network, mishaps
from corral.sim.history import Recorder
from corral.sim.learning import Learner
from corral.sim.report.measures import Power
from corral.sim.report.result import Result, evaluate
from corral.sim.research.published import policy as named_policy
from corral.sim.run import Simulation
from corral.sim.speed import DEFAULT_SLOWDOWN, ByDistance, Slowdown
from corral.sim.traces.trace import Trace
from corral.sim.workload import ESTIMATES, TIME_SHARE, SubmissionTerms, arrivals_of, queues_of
from corral.sim.world import FREE, Costs

LEARNED = "learned"

#: Called after every simulated instant. May end the run by raising KeyboardInterrupt.
Watch = Callable[[Simulation], None]


class Scenario(Struct, frozen=True):
    """How a workload is run. ``estimates``: exact, hours, stated, none, or learned from ended jobs."""

    policy: str = "standard"
    costs: Costs = FREE
    estimates: str = LEARNED
    whole_nodes: bool = False
    checkpoints: bool = True
    time_share: int = TIME_SHARE
    slowdown: Slowdown | None = DEFAULT_SLOWDOWN
    faults: FaultRates | None = None
    guarantees: tuple[tuple[str, int], ...] = ()  # (team, GPUs)
    power: Power | None = None
    until_ms: int | None = None  # after the first submission; None: to the end


def simulate(
    trace: Trace,
    cluster: ClusterSpec,
    scenario: Scenario,
    watch: Watch | None = None,
    policy: Policy | None = None,
    journal: Callable[[Sequence[e.Event]], None] | None = None,
) -> Result | Refusal:
    """Run a workload to its end. An interrupted run gives the result so far, with ``cut_ms`` set."""
    chosen = policy or named_policy(scenario.policy)
    if isinstance(chosen, Refusal):
        return chosen
    if scenario.estimates != LEARNED and scenario.estimates not in ESTIMATES:
        known = ", ".join((*ESTIMATES, LEARNED))
        return Refusal(
            "no_such_estimate", f"there is no source of estimates {scenario.estimates!r}", f"estimates: {known}"
        )
    recorder = Recorder()
    simulation = _simulation(trace, cluster, scenario, chosen, recorder, journal)
    until_ms = NEVER_MS if scenario.until_ms is None else simulation.now_ms + scenario.until_ms
    cut_ms = None
    try:
        while simulation.step(until_ms):
            if watch is not None:
                watch(simulation)
        if simulation.next_ms() < NEVER_MS:
            cut_ms = scenario.until_ms
    except KeyboardInterrupt:
        cut_ms = simulation.now_ms - simulation.begin_ms
    result = evaluate(scenario.policy, recorder.history, trace, power=scenario.power)
    result.cut_ms = cut_ms
    return result


def _simulation(
    trace: Trace,
    cluster: ClusterSpec,
    scenario: Scenario,
    policy: Policy,
    recorder: Recorder,
    journal: Callable[[Sequence[e.Event]], None] | None,
) -> Simulation:
    def write(events: Sequence[e.Event]) -> None:
        recorder(events)
        if journal is not None:
            journal(events)

    terms = SubmissionTerms(
        estimate=ESTIMATES.get(scenario.estimates),
        whole_nodes=scenario.whole_nodes,
        checkpoints=scenario.checkpoints,
        restart_cost_ms=scenario.costs.restart_ms + scenario.costs.save_ms + scenario.costs.stop_ms,
        grace_ms=max(30_000, 2 * (scenario.costs.save_ms + scenario.costs.stop_ms)),
    )
    arrivals = arrivals_of(trace, cluster, terms)
    drawn_faults = []
    if scenario.faults is not None and arrivals:
        # twice the time in which jobs arrive, so that jobs still queued after it meet faults too
        last = arrivals[-1].at_ms + max(each.work_ms for each in arrivals)
        drawn_faults = mishaps(cluster, scenario.faults, arrivals[0].at_ms, 2 * last - arrivals[0].at_ms)
    simulation = Simulation(
        cluster,
        arrivals,
        policy,
        recorder if journal is None else write,
        queues=queues_of(trace, scenario.time_share, dict(scenario.guarantees)),
        costs=scenario.costs,
        mishaps=drawn_faults,
        settings=Settings(levels=cluster.levels),
        refuse=lambda _, refusal: recorder.refuse(refusal.why),
    )
    if scenario.estimates == LEARNED:
        simulation.admit = Learner(simulation.state).admit
    if scenario.faults is not None and scenario.faults.lost_reports:
        simulation.delivery_times = Network(scenario.faults).delivery_times
    if scenario.slowdown is not None:
        simulation.world.speed = ByDistance(simulation.state, scenario.slowdown)
    return simulation
