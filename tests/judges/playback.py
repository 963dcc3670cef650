"""Plays a scenario on a real engine, step by step, and shows every plan with what was true before it.

Times are whatever the scenario says. Everything goes through commands, facts and cycles, so every state is one that can
be reached. Knows nothing of promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import GPU_MILLI, Demand, Gpu, TaskDemand, amounts
from corral.core.cluster.topology import NodeSpec
from corral.core.commit import commit
from corral.core.engine import apply_all, react
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import Budget, Gang, GangSpec, GangState, Health, JobSpec, QueueSpec, QuotaChange, Settings
from corral.core.plan import Plan
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.catalog import standard
from tests.judges.gpu_time import Book
from tests.judges.scenario import HOUR_MS, Machine, Scenario, Step, Terms, Work

BEGIN_MS = 30 * 24 * HOUR_MS
LEAVES_AFTER_MS = 5_000  # who was told to leave has left after a wait of so long

#: Is shown each plan before it is carried out; and with the events, when it has been.
Watch = Callable[["Stage", Plan], None]
Look = Callable[["Stage", Plan, Sequence[e.Event]], None]


class PlanFailedError(Exception):
    """The policy raised instead of planning."""


class Stage:
    """One engine on which a scenario is played."""

    def __init__(self, scenario: Scenario, watch: Watch, look: Look | None = None) -> None:
        self.scenario, self.watch, self.look = scenario, watch, look
        self.now_ms = BEGIN_MS
        settings = Settings(levels=("rack",), half_life_ms=scenario.half_life_ms)
        self.state = State(settings)
        self.policy = standard(depth=scenario.depth, patience_ms=scenario.patience_ms)
        self.journal: list[e.Event] = []
        self.runs: dict[str, int] = {}  # job -> how long it truly runs
        self.book = Book()
        self.plans = 0
        self.refused = 0
        for machine in scenario.nodes:
            self.command(commands.add_node(self.state, node_spec(machine), self.now_ms))
        for terms in scenario.queues:
            self.command(commands.set_queue(self.state, queue_spec(terms), self.now_ms))

    def play(self) -> None:
        for step in self.scenario.steps:
            self.step(step)

    def step(self, step: Step) -> None:
        _DO[step.do](self, step)

    def command(self, answer: Sequence[e.Event] | Refusal) -> bool:
        if isinstance(answer, Refusal):
            self.refused += 1
            return False
        self.take(answer)
        return True

    def tell(self, fact: f.Fact) -> None:
        self.take(react(self.state, fact, self.now_ms))

    def take(self, events: Sequence[e.Event]) -> None:
        self.journal += apply_all(self.state, events, self.now_ms).events

    # ---- steps -------------------------------------------------------------------------------------------------

    def plan(self, step: Step) -> None:
        self.plans += 1
        plan = self.planned()
        self.watch(self, plan)
        events = commit(self.state, plan, self.now_ms)
        self.take(events)
        if self.look is not None:
            self.look(self, plan, events)

    def planned(self) -> Plan:
        """What would be done now."""
        try:
            return self.policy(Snapshot(self.state, self.now_ms))
        except Exception as fault:
            raise PlanFailedError(f"{type(fault).__name__}: {fault}") from fault

    def submit(self, step: Step) -> None:
        assert step.work is not None
        work = step.work
        if work.name not in self.state.jobs:
            self.runs[work.name] = work.runs_ms
            self.command(commands.submit(self.state, work.name, job_spec(work), work.user, self.now_ms))

    def wait(self, step: Step) -> None:
        for gang in self._in(GangState.STARTING):
            self.tell(f.TasksUp(gang.id, gang.attempt, gang.everyone))
        self.book.pass_time(self.state, self.now_ms, self.now_ms + step.number)
        self.now_ms += step.number
        self.tell(f.Ticked())
        if step.number >= LEAVES_AFTER_MS:
            for gang in self._in(GangState.STOPPING):
                if gang.holds_seats:
                    self.tell(f.TasksDown(gang.id, gang.attempt, gang.everyone, 85))
        for gang in self._in(GangState.RUNNING):
            if self.now_ms - gang.started_ms + gang.done_ms >= self.runs[gang.job]:
                self.tell(f.TasksDown(gang.id, gang.attempt, gang.everyone, 0))

    def _in(self, state: GangState) -> list[Gang]:
        return [gang for gang in self.state.holders.values() if gang.state is state]

    def save(self, step: Step) -> None:
        gang = self._gang(step.what)
        if gang is not None and gang.state is GangState.RUNNING:
            self.tell(f.Saved(gang.id, gang.attempt, gang.saved_step + 1))

    def fail(self, step: Step) -> None:
        gang = self._gang(step.what)
        if gang is not None and gang.state is GangState.RUNNING:
            self.tell(f.TasksDown(gang.id, gang.attempt, gang.everyone, 1))

    def _gang(self, name: str) -> Gang | None:
        return self.state.gangs.get(f"{name}/main")

    def lose(self, step: Step) -> None:
        self.tell(f.NodeGone(step.what))

    def back(self, step: Step) -> None:
        self.tell(f.NodeBack(step.what))

    def drain(self, step: Step) -> None:
        self.command(commands.drain(self.state, step.what, self.now_ms))

    def undrain(self, step: Step) -> None:
        self.command(commands.undrain(self.state, step.what, self.now_ms))

    def gpu(self, step: Step) -> None:
        self.tell(f.GpuObserved(step.what, step.number, Health(step.health)))

    def terms(self, step: Step) -> None:
        assert step.terms is not None
        if step.terms.name in self.state.queues.queues:
            self.command(commands.set_queue(self.state, queue_spec(step.terms), self.now_ms))

    def priority(self, step: Step) -> None:
        self.command(commands.change_priority(self.state, step.what, step.number, self.now_ms))

    def cancel(self, step: Step) -> None:
        self.command(commands.cancel(self.state, step.what, self.now_ms))

    def hold(self, step: Step) -> None:
        self.command(commands.hold(self.state, step.what, self.now_ms))

    def release(self, step: Step) -> None:
        self.command(commands.release(self.state, step.what, self.now_ms))


_DO: dict[str, Callable[[Stage, Step], None]] = {
    name: getattr(Stage, name)
    for name in (
        "plan", "submit", "wait", "save", "fail", "lose", "back", "drain", "undrain", "gpu", "terms", "priority",
        "cancel", "hold", "release",
    )
}  # fmt: skip


# ---- words into specs ----------------------------------------------------------------------------------------------


def node_spec(machine: Machine) -> NodeSpec:
    gpus = tuple(
        Gpu(f"{machine.name}-{i}", machine.model, machine.vram_mib, i * machine.islands // machine.gpus)
        for i in range(machine.gpus)
    )
    return NodeSpec(machine.name, gpus, amounts(machine.has), (machine.rack,))


def queue_spec(terms: Terms) -> QueueSpec:
    budget = Budget(terms.budget_gpu_ms, terms.budget_window_ms, BEGIN_MS) if terms.budget_window_ms else None
    changes = tuple(
        QuotaChange(
            BEGIN_MS + begin,
            BEGIN_MS + end,
            amounts({GPU_MILLI: guarantee}) if guarantee else (),
            amounts({GPU_MILLI: limit}) if limit else (),
        )
        for begin, end, guarantee, limit in terms.changes
    )
    return QueueSpec(
        name=terms.name, guarantee=amounts(terms.guarantee), limit=amounts(terms.limit), lend=amounts(terms.lend),
        user_limit=amounts(terms.user_limit), weight=terms.weight, time_share=terms.time_share, budget=budget,
        changes=changes,
    )  # fmt: skip


def job_spec(work: Work) -> JobSpec:
    task = TaskDemand(
        gpus=0 if work.slice_mib else work.gpus,
        slice_mib=work.slice_mib,
        models=tuple(work.models),
        amounts=amounts(work.amounts),
    )
    demand = Demand(
        task=task, tasks=work.tasks, tasks_min=work.tasks_min, spares=work.spares, tp=work.tp, within=work.within,
        spread=work.spread, spread_max=work.spread_max, prefer=work.prefer, prefer_wait_ms=work.prefer_wait_ms,
    )  # fmt: skip
    return JobSpec(
        queue=work.queue, gangs=(GangSpec(demand),), priority=work.priority, time_limit_ms=work.limit_ms,
        estimate_ms=work.estimate_ms, grace_ms=work.grace_ms, min_runtime_ms=work.min_runtime_ms,
        restart_cost_ms=work.restart_ms, checkpoints=work.checkpoints, preemptible=work.preemptible,
    )  # fmt: skip
