"""The live driver of the engine: apply, write, then act.

Commands and reports become events. Events are applied to the state and handed to the journal immediately, but no
request is answered, no effect is executed and no event is shown before the journal has made them durable. Events that
cannot be applied are not written: the state is read back from the journal, and the request fails. Everything here runs
in one thread, so the state needs no lock. The planner is a separate process, and its plans are checked against the
current state when they arrive. Knows nothing about HTTP, processes or files.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

import structlog
from msgspec import Struct

from corral.core import events as e
from corral.core import facts as f
from corral.core.accounts import identity
from corral.core.accounts.accounts import AccountEvent, Accounts, UserRemoved, UserSet
from corral.core.commit import commit
from corral.core.effects import Effect, effects
from corral.core.engine import Engine, react
from corral.core.fleets.fleets import FleetEvent, Fleets
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.plan import Plan
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.server.clock import Clock
from corral.server.journal_state import JournalState
from corral.server.planner.client import Planner, PlannerError, PlannerHung, PlannerLost
from corral.server.planner.quarantine import Quarantine
from corral.server.shutdown import ServerStopped, settle, traced
from corral.server.timers import Timers
from corral.store.journal import Entry, Journal, JournalHead
from corral.wire.codec import encode

log = structlog.get_logger(__name__)

AnyEvent = e.Event | AccountEvent | FleetEvent
Command = Callable[[State, int], "Sequence[e.Event] | Refusal"]
AccountCommand = Callable[[Accounts, int], "Sequence[AccountEvent] | Refusal"]
FleetCommand = Callable[[Fleets, int], "Sequence[FleetEvent] | Refusal"]

Act = Callable[["BaseException | None"], None]  # called when records are durable, or when they never will be

SYSTEM = "system"  # the actor of records that no user asked for and no node reported

PATIENCE_S = 30.0  # the default time limit of a plan
#: After these events alone there is nothing new to plan.
_CALM = frozenset({e.TasksStarted, e.GangStarted, e.CheckpointCommitted, e.JobForgotten, e.ClaimDropped})
_PLAN_GAP_S = 0.002
_REVIVE_S = 0.2
_LOAD_S = 600.0  # a planner that has not loaded the state by then has failed
_LOSSES = 2  # planners lost in a row before the planner searches for the job that causes it


class Committed(Struct, frozen=True, gc=False):
    """A durable change: its events, and the number of the last of them."""

    seq: int
    events: tuple[AnyEvent, ...]


class Meter(Protocol):
    """Receives durations and counts (``metrics``)."""

    def planned(self, seconds: float, kept: int, dropped: int) -> None: ...
    def plan_failed(self) -> None: ...
    def quarantined(self) -> None: ...
    def restored(self) -> None: ...
    def appended(self, seconds: float) -> None: ...


class Loop:
    """Drives the engine. ``execute`` gets effects once their events are durable; ``watchers`` get durable events."""

    def __init__(
        self, known: JournalState, journal: Journal, planner: Planner, clock: Clock, execute: Callable[[Effect], None]
    ) -> None:
        self.known = known
        self.journal = journal
        self.planner = planner
        self.clock = clock
        self.execute = execute
        self.watchers: list[Callable[[AnyEvent], None]] = []
        self.failure: BaseException | None = None
        self.stopped = asyncio.Event()
        self.keep_ended, self.keep_ended_ms = 1_000, 86_400_000
        self.patience_s = PATIENCE_S  # a planner that has not answered by then is restarted
        self.reload: Callable[[], JournalState] | None = None  # reads the state back from the journal
        self.account_rules = identity.AccountRules()  # the site's rules for accounts of machines
        self.cannot_run_as: identity.CannotRunAs = lambda _: ""
        self.durable_seq = journal.head.seq
        self.meter: Meter | None = None
        self.plans = 0
        self.plan_lag_ms = 0
        self.promised: dict[str, int] = {}  # gang -> start time reserved by the last plan
        self._engine = Engine(known.state, _never_here, self._write)
        self._written, self._bodies = list[AnyEvent](), list[bytes]()
        self._last: Future[JournalHead] | None = None
        self._is_watching, self._since_s = False, 0.0
        self._waiting: deque[tuple[int, Act]] = deque()
        self._wanted = asyncio.Event()
        self._look_again_ms: int | None = None
        self._losses = 0
        self._quarantine = Quarantine(planner, clock, self.hold)
        self.timers = Timers(self, clock.now_ms, (job.id for job in known.state.jobs.values() if job.is_over))

    # ---- commands and facts ------------------------------------------------------------------------------------

    async def change(self, actor: str, command: Command, request: str = "") -> Committed | Refusal:
        """Execute a command of a user. Returns when it is durable."""
        now_ms = self.clock.now_ms()
        answer = command(self.known.state, now_ms)
        if isinstance(answer, Refusal):
            return answer
        return await self._durably(actor, lambda: self._engine.take(answer, now_ms), request)

    async def change_accounts(self, actor: str, command: AccountCommand) -> Committed | Refusal:
        answer = command(self.known.accounts, self.clock.now_ms())
        if isinstance(answer, Refusal):
            return answer
        return await self._durably(actor, lambda: self._take_accounts(answer))

    async def change_fleets(self, actor: str, command: FleetCommand) -> Committed | Refusal:
        answer = command(self.known.fleets, self.clock.now_ms())
        if isinstance(answer, Refusal):
            return answer
        return await self._durably(actor, lambda: self._take_apart(answer))

    def take_fact(self, fact: f.Fact, actor: str = SYSTEM) -> None:
        """Apply a fact that the actor reported. A fact that cannot be applied is dropped and logged as an error."""
        now_ms = self.clock.now_ms()
        try:
            events = react(self.known.state, fact, now_ms)
            if events:
                self._take(actor, lambda: self._engine.take(events, now_ms))
        except Exception as fault:
            if self.failure is not None:
                raise
            log.error("fact_dropped", fact=repr(fact)[:500], error=repr(fault), exc_info=fault)

    def tick(self, gang: str) -> None:
        """A timer of this gang is due."""
        self.take_fact(f.Ticked(gang))

    def forget(self, job: str) -> None:
        """Drop an ended job from memory."""
        now_ms = self.clock.now_ms()
        events = commands.forget(self.known.state, job, now_ms)
        if not isinstance(events, Refusal):
            self._take(SYSTEM, lambda: self._engine.take(events, now_ms))

    def review_accounts(self) -> None:
        """After a start: users and the site's rules for accounts may have changed while no server ran."""
        now_ms = self.clock.now_ms()
        events = self._reviewed(None, now_ms)
        if events:
            self._take(SYSTEM, lambda: self._engine.take(events, now_ms))

    def _take_accounts(self, events: Sequence[AccountEvent]) -> list[Effect]:
        """Apply changes of users and, in the same step, what follows for their jobs, without a plan in between."""
        self._take_apart(events)
        users = {event.user for event in events if isinstance(event, UserSet | UserRemoved)}
        now_ms = self.clock.now_ms()
        followed = self._reviewed(users, now_ms) if users else []
        return self._engine.take(followed, now_ms) if followed else []

    def _reviewed(self, users: Collection[str] | None, now_ms: int) -> list[e.Event]:
        known = self.known
        return identity.review(known.state, known.accounts, users, self.account_rules, self.cannot_run_as, now_ms)

    def _take_apart(self, events: Sequence[AccountEvent | FleetEvent]) -> list[Effect]:
        """Apply events that are not the engine's; they have no effects."""
        self._write(events)
        for event in events:
            self.known.apply(event)
        return []

    # ---- apply, write, then act --------------------------------------------------------------------------------

    def _write(self, events: Sequence[AnyEvent]) -> None:
        """Collect what the engine is about to apply. It goes to the journal together with all that follows from it."""
        if self.failure is not None:
            raise ServerStopped(str(self.failure))
        self._bodies += [encode(event) for event in events]
        self._written += events

    def _take(self, actor: str, take: Callable[[], Sequence[Effect]], request: str = "") -> tuple[AnyEvent, ...]:
        """Apply and write; execute effects and notify watchers when the events are durable.

        Only what was applied is written: a record that cannot be applied would fail again at every start.
        """
        self._written, self._bodies = [], []
        try:
            owed = take()
        except Exception as fault:
            self._read_back(fault)
            raise
        written = tuple(self._written)
        self._append(actor, request)
        if not _CALM.issuperset(map(type, written)):
            self._wanted.set()
        for event in written:
            if isinstance(event, e.JobEnded):
                self.timers.job_ended(event.job, event.at_ms)
        self.timers.look()
        self._when_durable(lambda failure: self._act(written, owed) if failure is None else None)
        return written

    def _append(self, actor: str, request: str) -> None:
        """Pass the applied events to the journal, as one batch."""
        requests = [request if isinstance(event, e.JobSubmitted) else "" for event in self._written]
        rows = zip(self._written, self._bodies, requests, strict=True)
        try:
            self._last = self.journal.append([Entry(event.at_ms, actor, body, mark) for event, body, mark in rows])
        except Exception as fault:  # the state is ahead of the journal
            self.stop(fault)
            raise ServerStopped(str(fault)) from fault
        self.planner.follow(self._bodies)

    def _read_back(self, fault: Exception) -> None:
        """Events were applied in part, and none of them is in the journal: read the state back from the journal.

        No other code has seen the state in between. If it cannot be read back, the server stops and must be restarted.
        """
        if not self._written:
            return  # nothing was applied
        kinds = [type(event).__name__ for event in self._written]
        log.error("events_not_applied", events=kinds[:10], error=repr(fault), exc_info=fault)
        if self.meter is not None:
            self.meter.restored()
        try:
            if self.reload is None:
                raise fault
            if self._last is not None:
                self._last.result(30)
            self.known.become(self.reload())
        except Exception as wrong:
            self.stop(wrong)

    def _act(self, written: Sequence[AnyEvent], owed: Sequence[Effect]) -> None:
        for watcher in self.watchers:
            for event in written:
                watcher(event)
        for effect in owed:
            self.execute(effect)

    async def _durably(self, actor: str, take: Callable[[], Sequence[Effect]], request: str = "") -> Committed:
        written = self._take(actor, take, request)
        seq = self.journal.head.seq
        await self.durable()
        return Committed(seq, written)

    async def durable(self) -> None:
        """Returns when all that was written so far is durable."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._when_durable(lambda failure: settle(done, failure))
        await done

    def _when_durable(self, act: Act) -> None:
        """Call ``act`` when all that was written so far is durable; immediately if it is, or never will be."""
        if self.failure is not None:
            act(self.failure)
        else:
            self._waiting.append((self.journal.head.seq, act))
            self._watch()

    def _watch(self) -> None:
        """Wait for one batch at a time: when the newest is durable, so is everything before it."""
        if self._is_watching or not self._waiting:
            return
        if self._last is None:
            self._release(self.journal.head.seq)
            return
        self._is_watching = True
        self._since_s = time.monotonic()
        loop = asyncio.get_running_loop()
        self._last.add_done_callback(lambda future: loop.call_soon_threadsafe(self._durable, future))

    def _durable(self, future: Future[JournalHead]) -> None:
        self._is_watching = False
        error = future.exception()
        if error is not None:
            self.stop(error)
            return
        if self.meter is not None:
            self.meter.appended(time.monotonic() - self._since_s)
        self._release(future.result().seq)
        self._watch()

    def _release(self, seq: int) -> None:
        self.durable_seq = seq
        try:
            while self._waiting and self._waiting[0][0] <= seq:
                self._waiting.popleft()[1](None)
        except Exception as fault:  # durable effects could not be executed: the next server executes them
            self.stop(fault)

    def stop(self, failure: BaseException) -> None:
        """The server cannot continue, mostly because the journal cannot be written: fail all waiting requests."""
        if self.failure is not None:
            return
        log.error("server_failed", error=str(failure), exc_info=traced(failure))
        self.failure = failure
        self.stopped.set()
        while self._waiting:
            self._waiting.popleft()[1](failure)

    # ---- planning ----------------------------------------------------------------------------------------------

    def want_plan(self) -> None:
        self._wanted.set()

    def resume(self) -> None:
        """After a start: execute the effects that the state requires, and request a plan."""
        for effect in effects(self.known.state):
            self.execute(effect)
        self.want_plan()

    async def run(self) -> None:
        """Plan whenever something has changed or is due."""
        while self.failure is None:
            await self._until_wanted()
            self._wanted.clear()
            try:
                await self._plan()
            except PlannerLost as lost:
                log.warning("planner_lost", error=str(lost))
                self._losses += 1
                await self._begin_planner()
                if self._losses >= _LOSSES:
                    await self._search(str(lost))
            except ServerStopped:
                return
            except Exception as fault:  # in the policy, or in committing its plan
                log.error("plan_failed", error=str(fault), exc_info=not isinstance(fault, PlannerError))
                await self._search(repr(fault))
            else:
                self._losses = 0
                self._quarantine.planned()
            await asyncio.sleep(_PLAN_GAP_S)

    async def _search(self, fault: str) -> None:
        """Planning failed: find the waiting jobs that cause it and hold them."""
        if self.meter is not None:
            self.meter.plan_failed()
        if not await self._quarantine.search(fault, self.patience_s):
            await self._begin_planner()
        self._wanted.set()

    def hold(self, job: str, why: str) -> bool:
        """Quarantine a job. Returns whether that was still possible."""
        now_ms = self.clock.now_ms()
        events = commands.quarantine(self.known.state, job, why, now_ms)
        if isinstance(events, Refusal):
            return False  # it has ended or is held
        self._take(SYSTEM, lambda: self._engine.take(events, now_ms))
        if self.meter is not None:
            self.meter.quarantined()
        return True

    async def _begin_planner(self) -> None:
        """Restart the planner. If that fails, the next plan finds it lost and tries again; there is a pause between."""
        try:
            await self.planner.begin(self.known.pack())
        except (OSError, PlannerLost) as wrong:
            log.error("planner_start_failed", error=str(wrong))
        await asyncio.sleep(_REVIVE_S)
        self._wanted.set()

    async def _until_wanted(self) -> None:
        """Wait until something has changed, a queue changes by its schedule, or the last plan asked to be repeated."""
        now_ms = self.clock.now_ms()
        due = [self.known.state.queues.next_change_ms(now_ms)]
        if self._look_again_ms is not None:
            due.append(self._look_again_ms)
        wait_s = max(0, min(due) - now_ms) / 1000
        with suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s, 3600)):  # wait_for may swallow a cancellation
                await self._wanted.wait()

    async def _plan(self) -> None:
        try:
            async with asyncio.timeout(_LOAD_S):
                await self.planner.ready()
            asked_ms = self.clock.now_ms()
            async with asyncio.timeout(self.patience_s):
                plan = await self.planner.plan(asked_ms)
        except TimeoutError:
            raise PlannerHung(f"no plan within {self.patience_s:g} s") from None
        now_ms = self.clock.now_ms()
        self.plans, self.plan_lag_ms = self.plans + 1, now_ms - asked_ms
        self._look_again_ms = plan.look_again_ms
        self.promised = {promise.gang: promise.at_ms for promise in plan.reservations}
        events = commit(self.known.state, plan, now_ms)
        named = {event.gang for event in events if isinstance(event, e.GangEvent)}
        dropped = sum(decision.gang not in named for decision in plan.decisions)
        if self.meter is not None:
            self.meter.planned((now_ms - asked_ms) / 1000, len(plan.decisions) - dropped, dropped)
        if events:
            was_wanted = self._wanted.is_set()
            self._take(SYSTEM, lambda: self._engine.take(events, now_ms))
            if not was_wanted and not dropped:
                self._wanted.clear()  # these events come from the plan itself


def _never_here(snapshot: Snapshot) -> Plan:
    raise AssertionError(f"plans are made by the planner process, not here ({snapshot.now_ms})")
