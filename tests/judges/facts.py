"""A state as the judges read it: nodes, queues and gangs as small plain classes, at one moment.

Reads the plain records of the state and works everything else out by itself: what is charged, what a queue is promised
and has, how long something is thought to run. Shares no code with ``corral.policy`` nor with
``corral.core.queues.quota``.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from corral.core.model import Cause, GangState, Health
from corral.core.state import State

GPU = "gpu_milli"
SHARED = (GPU, "cpu_milli", "memory_mib")  # the dimensions in which a share is measured
TELLING = 5  # docs/waiting.md: where gangs take turns, their order follows from the run times of so many
SILENT_MS = 300_000  # docs/decisions/0006: silence counts for five minutes of work at most
NODE = "node"

Seat = tuple[int, int, int]  # node number, mask of GPUs, MiB of a slice
Charge = dict[str, int]


class Machine:
    """A node and which of its GPUs may be used for something new."""

    __slots__ = (
        "draining", "has", "is_leaving", "is_lost", "is_open", "islands", "model", "name", "rack", "sick", "size",
        "up", "vram",
    )  # fmt: skip

    def __init__(self, record: Any) -> None:
        spec = record.spec
        self.name: str = spec.name
        self.rack: str = spec.path[0] if spec.path else ""
        self.size = len(spec.gpus)
        self.model: str = spec.gpus[0].model if spec.gpus else ""  # judges look at machines of one model each
        self.vram: int = spec.gpus[0].vram_mib if spec.gpus else 0
        self.has: dict[str, int] = dict(spec.amounts)
        self.is_lost: bool = record.lost
        self.is_open: bool = record.health is Health.HEALTHY and not record.lost and not record.drained
        self.is_leaving: bool = record.drained or record.health in (Health.DRAINING, Health.FAILED)
        health = record.gpu_health.items()
        self.sick: int = sum(1 << gpu for gpu, each in health if each is not Health.HEALTHY)
        self.draining: int = sum(1 << gpu for gpu, each in health if each is Health.DRAINING)
        self.up: int = ((1 << self.size) - 1) & ~self.sick if self.is_open else 0
        islands: dict[int, int] = {}
        for i, gpu in enumerate(spec.gpus):
            islands[gpu.island] = islands.get(gpu.island, 0) | 1 << i
        self.islands = list(islands.values())


class Queue:
    """A queue and what it is promised at this moment."""

    __slots__ = (
        "budget", "children", "guarantee", "kept", "lend", "limit", "name", "past", "path", "time_share",
        "user_limit", "user_past", "weight",
    )  # fmt: skip

    def __init__(self, name: str, record: Any) -> None:
        spec = record.spec
        self.name, self.weight, self.time_share = name, spec.weight, spec.time_share
        parts = name.split("/") if name else []
        #: from the outermost queue down to itself; the cluster as a whole is not among them
        self.path = tuple("/".join(parts[: i + 1]) for i in range(len(parts)))
        self.children: list[str] = []
        self.guarantee: Charge = dict(spec.guarantee)
        self.limit: Charge = dict(spec.limit)
        self.lend: Charge = dict(spec.lend)
        self.user_limit: Charge = dict(spec.user_limit)
        self.kept: Charge = {}
        self.budget = spec.budget
        self.past: tuple[int, ...] = ()
        self.user_past: dict[str, tuple[int, ...]] = {}


class Ask:
    """What a gang asks for. Does not change while it waits."""

    __slots__ = (
        "amounts", "avoid", "checkpoints", "expected_ms", "gpus", "grace_ms", "hold_ms", "is_elastic", "limit_ms",
        "memo", "min_runtime_ms", "models", "preemptible", "prefer", "prefer_ms", "restart_ms", "shape", "sizes",
        "slice_mib", "smallest", "spares", "spread", "spread_max", "tasks", "tp", "vram_max", "vram_min", "wants_gpu",
        "within",
    )  # fmt: skip

    def __init__(self, profile: Any, spec: Any, default_ms: int) -> None:
        demand, task = profile.demand, profile.demand.task
        self.gpus: int = task.gpus
        self.slice_mib: int = task.slice_mib
        self.models: tuple[str, ...] = task.models
        self.vram_min: int = max(task.vram_mib_min, task.slice_mib)
        self.vram_max: int | None = task.vram_mib_max
        self.amounts: dict[str, int] = dict(task.amounts)
        self.tasks: int = demand.tasks
        self.smallest: int = demand.tasks_min or demand.tasks
        self.spares: int = demand.spares
        self.is_elastic = 0 < demand.tasks_min < demand.tasks
        self.sizes = range(self.tasks, self.smallest - 1, -demand.step)
        self.tp: int = demand.tp
        self.within: str = demand.within
        self.spread: str = demand.spread
        self.spread_max: int = demand.spread_max
        self.prefer: str = demand.prefer
        self.prefer_ms: int = demand.prefer_wait_ms
        self.avoid: tuple[str, ...] = profile.avoid
        self.limit_ms: int | None = spec.time_limit_ms
        self.grace_ms: int = spec.grace_ms
        self.min_runtime_ms: int = spec.min_runtime_ms
        self.restart_ms: int = spec.restart_cost_ms
        self.preemptible: bool = spec.preemptible
        self.checkpoints: bool = spec.checkpoints
        expected = profile.expected_ms
        self.expected_ms: int = expected or default_ms
        #: at its time limit it may still use its grace
        self.hold_ms = self.expected_ms + (self.grace_ms if self.expected_ms == self.limit_ms else 0)
        self.wants_gpu = bool(self.gpus or self.slice_mib)
        self.memo: dict[object, Charge] = {}  # what it would be charged, once that was worked out
        self.shape = (profile, self.preemptible, self.grace_ms)

    def accepts(self, machine: Machine) -> bool:
        return (
            (not self.models or machine.model in self.models)
            and machine.vram >= self.vram_min
            and (self.vram_max is None or machine.vram <= self.vram_max)
        )

    def charge_on(self, machine: Machine) -> Charge:
        """What one task of it is charged there."""
        charge = dict(self.amounts)
        if self.wants_gpu:
            milli = self.slice_mib * 1000 // machine.vram if self.slice_mib else self.gpus * 1000
            charge[GPU] = milli
            charge[f"{GPU}:{machine.model}"] = milli
        return charge


class Gang:
    """A gang and what it has at this moment."""

    __slots__ = (
        "ask", "attempt", "blocked", "cause", "charge", "claim", "deadline_ms", "done_ms", "id", "is_charged",
        "is_leaving", "lost", "path", "placed_ms", "price", "priority", "queue", "quick", "rank", "ranks", "run_ms",
        "saves", "seats", "served_ms", "since_ms", "started_ms", "state", "turn", "user",
    )  # fmt: skip

    def __init__(self, record: Any, ask: Ask, facts: Facts) -> None:
        self.id: str = record.id
        self.ask = ask
        self.queue: str = record.queue
        self.user: str = record.user
        self.priority: int = record.priority
        self.rank: int = record.rank
        self.turn: int = record.turn
        self.since_ms: int = record.waiting_since_ms
        self.state: GangState = record.state
        self.blocked = bool(record.blockers)
        self.attempt: int = record.attempt
        number = facts.number
        self.seats: list[Seat] = [(number[s.node], s.gpus, s.slice_mib) for s in (*record.seats, *record.spares)]
        self.ranks = len(record.seats)  # the others are spares
        self.claim: list[Seat] = [(number[s.node], s.gpus, s.slice_mib) for s in record.claim]
        self.lost: int = record.lost
        self.done_ms: int = record.done_ms
        self.quick: int = record.quick_failures
        self.is_leaving = self.state is GangState.STOPPING
        eviction = record.eviction
        self.cause: Cause | None = None if eviction is None else eviction.cause
        self.deadline_ms: int = 0 if eviction is None else eviction.deadline_ms
        self.is_charged = bool(record.charged)
        self.charge = facts.charge(ask, self.claim or self.seats) if self.is_charged else {}
        self.placed_ms: int = record.placed_ms
        self.started_ms: int = record.started_ms
        holds = bool(self.seats)
        self.run_ms: int = facts.now_ms - record.started_ms if record.started_ms and holds else 0
        self.saves = ask.checkpoints or record.saved_step >= 0
        milli = facts.charge(ask, self.seats).get(GPU, 0) if holds else 0
        self.served_ms: int = record.served_gpu_ms + (milli * (facts.now_ms - record.placed_ms) // 1000 if holds else 0)
        unsaved = 0
        if record.started_ms:
            unsaved = facts.now_ms - max(record.saved_ms, record.started_ms)
            if not record.saved_ms:
                unsaved = min(unsaved, SILENT_MS)
        self.price: int = milli * (unsaved + ask.restart_ms) // 1000
        self.path = facts.queues[self.queue].path

    @property
    def waits(self) -> bool:
        """In line: it waits, nothing keeps it out and nothing is held for it."""
        return self.state is GangState.WAITING and not self.blocked and not self.claim


class Facts:
    """Everything at one moment."""

    def __init__(self, state: State, now_ms: int, asks: dict[tuple[str, int], Ask] | None = None) -> None:
        self.now_ms = now_ms
        self.entry_ms = state.settings.entry_charge_ms
        self.machines = [Machine(node) for node in state.nodes.values()]
        self.models = tuple(sorted({machine.model for machine in self.machines if machine.size}))
        self.number = {machine.name: n for n, machine in enumerate(self.machines)}
        self.total = self._total()
        self.queues = {name: Queue(name, record) for name, record in state.queues.queues.items()}
        self._read_terms(state)
        self.reserved_ms = {name: each.at_ms for name, each in state.reservations.items()}  # by the plan before
        asks = {} if asks is None else asks
        self.gangs: dict[str, Gang] = {}
        for record in state.gangs.values():
            if not record.is_over:
                key = (record.id, id(record.profile))
                ask = asks.get(key)
                if ask is None:
                    spec = state.jobs[record.job].spec
                    ask = asks[key] = Ask(record.profile, spec, state.settings.default_expected_ms)
                self.gangs[record.id] = Gang(record, ask, self)
        self.turns = self._turns(state)

    def _turns(self, state: State) -> set[int]:
        """Priorities of which gangs may take turns: those that save their work, in queues with a ``time_share``, hold
        at least half of the GPUs that gangs of the priority hold, and run times are known from five that have ended."""
        if sum(record.is_over for record in state.gangs.values()) < TELLING:
            return set()
        saving, held = Counter[int](), Counter[int]()
        for gang in self.gangs.values():
            if gang.seats:
                milli = gang.charge.get(GPU, 0) or self.charge(gang.ask, gang.seats).get(GPU, 0)
                held[gang.priority] += milli
                saving[gang.priority] += milli if gang.saves and self.queues[gang.queue].time_share else 0
        return {priority for priority, milli in held.items() if 2 * saving[priority] >= milli > 0}

    def _total(self) -> Charge:
        """What the cluster has, without what is lost."""
        total: Charge = {}
        for machine in self.machines:
            if not machine.is_lost:
                milli = machine.size * 1000
                for name, amount in (*machine.has.items(), (GPU, milli), (f"{GPU}:{machine.model}", milli)):
                    total[name] = total.get(name, 0) + amount
        return total

    def _read_terms(self, state: State) -> None:
        queues, half_life = self.queues, state.settings.half_life_ms
        for name in queues:
            if name:
                parent = name.rpartition("/")[0]
                queues[parent].children.append(name)
        for name in sorted(queues, key=lambda each: len(queues[each].path), reverse=True):
            queue, record = queues[name], state.queues.queues[name]
            for child in queue.children:  # who states nothing has what those below are promised together
                for dimension, amount in queues[child].guarantee.items():
                    if dimension not in dict(record.spec.guarantee):
                        queue.guarantee[dimension] = queue.guarantee.get(dimension, 0) + amount
            for change in record.spec.changes:
                if change.from_ms <= self.now_ms < change.until_ms:
                    for dimension, delta in change.guarantee:
                        queue.guarantee[dimension] = queue.guarantee.get(dimension, 0) + delta
                    for dimension, delta in change.limit:
                        if dimension in queue.limit:
                            queue.limit[dimension] += delta
            queue.kept = {d: max(0, queue.guarantee.get(d, 0) - lent) for d, lent in queue.lend.items()}
            queue.past = record.usage.at(self.now_ms, half_life)
            queue.user_past = {user: use.at(self.now_ms, half_life) for user, use in record.user_usage.items()}

    def charge(self, ask: Ask, seats: list[Seat]) -> Charge:
        """What a queue is charged for these seats."""
        charge: Charge = {}
        for n, gpus, _ in seats:
            machine = self.machines[n]
            for name, amount in ask.amounts.items():
                charge[name] = charge.get(name, 0) + amount
            if gpus:
                milli = ask.slice_mib * 1000 // machine.vram if ask.slice_mib else gpus.bit_count() * 1000
                for name in (GPU, f"{GPU}:{machine.model}"):
                    charge[name] = charge.get(name, 0) + milli
        return charge

    def seats(self, given: Any) -> list[Seat]:
        """Seats of a decision."""
        return [(self.number[seat.node], seat.gpus, seat.slice_mib) for seat in given]


def contested(charge: Charge) -> tuple[str, ...]:
    """What a guarantee is argued over: GPUs for whoever wants GPUs (docs/decisions/0006)."""
    return (GPU,) if charge.get(GPU) else tuple(name for name in charge if name in SHARED)
