"""The live driver of the engine: apply, write, then act.

Commands and reports become events. Events are applied to the state and passed to the journal immediately, as one batch
with all that follows from them; what they cause is held back until they are durable. Events that cannot be applied are
not written: the state is read back from the journal, and the request fails. Everything here runs in one thread, so the
state needs no lock. Knows nothing about HTTP, processes, files or plans.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import structlog

from corral.core import events as e
from corral.core import facts as f
from corral.core.accounts import identity
from corral.core.accounts.accounts import AccountEvent, Accounts, UserRemoved, UserSet
from corral.core.effects import Effect
from corral.core.engine import apply_all, react
from corral.core.fleets.fleets import FleetEvent, Fleets
from corral.core.intake.refusal import Refusal
from corral.core.state import State
from corral.server.clock import Clock
from corral.server.durability import Batch, Durability
from corral.server.journal_state import JournalState, are_of_engine
from corral.wire.codec import AnyEvent, encode

log = structlog.get_logger(__name__)

Command = Callable[[State, int], "Sequence[e.Event] | Refusal"]
AccountCommand = Callable[[Accounts, int], "Sequence[AccountEvent] | Refusal"]
FleetCommand = Callable[[Fleets, int], "Sequence[FleetEvent] | Refusal"]

SYSTEM = "system"  # the actor of records that no user asked for and no node reported
_FLUSH_S = 30.0


class Meter:
    """Receives durations and counts, and ignores them. ``metrics`` exports them."""

    def planned(self, seconds: float, kept: int, dropped: int) -> None: ...
    def plan_failed(self) -> None: ...
    def quarantined(self) -> None: ...
    def restored(self) -> None: ...


class Loop:
    """``reload`` reads the state back from the journal. ``listeners`` get every batch when it is applied and passed to
    the journal, before it is durable."""

    def __init__(
        self, known: JournalState, durability: Durability, clock: Clock, reload: Callable[[], JournalState]
    ) -> None:
        self.known = known
        self.durability = durability
        self.clock = clock
        self.reload = reload
        self.listeners: list[Callable[[Batch], None]] = []
        self.account_rules = identity.AccountRules()  # the site's rules for accounts of machines
        self.cannot_run_as: identity.CannotRunAs = lambda _: ""
        self.meter = Meter()

    async def change(self, actor: str, command: Command, request: str = "") -> Batch | Refusal:
        """Execute a command of a user. Returns when it is durable."""
        now_ms = self.clock.now_ms()
        return await self._durably(actor, command(self.known.state, now_ms), now_ms, request)

    async def change_accounts(self, actor: str, command: AccountCommand) -> Batch | Refusal:
        now_ms = self.clock.now_ms()
        return await self._durably(actor, command(self.known.accounts, now_ms), now_ms)

    async def change_fleets(self, actor: str, command: FleetCommand) -> Batch | Refusal:
        now_ms = self.clock.now_ms()
        return await self._durably(actor, command(self.known.fleets, now_ms), now_ms)

    async def _durably(
        self, actor: str, answer: Sequence[AnyEvent] | Refusal, now_ms: int, request: str = ""
    ) -> Batch | Refusal:
        if isinstance(answer, Refusal):
            return answer
        batch = self.take(actor, answer, now_ms, request)
        await self.durability.wait()
        return batch

    def take_fact(self, fact: f.Fact, actor: str = SYSTEM) -> None:
        """Apply a fact that the actor reported. A fact that cannot be applied is dropped and logged as an error."""
        now_ms = self.clock.now_ms()
        try:
            events = react(self.known.state, fact, now_ms)
            if events:
                self.take(actor, events, now_ms)
        except Exception as fault:
            if self.durability.failure is not None:
                raise
            log.error("fact_dropped", fact=repr(fact)[:500], error=repr(fault), exc_info=fault)

    def review_accounts(self) -> None:
        """After a start: users and the site's rules for accounts may have changed while no server ran."""
        now_ms = self.clock.now_ms()
        events = self._reviewed(None, now_ms)
        if events:
            self.take(SYSTEM, events, now_ms)

    def take(self, actor: str, events: Sequence[AnyEvent], now_ms: int, request: str = "") -> Batch:
        """Apply events and all that follows from them, and pass them to the journal as one batch.

        Only what was applied is written: a record that cannot be applied would fail again at every start.
        """
        self.durability.check()
        bodies = [encode(event) for event in events]
        try:
            applied, effects = self._apply(events, now_ms)
            bodies += [encode(event) for event in applied[len(events) :]]
        except Exception as fault:
            self._read_back(events, fault)
            raise
        batch = Batch(actor, request, applied, bodies, effects)
        self.durability.append(batch)
        for listener in self.listeners:
            listener(batch)
        return batch

    def _apply(self, events: Sequence[AnyEvent], now_ms: int) -> tuple[Sequence[AnyEvent], Sequence[Effect]]:
        """All that was applied, and the effects. What a change of users means for their jobs follows immediately."""
        if are_of_engine(events):
            applied = apply_all(self.known.state, events, now_ms)
            return applied.events, applied.effects
        for event in events:
            self.known.apply(event)
        users = {event.user for event in events if isinstance(event, UserSet | UserRemoved)}
        applied = apply_all(self.known.state, self._reviewed(users, now_ms), now_ms)
        return [*events, *applied.events], applied.effects

    def _reviewed(self, users: Collection[str] | None, now_ms: int) -> list[e.Event]:
        known = self.known
        return identity.review(known.state, known.accounts, users, self.account_rules, self.cannot_run_as, now_ms)

    def _read_back(self, events: Sequence[AnyEvent], fault: Exception) -> None:
        """Events were applied in part, and none of them is in the journal: read the state back from the journal.

        No other code has seen the state in between. If it cannot be read back, the server stops and must be restarted.
        """
        kinds = [type(event).__name__ for event in events]
        log.error("events_not_applied", events=kinds[:10], error=repr(fault), exc_info=fault)
        self.meter.restored()
        try:
            self.durability.flush(_FLUSH_S)
            self.known.become(self.reload())
        except Exception as wrong:
            self.durability.stop(wrong)
