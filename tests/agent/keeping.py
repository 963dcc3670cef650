"""The gateway's table of leases without a gateway: in the same process as the fleet, by a clock that is told in."""

from __future__ import annotations

import threading
from collections.abc import Callable

from corral.backends.fleet.backend import FleetBackend
from corral.backends.fleet.leases import Leases, Standing
from corral.backends.fleet.messages import LeaseAnswer, Renewal

FOR_EVER_MS = 1 << 60


class InProcessKeeper:
    """Implements ``LeaseKeeper`` and what a line asks of the gateway."""

    def __init__(self, fleet: FleetBackend, epoch: int, now_ms: Callable[[], int]) -> None:
        self._fleet, self._now_ms = fleet, now_ms
        self._leases, self._lock = Leases(fleet.settings, epoch), threading.Lock()
        self._leases.delegate(FOR_EVER_MS)
        self._leases.begin(fleet.standings(), now_ms())
        fleet.keeper = self

    def admit(self, node: str, standing: Standing) -> None:
        with self._lock:
            self._leases.admit(node, standing, self._now_ms())

    def drop(self, node: str) -> None:
        with self._lock:
            self._leases.drop(node)

    def renew(self, node: str, asked: Renewal) -> LeaseAnswer:
        with self._lock:
            return self._leases.renew(node, asked, self._now_ms())

    def sweep(self) -> None:
        with self._lock:
            over = self._leases.sweep(self._now_ms())
        for node, term in over:
            self._fleet.give_up(node, term)
