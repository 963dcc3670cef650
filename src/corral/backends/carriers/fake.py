"""An engine in memory: it gives as many machines as it was told to have. For tests and demonstrations of what stands
above.

Knows pilots and their phases. What starting and ending a pilot amounts to is up to whoever made it: nothing, an agent
in a thread, a process. What it holds outlives `close`: another carrier on the same engine is the restart of a server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from msgspec import Struct

from corral.backends.carriers.base import CarrierAway, CarrierRefused, PilotOrder, PilotPhase, Sighting, raise_any


class _Pilot(Struct):
    order: PilotOrder
    phase: PilotPhase = PilotPhase.WAITING
    node: str = ""
    why: str = "no machine is free"


class FakeEngine:
    """``nodes``: how many machines there are. ``start`` and ``end`` are called when a pilot begins and when it is over,
    from any thread. ``lose_answers``: so many of the next orders and releases are carried out and answered with
    `CarrierAway`."""

    def __init__(
        self,
        nodes: int = 4,
        start: Callable[[PilotOrder], None] | None = None,
        end: Callable[[str], None] | None = None,
    ) -> None:
        self._free = [f"machine-{number}" for number in range(nodes, 0, -1)]
        self._start, self._end = start or _nothing, end or _nothing
        self._pilots: dict[str, _Pilot] = {}
        self._lock = threading.RLock()
        self.left_ms: int | None = None
        self.is_away = False
        self.lose_answers = 0
        self.refusal = ""
        self.acquired: list[str] = []  # every pilot that ever came to be, in order

    # --- what carriers ask --------------------------------------------------------------------------------------------

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        faults: list[CarrierAway | CarrierRefused] = []
        with self._lock:
            self._answer()
            for order in orders:
                try:
                    self._acquire(order)
                except (CarrierAway, CarrierRefused) as fault:
                    faults.append(fault)
        raise_any(faults)

    def look(self, pilots: Sequence[str]) -> list[Sighting]:
        with self._lock:
            self._answer()
            return [self._sighting(pilot) for pilot in pilots if pilot in self._pilots]

    def release(self, pilot: str) -> None:
        with self._lock:
            self._answer()
            self.take_away(pilot, "released")
            self._lose_answer()

    def _acquire(self, order: PilotOrder) -> None:
        if order.pilot in self._pilots:
            return
        if self.refusal:
            raise CarrierRefused(self.refusal)
        self._pilots[order.pilot] = _Pilot(order)
        self.acquired.append(order.pilot)
        self._begin_waiting()
        self._lose_answer()

    def _answer(self) -> None:
        if self.is_away:
            raise CarrierAway("the engine does not answer")

    def _lose_answer(self) -> None:
        if self.lose_answers:
            self.lose_answers -= 1
            raise CarrierAway("the answer was lost")

    def _sighting(self, name: str) -> Sighting:
        pilot = self._pilots[name]
        is_started = pilot.phase is PilotPhase.STARTED
        return Sighting(
            pilot=name, phase=pilot.phase, where=pilot.node, why=pilot.why, left_ms=self.left_ms if is_started else None
        )

    def _begin_waiting(self) -> None:
        for pilot in self._pilots.values():
            if pilot.phase is PilotPhase.WAITING and self._free:
                pilot.phase, pilot.node, pilot.why = PilotPhase.STARTED, self._free.pop(), ""
                self._start(pilot.order)

    # --- what happens to it -------------------------------------------------------------------------------------------

    def take_away(self, name: str, why: str = "taken away") -> None:
        """The pilot is over, and its machine is free for another."""
        with self._lock:
            pilot = self._pilots.get(name)
            if pilot is None or pilot.phase is PilotPhase.ENDED:
                return
            was_started = pilot.phase is PilotPhase.STARTED
            pilot.phase, pilot.why = PilotPhase.ENDED, why
            if was_started:
                self._free.append(pilot.node)
                self._end(name)
            self._begin_waiting()

    def forget(self, name: str) -> None:
        """As an engine that lost its memory: it knows nothing of the pilot, which may go on all the same."""
        with self._lock:
            self._pilots.pop(name, None)

    def live(self) -> list[str]:
        with self._lock:
            return [name for name, pilot in self._pilots.items() if pilot.phase is not PilotPhase.ENDED]


class FakeCarrier:
    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        self.engine.acquire(orders)

    def look(self, pilots: Sequence[str]) -> Sequence[Sighting]:
        return self.engine.look(pilots)

    def release(self, pilot: str) -> None:
        self.engine.release(pilot)

    def close(self) -> None:
        """The engine goes on."""


def _nothing(_: object) -> None:
    """Nobody cares."""
