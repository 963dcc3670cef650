"""The state: the fold of all events so far, and queries on it.

Only ``apply`` changes a state; everything else reads it. No clock, no decisions.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from typing import Any

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import GPU_MILLI, Amounts, Seat, TaskDemand
from corral.core.cluster.topology import NodeSpec, Topology
from corral.core.model import (
    END_MARGIN_MS,
    After,
    Blocker,
    Gang,
    GangState,
    Health,
    Job,
    Node,
    OutOfTurn,
    Reservation,
    Settings,
)
from corral.core.prediction import Predictions
from corral.core.queues.backlog import Backlog
from corral.core.queues.quota import QueueTree

_DERIVED = ("topology", "capacity", "never_fits")

#: (when, gang, attempt): a timer of this gang. Stale entries are dropped when they are due.
Timer = tuple[int, str, int]


#: Names of jobs in order. Finding the first and removing any take constant time.
Namesakes = OrderedDict[str, None]


class State:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.nodes: dict[str, Node] = {}
        self.gpu_owners: dict[str, str] = {}  # UUID -> its node; if several reported it, the last one
        self.queues = QueueTree(settings.half_life_ms, settings.entry_charge_ms)
        self.jobs: dict[str, Job] = {}
        self.gangs: dict[str, Gang] = {}
        self.backlog = Backlog()
        self.holders: dict[str, Gang] = {}  # gangs that hold seats
        self.held_by: dict[tuple[str, int], dict[str, Gang]] = {}  # (queue, priority) -> gangs that hold seats
        #: (queue, priority) -> GPUs that they hold, in thousandths: those of gangs that save their work, and all
        self.held_milli: dict[tuple[str, int], tuple[int, int]] = {}
        self.claimants: dict[str, Gang] = {}
        self.broken: dict[str, Gang] = {}
        self.stopping: dict[str, Gang] = {}
        self.elastic: dict[str, Gang] = {}  # gangs that hold seats and may have more or fewer of them
        self.tenants: dict[str, dict[str, None]] = {}  # node -> gangs with a seat on it
        self.draining: dict[str, None] = {}  # nodes that should become empty
        self.ending: dict[str, int] = {}  # nodes that will be withdrawn -> when
        self.dependents: dict[str, list[tuple[str, After]]] = {}  # job -> dependent jobs, and the kind of dependency
        self.awaited: dict[str, int] = {}  # job -> number of its open dependencies; absent: none
        self.namesakes: dict[tuple[str, str], Namesakes] = {}  # (user, name) -> unfinished jobs, oldest first
        self.suspended: dict[str, None] = {}  # jobs that may not start because their users have changed
        self.jobs_to_settle: dict[str, None] = {}  # they ended, or their array has room
        self.gangs_to_settle: dict[str, Gang] = {}  # evicted, and all their tasks have ended
        self.reservations: dict[str, Reservation] = {}  # waiting gangs -> their durable reservations
        #: (priority, task) of the last gang served out of turn -> until when no other like it is
        self.out_of_turn: dict[tuple[int, TaskDemand], OutOfTurn] = {}
        self.predictions = Predictions()  # how long gangs run
        self.timers: list[Timer] = []
        self.next_rank = 1
        self.next_job = 1  # the number of the next job
        self.version = 0
        self.now_ms = 0
        self._is_stale = True
        self._charges: dict[tuple[TaskDemand, int, int], Amounts] = {}
        #: a cache of policies about nodes. Not part of the state: dropping it changes only speed.
        self.memory: dict[Any, Any] = {}
        #: changed nodes, in order; cached results for all other nodes are valid
        self.changes: list[str] = []

    # ---- the cluster -------------------------------------------------------------------------------------------

    topology: Topology
    capacity: Capacity
    never_fits: dict[Any, Any]  # cached results for demands on the empty cluster

    def __getattr__(self, name: str) -> Any:
        """The three above are missing after nodes have changed; they are built when one of them is next needed."""
        if name in _DERIVED and self.__dict__.get("_is_stale"):
            self._rebuild()
            return self.__dict__[name]
        raise AttributeError(f"a state has no {name!r}")

    def refresh(self) -> None:
        """Rebuild the columns if nodes have changed. Must be called before changing what they are counted from."""
        if self._is_stale:
            self._rebuild()

    def nodes_changed(self) -> None:
        """Nodes were added or removed: numbers and columns are rebuilt when next needed, once for many changes."""
        self._is_stale = True
        for name in _DERIVED:
            self.__dict__.pop(name, None)

    def _rebuild(self) -> None:
        self._is_stale = False
        self.topology = Topology(self.settings.levels, [node.spec for node in self.nodes.values()])
        self.capacity = self.recounted(self.topology)
        self.never_fits, self._charges = {}, {}
        self.memory, self.changes = {}, []

    def touch(self, seats: Iterable[Seat]) -> None:
        """Mark the nodes of these seats as changed."""
        self.changes += [seat.node for seat in seats]
        if len(self.changes) > 100_000:
            self.changes, self.memory = [], {}

    def recounted(self, topology: Topology) -> Capacity:
        """The columns, counted from the gangs. The columns that apply maintains must always equal this."""
        capacity = Capacity(topology)
        for node in self.nodes.values():
            capacity.set_up(topology.number[node.spec.name], is_open(node), healthy_gpus(node))
        for gang in self.holders.values():
            for n, seat in seated(topology, gang.all_seats):
                capacity.take(n, seat.gpus, seat.slice_mib, gang.amounts)
                if gang.state is GangState.STOPPING:
                    capacity.pledge(n, gang.amounts, -1)
        for gang in self.claimants.values():
            for n, seat in seated(topology, gang.claim):
                capacity.claim(n, seat.gpus, gang.amounts)
        return capacity

    def charge_for(self, task: TaskDemand, seats: Sequence[Seat]) -> Amounts:
        """The charge of a queue for these seats."""
        topology = self.topology
        found = seated(topology, seats)
        if len(found) == 1:
            n, seat = found[0]
            return self._charge_for_one(task, topology.kind[n], seat.gpus)
        alike: dict[tuple[int, int], int] = {}  # (kind of node, GPUs) -> seats; there are few of these
        for n, seat in found:
            key = (topology.kind[n], seat.gpus)
            alike[key] = alike.get(key, 0) + 1
        total: dict[str, int] = {}
        for (kind, gpus), count in alike.items():
            for name, amount in self._charge_for_one(task, kind, gpus):
                total[name] = total.get(name, 0) + amount * count
        return tuple(sorted(total.items()))

    def _charge_for_one(self, task: TaskDemand, kind: int, gpus: int) -> Amounts:
        """The charge for one seat on a kind of node. A slice is charged as a slice also while it claims a GPU."""
        known = self._charges.get((task, kind, gpus))
        if known is None:
            charge = dict(task.amounts)
            if gpus:
                gpu = self.topology.layouts[kind][gpus.bit_length() - 1]
                milli = task.slice_mib * 1000 // gpu.vram_mib if task.slice_mib else gpus.bit_count() * 1000
                charge |= {GPU_MILLI: milli, f"{GPU_MILLI}:{gpu.model}": milli}
            if len(self._charges) >= 16_384:  # users may submit any number of demands
                self._charges.clear()
            known = self._charges[task, kind, gpus] = tuple(sorted(charge.items()))
        return known

    # ---- timers ------------------------------------------------------------------------------------------------

    def set_timer(self, when_ms: int, gang: Gang) -> None:
        heappush(self.timers, (when_ms, gang.id, gang.attempt))

    def next_timer_ms(self) -> int | None:
        """When the next timer is due; None if there is none."""
        return self.timers[0][0] if self.timers else None

    def due(self, now_ms: int) -> Iterator[Gang]:
        """Gangs with timers that may be due, in order. Reads the heap without changing it."""
        found, pending = [], [0]
        while pending:
            at = pending.pop()
            if at < len(self.timers) and self.timers[at][0] <= now_ms:
                found.append(self.timers[at])
                pending += (2 * at + 1, 2 * at + 2)
        seen = set()
        for _, gang, attempt in sorted(found):
            known = self.gangs.get(gang)
            if known is not None and gang not in seen and known.attempt == attempt:
                seen.add(gang)
                yield known

    def drop_stale_timers(self) -> None:
        """Remove stale timers from the top. Only events of a gang can make its timers stale."""
        while self.timers and not self._is_live(self.timers[0]):
            heappop(self.timers)

    def _is_live(self, timer: Timer) -> bool:
        when, name, attempt = timer
        gang = self.gangs.get(name)
        return gang is not None and not gang.is_over and gang.attempt == attempt and when in deadlines(self, gang)


def awaited_ends(state: State) -> dict[str, int]:
    """The number of open dependencies of each job, counted from the dependents."""
    return dict(Counter(name for waiting in state.dependents.values() for name, _ in waiting))


def deadlines(state: State, gang: Gang) -> tuple[int, ...]:
    """The times at which timers of a gang are due in its current state."""
    spec = state.jobs[gang.job].spec
    if gang.state is GangState.WAITING:
        begin = spec.begin_ms if gang.blockers & Blocker.BEGIN and spec.begin_ms is not None else 0
        latest = 0 if spec.deadline_ms is None else spec.deadline_ms - (spec.expected_ms or 0)
        return (begin, gang.not_before_ms if gang.blockers & Blocker.BACKOFF else 0, latest)
    if gang.state is GangState.STARTING:
        return (gang.placed_ms + spec.start_timeout_ms, *_leave_times(state, gang))
    if gang.state is GangState.RUNNING:
        limit = () if spec.time_limit_ms is None else (gang.started_ms + spec.time_limit_ms,)
        return (*limit, *_leave_times(state, gang))
    if gang.state is GangState.STOPPING and gang.eviction is not None:
        grace = () if gang.grace_over else (gang.eviction.deadline_ms,)
        return (*grace, gang.eviction.judge_ms) if gang.eviction.judge_ms and gang.ended == gang.everyone else grace
    return ()


def _leave_times(state: State, gang: Gang) -> tuple[int, ...]:
    end = leave_ms(state, gang) if state.ending else None
    return () if end is None else (end,)


def leave_ms(state: State, gang: Gang) -> int | None:
    """When a gang must be evicted to have stopped before the first of its nodes is withdrawn."""
    end = seats_end_ms(state, gang.all_seats)
    return None if end is None else end - END_MARGIN_MS - state.jobs[gang.job].spec.grace_ms


def seats_end_ms(state: State, seats: Iterable[Seat]) -> int | None:
    """When the first of these nodes is withdrawn, if known."""
    return min((state.ending[seat.node] for seat in seats if seat.node in state.ending), default=None)


def need_ms(state: State, gang: Gang) -> int:
    """How long a node must remain for a gang to be placed on it: the expected run time; for a gang that saves
    checkpoints, or without an expected time, the restart cost, so that it makes progress. The grace period is added."""
    spec = state.jobs[gang.job].spec
    expected = gang.profile.expected_ms
    run_ms = spec.restart_cost_ms if expected is None else expected
    if spec.checkpoints:
        run_ms = min(run_ms, spec.restart_cost_ms)
    return run_ms + spec.grace_ms + END_MARGIN_MS


def lasts(state: State, gang: Gang, seats: Iterable[Seat], now_ms: int) -> bool:
    """Whether the nodes of these seats remain long enough for a gang to be placed on them now."""
    end = seats_end_ms(state, seats) if state.ending else None
    return end is None or now_ms + need_ms(state, gang) <= end


def node_total(spec: NodeSpec) -> dict[str, int]:
    """The total of a node, in the dimensions in which queues are charged."""
    total = dict(spec.amounts)
    for gpu in spec.gpus:
        for name in (GPU_MILLI, f"{GPU_MILLI}:{gpu.model}"):
            total[name] = total.get(name, 0) + 1000
    return total


def is_open(node: Node) -> bool:
    """Whether a node accepts new tasks."""
    return node.health is Health.HEALTHY and not (node.lost or node.drained or node.cordoned)


def is_leaving(node: Node) -> bool:
    """Whether gangs on a node must be moved away."""
    return node.drained or node.health in (Health.DRAINING, Health.FAILED)


def healthy_gpus(node: Node) -> int:
    everything = (1 << len(node.spec.gpus)) - 1
    return everything & ~sum(1 << gpu for gpu, health in node.gpu_health.items() if health is not Health.HEALTHY)


def seated(topology: Topology, seats: Iterable[Seat]) -> list[tuple[int, Seat]]:
    """Seats with their node numbers; a seat on a node that was removed is left out."""
    number = topology.number
    return [(number[seat.node], seat) for seat in seats if seat.node in number]
