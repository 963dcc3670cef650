"""The simulator's driver: a heap of future events, and the engine that decides after each of them.

Uses the same engine as the live server. At one instant reports come first, then faults, then new jobs, then the plan;
what takes no time happens before the clock advances. Draws no random numbers: the same workload, cluster, policy and
faults give the same events, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from corral.core import events as e
from corral.core import facts as f
from corral.core.commit import commit
from corral.core.engine import Policy, apply_all, react
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import NEVER_MS, JobSpec, QueueSpec, Settings
from corral.core.plan import Place
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.sim.cluster_spec import ClusterSpec
from corral.sim.faults import NodeDies
from corral.sim.world import FREE, Costs, Item, Save, SaveWritten, SpeedModel, World

Write = Callable[[Sequence[e.Event]], None]

#: Most plans at one instant. More of them mean that the policy does not terminate.
ROUNDS_MAX = 1_000
_FREES_NOTHING = frozenset({f.TasksUp, f.Saved})
_OF_THE_JOB = frozenset({Save, SaveWritten})
REPORT, MISHAP = 0, 1  # at one instant, reports come first


class Arrival(Struct, frozen=True, gc=False):
    """A job as it is submitted, and its true work."""

    id: str
    at_ms: int
    spec: JobSpec
    user: str
    work_ms: int
    exit_code: int = 0


class Simulation:
    """One run. ``write`` sees every event; ``refuse`` every job that was not accepted, and why.

    ``admit`` may add to a job when it arrives, for example an estimate of its run time.
    """

    def __init__(
        self,
        cluster: ClusterSpec,
        arrivals: Sequence[Arrival],
        policy: Policy,
        write: Write,
        *,
        queues: Iterable[QueueSpec] = (),
        costs: Costs = FREE,
        speed: SpeedModel | None = None,
        mishaps: Iterable[tuple[int, f.Fact | NodeDies]] = (),
        settings: Settings | None = None,
        refuse: Callable[[Arrival, Refusal], None] | None = None,
        admit: Callable[[Arrival], JobSpec] | None = None,
    ) -> None:
        self.state = State(settings or Settings(levels=cluster.levels))
        self.policy = policy
        self.write = write
        self.arrivals, self._next_arrival = arrivals, 0
        self.refuse, self.admit = refuse, admit
        self.begin_ms = self.now_ms = arrivals[0].at_ms if arrivals else 0
        self.world = World(
            self.state,
            {arrival.id: arrival.work_ms for arrival in arrivals},
            self.later,
            costs,
            speed,
            {arrival.id: arrival.exit_code for arrival in arrivals if arrival.exit_code},
        )
        self._agenda: list[tuple[int, int, int, Item]] = []
        self.delivery_times: Callable[[int], Sequence[int]] | None = None  # when a report sent at a time arrives
        self.steps = 0  # instants simulated
        self._tickets = 0  # at the same time, the item that was added first comes first
        self._look_again_ms = NEVER_MS
        for node in cluster.nodes:
            self._take(granted(commands.add_node(self.state, node, self.now_ms)))
        for queue in queues:
            self._take(granted(commands.set_queue(self.state, queue, self.now_ms)))
        for when_ms, fact in mishaps:
            self._put(when_ms, MISHAP, fact)

    def run(self, until_ms: int = NEVER_MS) -> None:
        """Run until all jobs have ended, or until a time."""
        while self.step(until_ms):
            pass

    def step(self, until_ms: int = NEVER_MS) -> bool:
        """Advance to the next instant with an event, and simulate it. False: there is none."""
        then_ms = self.next_ms()
        if then_ms > until_ms or then_ms >= NEVER_MS:
            return False
        self.now_ms = max(self.now_ms, then_ms)
        self.steps += 1
        timer = self.state.next_timer_ms()
        if timer is not None and timer <= self.now_ms:
            self._tell(f.Ticked())
        self._deliver()
        self._submit()
        self._plan()
        return True

    def next_ms(self) -> int:
        """The time of the next event; NEVER_MS if all jobs have ended, even if faults remain."""
        if self.is_over:
            return NEVER_MS
        times = [self._look_again_ms]
        if self._agenda:
            times.append(self._agenda[0][0])
        if self._next_arrival < len(self.arrivals):
            times.append(self.arrivals[self._next_arrival].at_ms)
        if len(times) > 1 or self.state.backlog.count or self.state.holders:
            times.append(self.state.queues.next_change_ms(self.now_ms))
            if (timer := self.state.next_timer_ms()) is not None:
                times.append(timer)
        return min(times)

    @property
    def is_over(self) -> bool:
        """Whether every job was submitted and has ended."""
        state = self.state
        is_busy = state.backlog.count or state.holders or state.claimants or state.timers
        return not is_busy and self._next_arrival == len(self.arrivals)

    def later(self, when_ms: int, item: Item) -> None:
        # reports can be lost or duplicated; what a job does itself cannot
        for arrives_ms in (
            (when_ms,) if self.delivery_times is None or type(item) in _OF_THE_JOB else self.delivery_times(when_ms)
        ):
            self._put(arrives_ms, REPORT, item)

    def _put(self, when_ms: int, order: int, item: Item) -> None:
        self._tickets += 1
        heappush(self._agenda, (when_ms, order, self._tickets, item))

    def _deliver(self) -> bool:
        """Handle all due events. Returns whether capacity may have become free."""
        now = self.now_ms
        agenda = self._agenda
        has_freed = False
        while agenda and agenda[0][0] <= now:
            fact = self.world.happen(heappop(agenda)[3], now)
            if fact is not None:
                self._tell(fact)
                has_freed = has_freed or type(fact) not in _FREES_NOTHING
        return has_freed

    def _submit(self) -> None:
        while self._next_arrival < len(self.arrivals) and self.arrivals[self._next_arrival].at_ms <= self.now_ms:
            arrival = self.arrivals[self._next_arrival]
            self._next_arrival += 1
            spec = arrival.spec if self.admit is None else self.admit(arrival)
            answer = commands.submit(self.state, arrival.id, spec, arrival.user, self.now_ms)
            if not isinstance(answer, Refusal):
                self._take(answer)
            elif self.refuse is not None:
                self.refuse(arrival, answer)

    def _plan(self) -> None:
        """Plan, apply what takes no time, and plan again while there is something to decide."""
        for _ in range(ROUNDS_MAX):
            if not self._has_questions():
                self._look_again_ms = NEVER_MS
                return
            plan = self.policy(Snapshot(self.state, self.now_ms))
            self._take(commit(self.state, plan, self.now_ms))
            has_freed = self._deliver()
            self._look_again_ms = NEVER_MS if plan.look_again_ms is None else plan.look_again_ms
            if not has_freed and all(type(decision) is Place for decision in plan.decisions):
                return
        raise RuntimeError(f"the policy does not stop planning at {self.now_ms} ms")

    def _has_questions(self) -> bool:
        """Whether there is anything to decide: a gang waits, must move, or could grow."""
        state = self.state
        return bool(state.backlog.count or state.claimants or state.broken or state.draining or state.elastic)

    def _tell(self, fact: f.Fact) -> None:
        self._take(react(self.state, fact, self.now_ms))

    def _take(self, events: Sequence[e.Event]) -> None:
        """Apply, write, then act."""
        if events:
            applied = apply_all(self.state, events, self.now_ms)
            self.write(applied.events)
            if applied.effects:
                self.world.obey(applied.effects, self.now_ms)


def granted(answer: commands.Answer) -> list[e.Event]:
    """The events of a command that must be possible."""
    if isinstance(answer, Refusal):
        raise ValueError(str(answer))
    return answer
