"""A provider in memory with a fixed number of machines. For tests and demonstrations of the layers above.

Knows pilots and their phases. What happens when a pilot starts or ends is up to the creator: nothing, an agent in a
thread, a process. Its pilots outlive `close`: another provider on the same cloud simulates the restart of a server.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from msgspec import Struct

from corral.providers.base import PilotOrder, PilotPhase, PilotStatus, ProviderRefused, ProviderUnavailable, raise_any


class _Pilot(Struct):
    order: PilotOrder
    phase: PilotPhase = PilotPhase.WAITING
    node: str = ""
    why: str = "no machine is free"


class FakeCloud:
    """``nodes``: how many machines there are. ``start`` and ``end`` are called when a pilot starts and when it ends,
    from any thread. ``lose_answers``: this many of the next requests are executed, but answered with
    `ProviderUnavailable`."""

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
        self.acquired: list[str] = []  # every pilot that was ever created, in order

    # --- called by providers ------------------------------------------------------------------------------------------

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        faults: list[ProviderUnavailable | ProviderRefused] = []
        with self._lock:
            self._check_available()
            for order in orders:
                try:
                    self._acquire(order)
                except (ProviderUnavailable, ProviderRefused) as fault:
                    faults.append(fault)
        raise_any(faults)

    def look(self, pilots: Sequence[str]) -> list[PilotStatus]:
        with self._lock:
            self._check_available()
            return [self._status_of(pilot) for pilot in pilots if pilot in self._pilots]

    def release(self, pilot: str) -> None:
        with self._lock:
            self._check_available()
            self.take_away(pilot, "released")
            self._lose_answer()

    def _acquire(self, order: PilotOrder) -> None:
        if order.pilot in self._pilots:
            return
        if self.refusal:
            raise ProviderRefused(self.refusal)
        self._pilots[order.pilot] = _Pilot(order)
        self.acquired.append(order.pilot)
        self._start_waiting()
        self._lose_answer()

    def _check_available(self) -> None:
        if self.is_away:
            raise ProviderUnavailable("the provider does not answer")

    def _lose_answer(self) -> None:
        if self.lose_answers:
            self.lose_answers -= 1
            raise ProviderUnavailable("the answer was lost")

    def _status_of(self, name: str) -> PilotStatus:
        pilot = self._pilots[name]
        is_started = pilot.phase is PilotPhase.STARTED
        return PilotStatus(
            pilot=name, phase=pilot.phase, where=pilot.node, why=pilot.why, left_ms=self.left_ms if is_started else None
        )

    def _start_waiting(self) -> None:
        for pilot in self._pilots.values():
            if pilot.phase is PilotPhase.WAITING and self._free:
                pilot.phase = PilotPhase.STARTED
                pilot.node = self._free.pop()
                pilot.why = ""
                self._start(pilot.order)

    # --- called by tests ----------------------------------------------------------------------------------------------

    def take_away(self, name: str, why: str = "taken away") -> None:
        """End the pilot; its machine is free for another."""
        with self._lock:
            pilot = self._pilots.get(name)
            if pilot is None or pilot.phase is PilotPhase.ENDED:
                return
            was_started = pilot.phase is PilotPhase.STARTED
            pilot.phase, pilot.why = PilotPhase.ENDED, why
            if was_started:
                self._free.append(pilot.node)
                self._end(name)
            self._start_waiting()

    def forget(self, name: str) -> None:
        """Like a provider that lost its state: it does not know the pilot, which may still run."""
        with self._lock:
            self._pilots.pop(name, None)

    def live(self) -> list[str]:
        with self._lock:
            return [name for name, pilot in self._pilots.items() if pilot.phase is not PilotPhase.ENDED]


class FakeProvider:
    def __init__(self, engine: FakeCloud) -> None:
        self.engine = engine

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        self.engine.acquire(orders)

    def look(self, pilots: Sequence[str]) -> Sequence[PilotStatus]:
        return self.engine.look(pilots)

    def release(self, pilot: str) -> None:
        self.engine.release(pilot)

    def close(self) -> None:
        """The cloud stays as it is."""


def _nothing(_: object) -> None:
    """The default: no action."""
