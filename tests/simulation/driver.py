"""A seeded random driver of the whole engine: submissions, ends, losses, drains, quota changes, late plans, late
reports.

The seed is the test case. Every law is checked after every event, and the pending effects against those derived again.
Time, randomness and the world live here; the engine under test knows none of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import GPU_MILLI, Demand, Gpu, TaskDemand, amounts
from corral.core.cluster.topology import NodeSpec
from corral.core.commit import commit, commit_one
from corral.core.effects import KillGang, StartGang, effects
from corral.core.engine import Policy, apply_all, react
from corral.core.intake import commands, gang_changes
from corral.core.intake.refusal import Refusal
from corral.core.laws import LawBroken, check
from corral.core.model import (
    After,
    Blocker,
    Budget,
    Dependency,
    FailureClass,
    GangSpec,
    GangState,
    Health,
    JobSpec,
    QueueSpec,
    QuotaChange,
    RetryRule,
    Settings,
)
from corral.core.plan import MakeRoom, Plan
from corral.core.snapshot import Draft, Snapshot
from corral.core.state import State
from corral.sim.research.published import policy as named_policy
from tests.core.test_undo import image_of

LEVELS = ("zone", "rack")


@dataclass
class Driver:
    """One run. ``steps`` are random actions; then the world calms down and everything must come to an end."""

    seed: int
    policy_name: str = "standard"
    policy: Policy | None = None
    check_every: int = 1
    journal: list[e.Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.now = 1_000_000
        self.state = State(Settings(levels=LEVELS, half_life_ms=3_600_000, default_expected_ms=600_000))
        chosen = self.policy if self.policy is not None else named_policy(self.policy_name)
        assert not isinstance(chosen, Refusal), chosen
        self.chosen = chosen
        self.jobs = 0
        self.late_plans: list[Plan] = []
        self.late_facts: list[f.Fact] = []
        self.attempts: dict[str, int] = {}
        self.events_seen = 0
        self._make_cluster()

    # ---- laws that need history --------------------------------------------------------------------------------

    def _write(self, events: Sequence[e.Event]) -> None:
        for event in events:
            if isinstance(event, e.GangPlaced | e.GangRepaired):
                before = self.attempts.get(event.gang, 0)
                if event.attempt != before + 1:
                    raise LawBroken(f"attempt {event.attempt} of {event.gang} after {before}")
                self.attempts[event.gang] = event.attempt
            elif isinstance(event, e.GangEvent) and event.names_live_attempt:
                if event.attempt != self.attempts.get(event.gang, 0):
                    raise LawBroken(
                        f"{event} names attempt {event.attempt}, current {self.attempts.get(event.gang, 0)}"
                    )
        self.journal.extend(events)

    def take(self, events: Sequence[e.Event]) -> None:
        self._write(apply_all(self.state, events, self.now).events)
        self._check()

    def _tell(self, fact: f.Fact) -> None:
        if self.rng.random() < 0.1:
            self.late_facts.append(fact)
        self.take(react(self.state, fact, self.now))

    def _check(self) -> None:
        self.events_seen += 1
        if self.events_seen % self.check_every == 0:
            check(self.state)

    # ---- the cluster -------------------------------------------------------------------------------------------

    def _make_cluster(self) -> None:
        rng = self.rng
        models = rng.choice((("H100",), ("H100",), ("A100", "H100")))
        for zone in range(rng.randint(1, 2)):
            for rack in range(rng.randint(1, 2)):
                model = rng.choice(models)
                for node in range(rng.randint(1, 3)):
                    self._add_node(f"z{zone}r{rack}n{node}", (f"z{zone}", f"r{rack}"), model)
        total = sum(len(node.spec.gpus) for node in self.state.nodes.values()) * 1000
        for spec in self._queues(total):
            self._command(commands.set_queue(self.state, spec, self.now))

    def _add_node(self, name: str, path: tuple[str, ...], model: str) -> None:
        count = self.rng.choice((2, 4, 4, 8))
        islands = self.rng.choice((1, 1, 2))
        gpus = tuple(Gpu(f"{name}-{i}", model, 80_000, i * islands // count) for i in range(count))
        capacity = {"cpu_milli": 64_000, "memory_mib": 512_000}
        if self.rng.random() < 0.2:
            del capacity["memory_mib"]  # unknown, not zero
        self._command(commands.add_node(self.state, NodeSpec(name, gpus, amounts(capacity), path), self.now))

    def _queues(self, total: int) -> list[QueueSpec]:
        rng = self.rng
        half = total // 2000 * 1000
        return [
            QueueSpec(name="lab", time_share=rng.choice((0, 0, 2))),
            QueueSpec(name="lab/red", guarantee=amounts({GPU_MILLI: half}), lend=self._maybe_lend(half)),
            QueueSpec(name="lab/blue", weight=rng.randint(1, 3), limit=self._maybe({GPU_MILLI: half + 1000})),
            QueueSpec(
                name="ops",
                guarantee=amounts({GPU_MILLI: max(0, total - half - 1000)}),
                user_limit=self._maybe({GPU_MILLI: half}),
                time_share=rng.choice((0, 3)),
                budget=Budget(gpu_ms=total * 3600, window_ms=3_600_000) if rng.random() < 0.2 else None,
            ),
        ]

    def _maybe(self, named: dict[str, int]) -> tuple[tuple[str, int], ...]:
        return amounts(named) if self.rng.random() < 0.4 else ()

    def _maybe_lend(self, half: int) -> tuple[tuple[str, int], ...]:
        return amounts({GPU_MILLI: half // 2}) if self.rng.random() < 0.3 else ()

    # ---- actions -----------------------------------------------------------------------------------------------

    def run(self, steps: int) -> State:
        names, weights = zip(*self.actions(), strict=True)
        for action in self.rng.choices(names, weights, k=steps):
            action()
        return self.state

    def actions(self) -> list[tuple[Callable[[], None], int]]:
        """What may happen in a step, and how often relative to the rest."""
        return [
            (self._submit, 10), (self._cycle, 14), (self._tasks_up, 14), (self._tasks_down, 8), (self._save, 4),
            (self._tick, 8), (self._cancel, 1), (self._hold, 1), (self._release, 2), (self._requeue, 1),
            (self._node_gone, 1), (self._node_back, 3), (self._drain, 1), (self._undrain, 3), (self._gpu, 1),
            (self._health, 1), (self._quota, 1), (self._priority, 1), (self._late_plan, 3), (self._late_fact, 3),
            (self._forget, 1), (self._change_gangs, 2),
        ]  # fmt: skip

    def _command(self, answer: list[e.Event] | Refusal) -> None:
        if not isinstance(answer, Refusal):
            self.take(answer)

    def _submit(self) -> None:
        rng = self.rng
        if len(self.state.gangs) - sum(g.is_over for g in self.state.gangs.values()) > 60:
            return
        self.jobs += 1
        earlier = list(self.state.jobs)
        spec = JobSpec(
            queue=rng.choice(("lab/red", "lab/blue", "ops", "ops", "nowhere")) if rng.random() < 0.98 else "lab",
            gangs=tuple(GangSpec(self._demand(), role) for role in rng.choice((("main",), ("main", "eval")))),
            name=rng.choice(("", "", "nightly")),
            priority=rng.choice((0, 0, 0, 1, 5)),
            array=tuple(range(rng.randint(2, 4))) if rng.random() < 0.1 else (),
            array_parallel=rng.choice((None, 1, 2)),
            after=(Dependency(rng.choice(earlier), rng.choice(list(After))),) if earlier and rng.random() < 0.1 else (),
            begin_ms=self.now + rng.randint(1, 100_000) if rng.random() < 0.1 else None,
            deadline_ms=self.now + rng.randint(1, 5_000_000) if rng.random() < 0.05 else None,
            time_limit_ms=rng.choice((None, 60_000, 600_000, 3_600_000)),
            min_runtime_ms=rng.choice((0, 0, 30_000)),
            grace_ms=rng.choice((0, 5_000, 30_000)),
            restart_cost_ms=rng.choice((0, 10_000)),
            checkpoints=rng.random() < 0.5,
            preemptible=rng.random() < 0.95,
            held=rng.random() < 0.05,
            retries=(
                (FailureClass.USER_ERROR, RetryRule(1)),
                (FailureClass.OUT_OF_MEMORY, RetryRule(2, grow_memory_percent=50)),
            ),
        )  # fmt: skip
        self._command(commands.submit(self.state, f"j{self.jobs}", spec, rng.choice(("ann", "bob")), self.now))

    def _demand(self) -> Demand:
        rng = self.rng
        kind = rng.random()
        wanted = amounts(
            {"cpu_milli": rng.choice((1000, 8000)), **({"memory_mib": 64_000} if rng.random() < 0.3 else {})}
        )
        wanted = wanted if rng.random() < 0.5 else ()
        if kind < 0.1:
            return Demand(
                task=TaskDemand(slice_mib=rng.choice((10_000, 30_000)), amounts=wanted),
                tasks=rng.randint(1, 2),
            )
        if kind < 0.15:
            return Demand(task=TaskDemand(amounts=amounts({"cpu_milli": 16_000})), tasks=rng.randint(1, 3))
        gpus = rng.choice((1, 1, 2, 4))
        tasks = rng.choice((1, 1, 1, 2, 3))
        elastic = tasks > 1 and rng.random() < 0.4
        return Demand(
            task=TaskDemand(gpus=gpus, amounts=wanted, models=rng.choice(((), (), ("H100",), ("A100",)))),
            tasks=tasks,
            tasks_min=1 if elastic else 0,
            spares=1 if rng.random() < 0.1 else 0,
            tp=gpus if rng.random() < 0.3 else 1,
            within=rng.choice(("", "", "", "rack", "zone")),
            prefer=rng.choice(("", "", "rack")),
            prefer_wait_ms=20_000,
            spread="" if rng.random() < 0.9 else rng.choice(("rack", "node")),
            spread_max=2,
        )

    def _cycle(self) -> None:
        plan = self.chosen(self._snapshot())
        if self.rng.random() < 0.3:
            self.late_plans.append(plan)
        if self.rng.random() < 0.15:
            return
        before = len(self.journal)
        events = self._commit(plan)
        self._must_commit_in_full(plan, events)
        self.take(events)
        assert len(self.journal) >= before

    def _snapshot(self) -> Snapshot:
        return Snapshot(self.state, self.now)

    def _commit(self, plan: Plan) -> list[e.Event]:
        self._must_undo(plan)
        return commit(self.state, plan, self.now)

    def _must_undo(self, plan: Plan) -> None:
        """An undo restores all of a draft, and a decision that no longer holds leaves nothing behind in it."""
        draft = Draft(self._snapshot())
        for decision in plan.decisions:
            before, mark = image_of(draft), draft.mark()
            events = commit_one(draft, decision)
            after = image_of(draft)
            draft.undo(mark)
            if image_of(draft) != before or (after != before and not events):
                raise LawBroken(f"the draft is not as it was before {decision}")
            if commit_one(draft, decision) != events or image_of(draft) != after:
                raise LawBroken(f"not the same after an undo: {decision}")

    def _must_commit_in_full(self, plan: Plan, events: Sequence[e.Event]) -> None:
        """Law 4."""
        named = {event.gang for event in events if isinstance(event, e.GangEvent)}
        for decision in plan.decisions:
            if decision.gang not in named:
                raise LawBroken(f"a plan made from the present did not commit in full: {decision}")
            if isinstance(decision, MakeRoom) and not {victim.gang for victim in decision.victims} <= named:
                raise LawBroken(f"a victim was left out: {decision}")

    def _late_plan(self) -> None:
        """Law 5: a plan may be as old as it likes."""
        if self.late_plans:
            plan = self.late_plans[self.rng.randrange(len(self.late_plans))]
            self.take(self._commit(plan))

    def _late_fact(self) -> None:
        if self.late_facts:
            fact = self.late_facts[self.rng.randrange(len(self.late_facts))]
            self.take(react(self.state, fact, self.now))

    def _tick(self) -> None:
        self.now += self.rng.choice((1, 1_000, 10_000, 60_000, 300_000))
        self._tell(f.Ticked())

    def _in(self, *states: GangState) -> list[str]:
        return [gang.id for gang in self.state.holders.values() if gang.state in states]

    def _tasks_up(self) -> None:
        starting = self._in(GangState.STARTING)
        if starting:
            gang = self.state.gangs[self.rng.choice(starting)]
            some = gang.everyone if self.rng.random() < 0.7 else self.rng.randrange(1, gang.everyone + 1)
            self._tell(f.TasksUp(gang.id, gang.attempt, some))

    def _tasks_down(self) -> None:
        live = self._in(GangState.RUNNING, GangState.STOPPING, GangState.BROKEN, GangState.STARTING)
        if not live:
            return
        gang = self.state.gangs[self.rng.choice(live)]
        some = gang.everyone if self.rng.random() < 0.7 else self.rng.randrange(1, gang.everyone + 1)
        code = self.rng.choice((0, 0, 0, 1, 85, 137))
        failure = self.rng.choice(list(FailureClass)[:6]) if self.rng.random() < 0.15 else None
        self._tell(f.TasksDown(gang.id, gang.attempt, some, code, failure, gang.seats[0].node))

    def _save(self) -> None:
        running = self._in(GangState.RUNNING, GangState.STOPPING)
        if running:
            gang = self.state.gangs[self.rng.choice(running)]
            self._tell(f.Saved(gang.id, gang.attempt, gang.saved_step + self.rng.randint(0, 2)))

    def _some_job(self) -> str:
        return self.rng.choice(list(self.state.jobs)) if self.state.jobs else "none"

    def _some_node(self) -> str:
        return self.rng.choice([*self.state.nodes, "nowhere"])

    def _cancel(self) -> None:
        self._command(commands.cancel(self.state, self._some_job(), self.now))

    def _hold(self) -> None:
        self._command(commands.hold(self.state, self._some_job(), self.now))

    def _release(self) -> None:
        held = [job.id for job in self.state.jobs.values() if job.held and not job.is_over]
        self._command(commands.release(self.state, self.rng.choice(held) if held else "none", self.now))

    def _requeue(self) -> None:
        self._command(commands.requeue(self.state, self._some_job(), self.now))

    def _forget(self) -> None:
        self._command(commands.forget(self.state, self._some_job(), self.now))

    def _priority(self) -> None:
        self._command(commands.change_priority(self.state, self._some_job(), self.rng.choice((0, 1, 5)), self.now))

    def _change_gangs(self) -> None:
        """Change some gangs of a job, as users do with elements of an array."""
        held = [gang.job for gang in self.state.gangs.values() if gang.blockers & Blocker.GANG_HELD]
        if held and self.rng.random() < 0.4:
            job, change = self.state.jobs[self.rng.choice(held)], gang_changes.release
        elif self.state.jobs:
            job = self.state.jobs[self._some_job()]
            change = self.rng.choice((gang_changes.cancel, gang_changes.hold, gang_changes.hold, _raise_priority))
        else:
            return
        self._command(change(self.state, [gang for gang in job.gangs if self.rng.random() < 0.5], self.now))

    def _node_gone(self) -> None:
        self._tell(f.NodeGone(self._some_node()))

    def _node_back(self) -> None:
        self._tell(f.NodeBack(self._some_node()))

    def _drain(self) -> None:
        self._command(commands.drain(self.state, self._some_node(), self.now))

    def _undrain(self) -> None:
        self._command(commands.undrain(self.state, self._some_node(), self.now))

    def _gpu(self) -> None:
        health = self.rng.choice(list(Health))
        self._tell(f.GpuObserved(self._some_node(), self.rng.randint(0, 8), health))

    def _health(self) -> None:
        self._tell(f.NodeObserved(self._some_node(), self.rng.choice(list(Health))))

    def _quota(self) -> None:
        known = [queue.spec for name, queue in self.state.queues.queues.items() if name]
        spec = self.rng.choice(known)
        change = QuotaChange(self.now, self.now + 600_000, amounts({GPU_MILLI: 2000}), amounts({GPU_MILLI: 2000}))
        new = msgspec.structs.replace(
            spec, weight=self.rng.randint(1, 4), changes=(change,) if self.rng.random() < 0.5 else ()
        )
        self._command(commands.set_queue(self.state, new, self.now))

    # ---- the end -----------------------------------------------------------------------------------------------

    def calm(self, rounds: int = 3_000) -> None:
        """Law 9: everything heals, everything that can ever fit finishes, and nothing is owed at the end."""
        for node in list(self.state.nodes.values()):
            self._tell(f.NodeBack(node.spec.name))
            self._tell(f.NodeObserved(node.spec.name, Health.HEALTHY))
            self._command(commands.undrain(self.state, node.spec.name, self.now))
            for gpu in list(node.gpu_health):
                self._tell(f.GpuObserved(node.spec.name, gpu, Health.HEALTHY))
        for name, queue in list(self.state.queues.queues.items()):
            if name:  # a bound that was raised for a while may keep a gang out for ever; that is explained, not healed
                unbound = QueueSpec(name=name, guarantee=queue.spec.guarantee, weight=queue.spec.weight)
                self._command(commands.set_queue(self.state, unbound, self.now))
        for job in list(self.state.jobs.values()):
            self._command(commands.release(self.state, job.id, self.now))
        for _ in range(rounds):
            if all(job.is_over for job in self.state.jobs.values()):
                break
            self._calm_round()
        left = [(g.id, g.state, g.blockers) for g in self.state.gangs.values() if not g.is_over]
        if left:
            raise LawBroken(f"seed {self.seed}: these never came to an end: {left}")
        if (
            effects(self.state)
            or self.state.holders
            or self.state.claimants
            or self.state.jobs_to_settle
            or self.state.backlog.count
        ):
            raise LawBroken("something is still owed, held or claimed at the end")

    def _calm_round(self) -> None:
        plan = self.chosen(self._snapshot())
        self.take(self._commit(plan))
        self.now += 20_000
        self._tell(f.Ticked())
        for effect in effects(self.state):
            gang = self.state.gangs[effect.gang]
            if isinstance(effect, StartGang):
                self._tell(f.TasksUp(gang.id, gang.attempt, gang.everyone))
            elif isinstance(effect, KillGang) or self.rng.random() < 0.5:
                self._tell(f.TasksDown(gang.id, gang.attempt, gang.everyone, 0))
        for name in self._in(GangState.RUNNING):
            if self.rng.random() < 0.3:
                gang = self.state.gangs[name]
                self._tell(f.TasksDown(gang.id, gang.attempt, gang.everyone, 0))


def run_seed(seed: int, steps: int, policy_name: str = "standard", calm: bool = True) -> Driver:
    driver = Driver(seed, policy_name)
    driver.run(steps)
    if calm:
        driver.calm()
    return driver


def _raise_priority(state: State, gangs: Sequence[str], now_ms: int) -> commands.Answer:
    return gang_changes.change_priority(state, gangs, 7, now_ms)
