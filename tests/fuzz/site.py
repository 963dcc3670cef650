"""A whole server without its interface, in one thread and in memory: the real fleet backend, dispatch and engine, with
nodes that do what they are asked. The clock moves by hand. For drivers that say millions of things."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import Demand, Gpu, TaskDemand, amounts
from corral.core.cluster.topology import NodeSpec
from corral.core.commit import commit
from corral.core.effects import Effect, effects
from corral.core.engine import apply_all, react
from corral.core.image import from_image, take_image
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.laws import check
from corral.core.model import GangSpec, Health, JobSpec, QueueSpec, Settings
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.core.work import Work
from corral.policy.catalog import policy as named_policy
from corral.remote.backend import RemoteBackend
from corral.remote.border import BadReport
from corral.remote.messages import AgentReport, DesiredAsk, LogChunk, ObservedTask, Renewal
from corral.remote.settings import RemoteSettings
from corral.runtime.base import HealthReport, NodeReport, Phase, Report, TaskKey, TaskOrder, TaskReport
from corral.server.dispatch import Dispatch
from corral.server.recovery import expect_fleet
from corral.store.memory_lookup import MemoryLookup
from corral.wire.codec import encode
from tests.agent.lease_table import InProcessKeeper

BODY_MAX = 64 << 10  # of one event in the journal, whatever caused it
ROUND_MS = 100
_JOBS_AT_ONCE = 12


class Site:
    """``honest`` nodes do what they are asked; so do the others, when they do not lie."""

    def __init__(self, folder: Path, rng: random.Random, honest: Sequence[str], hostile: Sequence[str]) -> None:
        self.rng, self.now_ms, self._folder = rng, 1_700_000_000_000, folder
        chosen = named_policy("standard")
        assert not isinstance(chosen, Refusal)
        self._policy = chosen
        self.state = State(Settings())
        self.given: dict[TaskKey, str] = {}  # every order there ever was: the honest model of what each node was given
        self.foreign: list[str] = []
        self._stopped: list[e.GangStopped] = []
        self._speaker: str | None = None
        self._held: dict[str, set[str]] = {}  # gang -> the nodes of its seats, before what is being applied
        self._epoch, self._jobs = 0, 0
        self.nodes = {name: Node(self, name) for name in (*honest, *hostile)}
        self.honest, self.hostile = tuple(honest), tuple(hostile)
        self._begin()
        self._take([e.QueueSet(self.now_ms, QueueSpec(name="default"))])

    # ---- life ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """A server begins, on what the one before it knew."""
        self._epoch += 1
        self.fleet = RemoteBackend(
            self._folder, RemoteSettings(), monotonic_ms=lambda: self.now_ms, wall_ms=lambda: self.now_ms
        )
        self._launch, self._keep = self.fleet.launch, self.fleet._logs.keep
        self.fleet.launch = self._note_orders  # type: ignore[method-assign]
        self.fleet._logs.keep = self._check_log  # type: ignore[method-assign]
        self.fleet.was_given = lambda node, key: self.given.get(key) == node
        self.dispatch = Dispatch(self.state, self.fleet, self._epoch, lambda queue, name: None)
        self.dispatch.tell = self._hear
        expect_fleet(self.state, self.fleet, MemoryLookup())
        self.fleet.open(self._hear, self._epoch)
        self.keeper = InProcessKeeper(self.fleet, self._epoch, lambda: self.now_ms)

    def restart(self) -> None:
        self.fleet.close()
        self.state = from_image(take_image(self.state))
        self._begin()
        self._carry_out(list(effects(self.state)))

    def round(self, submits: bool = True) -> None:
        """Some time passes: nodes speak, jobs come, a plan is made."""
        self.now_ms += ROUND_MS
        for node in self.nodes.values():
            node.speak()
        if submits and sum(not job.is_over for job in self.state.jobs.values()) < _JOBS_AT_ONCE:
            self.submit()
        due = self.state.next_timer_ms()
        if due is not None and due <= self.now_ms:
            self._tell(f.Ticked())
        self._take(commit(self.state, self._policy(Snapshot(self.state, self.now_ms)), self.now_ms))
        self.keeper.sweep()
        for job in [job.id for job in self.state.jobs.values() if job.is_over][:-20]:
            events = commands.forget(self.state, job, self.now_ms)
            assert not isinstance(events, Refusal)
            self._take(events)

    def submit(self) -> None:
        self._jobs += 1
        tasks, gpus = self.rng.choice(((1, 1), (1, 2), (2, 2), (4, 1)))
        demand = Demand(task=TaskDemand(gpus=gpus), tasks=tasks)
        spec = JobSpec(queue="default", gangs=(GangSpec(demand, "main", Work(command=("true",))),))
        events = commands.submit(self.state, str(self._jobs), spec, "ann", self.now_ms)
        assert not isinstance(events, Refusal), events
        self._take(events)

    @property
    def next_job(self) -> int:
        return self._jobs + 1

    # ---- write, know, act ------------------------------------------------------------------------------------------

    def _hear(self, report: Report) -> None:
        """As the server takes a report; nothing is caught here."""
        fact = self.dispatch.fact(report)
        if isinstance(report, NodeReport) and report.spec is not None:
            answer = commands.add_node(self.state, report.spec, self.now_ms)
            self.fleet.complain(report.node, str(answer) if isinstance(answer, Refusal) else "")
            if not isinstance(answer, Refusal):
                self._take(answer)
        elif fact is not None:
            self._tell(fact)

    def _tell(self, fact: f.Fact) -> None:
        self._take(react(self.state, fact, self.now_ms))

    def _take(self, events: Sequence[e.Event]) -> None:
        self._held = {gang.id: {seat.node for seat in gang.all_seats} for gang in self.state.holders.values()}
        self._write(events)  # what a node may cause is judged by the state before
        applied = apply_all(self.state, events, self.now_ms)
        self._write(applied.events[len(events) :])
        self._carry_out(applied.effects)

    def _carry_out(self, owed: Sequence[Effect]) -> None:
        stopped, self._stopped = self._stopped, []
        for event in stopped:
            self.dispatch.forget(event.gang, event.attempt)
        for effect in owed:
            self.dispatch.execute(effect)

    def _write(self, events: Sequence[e.Event]) -> None:
        for event in events:
            body = encode(event)
            assert len(body) <= BODY_MAX, f"{type(event).__name__} is {len(body)} bytes long"
            if self._speaker is not None and (why := self._is_foreign(self._speaker, event)):
                self.foreign.append(why)
            if isinstance(event, e.GangStopped):
                self._stopped.append(event)

    # ---- what a node may cause -------------------------------------------------------------------------------------

    @contextmanager
    def speaking(self, node: str) -> Iterator[None]:
        """Whatever is written meanwhile was caused by this node."""
        self._speaker = node
        try:
            yield
        finally:
            self._speaker = None

    def _is_foreign(self, node: str, event: e.Event) -> str:
        """Why a node may not cause this event; empty: it may."""
        if isinstance(event, e.NodeAdded):
            taken = [gpu.uuid for gpu in event.spec.gpus if self.state.gpu_owners.get(gpu.uuid, node) != node]
            is_own = event.spec.name == node and not taken
        elif isinstance(event, e.NodeEvent):
            is_own = event.node == node
        elif isinstance(event, e.GangEvent):
            is_own = self._is_own_gang(node, event)
        else:
            is_own = isinstance(event, e.JobEnded)  # follows from its last gang
        return "" if is_own else f"node {node} caused {event}"[:300]

    def _is_own_gang(self, node: str, event: e.GangEvent) -> bool:
        gang = self.state.gangs.get(event.gang)
        if gang is None:
            return False
        own = sum(1 << task for task, seat in enumerate(gang.seats) if seat.node == node)
        if isinstance(event, e.TasksStarted | e.TasksEnded | e.TasksLost):
            return not event.tasks & ~own
        if isinstance(event, e.GangStarted):
            return not gang.everyone & ~gang.started & ~gang.ended & ~own
        if isinstance(event, e.GangRequeued | e.GangFinished | e.ClaimDropped | e.GangAwoke):
            return True  # follows from the end of its attempt, which is checked
        return node in self._held.get(event.gang, ())

    def _note_orders(self, orders: Sequence[TaskOrder]) -> None:
        self.given |= {order.key: order.node for order in orders}
        self._launch(orders)

    def _check_log(self, chunk: LogChunk, user_of: Callable[[TaskKey], str]) -> int:
        if self.given.get(chunk.key) != self._speaker:
            self.foreign.append(f"node {self._speaker} wrote the log of {chunk.key}")
        return self._keep(chunk, user_of)

    def check(self) -> None:
        check(self.state)


class Node:
    """A machine whose agent does what it is asked: tasks run for a few rounds and succeed."""

    def __init__(self, site: Site, name: str, gpus: int = 4) -> None:
        self.site, self.name = site, name
        cards = tuple(Gpu(f"GPU-{name}-{n}", "H100", 81_920) for n in range(gpus))
        self.spec = NodeSpec(name, cards, amounts({"cpu_milli": 64_000, "memory_mib": 512_000}))
        self.session, self.seq, self.version = 1, 0, 0
        self.epoch = self.term = self.has = 0
        self.is_full = True
        self.tasks: dict[TaskKey, ObservedTask] = {}
        self._ages: dict[TaskKey, int] = {}

    def speak(self) -> None:
        """One honest report, and what is wanted then is done."""
        with self.site.speaking(self.name):
            try:
                answer = self.site.fleet.report(self.report())
            except BadReport:
                return  # a session that an earlier lie has spoilt
        self.site.keeper.renew(self.name, Renewal(seq=self.seq, epoch=self.epoch, term=self.term))
        if (answer.epoch, answer.term) != (self.epoch, self.term):
            self.epoch, self.term, self.has = answer.epoch, answer.term, 0
        self.is_full = answer.wants_full
        if answer.session > self.session:
            self.session, self.seq, self.is_full = answer.session + 1, 0, True
        if answer.is_gone:
            for key in list(self.tasks):
                self._end(key, 137)
            self.is_full = True
            return
        self._grow_old()
        self._obey()

    def report(self) -> AgentReport:
        self.seq += 1
        self.version += 1
        return AgentReport(
            node=self.name, session=self.session, seq=self.seq, epoch=self.epoch, term=self.term,
            version=self.version, is_full=True, tasks=tuple(self.tasks.values()), spec=self.spec,
            health=(HealthReport(self.name, None, Health.HEALTHY),),
        )  # fmt: skip

    def _obey(self) -> None:
        ask = DesiredAsk(node=self.name, epoch=self.epoch, term=self.term, version=self.has, wait_ms=0)
        found = self.site.fleet.desired(ask)
        if found is None:
            return
        self.has = found.version
        for task in found.tasks:
            if task.forget:
                self.tasks.pop(task.key, None)
                self._ages.pop(task.key, None)
            elif task.order is not None and task.key not in self.tasks:
                up = TaskReport(key=task.key, phase=Phase.UP, at_ms=self.site.now_ms, node=self.name)
                self.tasks[task.key], self._ages[task.key] = ObservedTask(task.key, up), 0
            if task.kill or task.leave_in_ms is not None:
                self._end(task.key, 143)

    def _grow_old(self) -> None:
        for key in list(self._ages):
            self._ages[key] += 1
            if self._ages[key] > 6:
                self._end(key, 0)

    def _end(self, key: TaskKey, code: int) -> None:
        task = self.tasks.get(key)
        if task is not None and task.down is None:
            down = TaskReport(
                key=key, phase=Phase.DOWN, at_ms=self.site.now_ms, node=self.name, exit_code=code
            )  # fmt: skip
            self.tasks[key] = msgspec.structs.replace(task, down=down)
