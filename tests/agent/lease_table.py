"""The gateway's table of leases without a gateway: in the same process as the fleet, by a clock that is set."""

from __future__ import annotations

import threading
from collections.abc import Callable

from corral.remote.backend import RemoteBackend
from corral.remote.leases import Leases, LeaseStatus
from corral.remote.messages import LeaseAnswer, Renewal

FOR_EVER_MS = 1 << 60


class InProcessKeeper:
    """Implements ``LeaseKeeper`` and what a line asks of the gateway."""

    def __init__(self, fleet: RemoteBackend, epoch: int, now_ms: Callable[[], int]) -> None:
        self._fleet, self._now_ms = fleet, now_ms
        self._leases, self._lock = Leases(fleet.settings, epoch), threading.Lock()
        self._leases.delegate(FOR_EVER_MS)
        self._leases.begin(fleet.lease_statuses(), now_ms())
        fleet.keeper = self

    def admit(self, node: str, status: LeaseStatus) -> None:
        with self._lock:
            self._leases.admit(node, status, self._now_ms())

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
