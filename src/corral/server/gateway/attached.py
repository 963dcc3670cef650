"""The gateway and the rest of the server: what each must hear of the other once the state is loaded, until the end.

Knows the loop and the record; in the event loop's thread, but for what the gateway tells. From here on agents are
answered; until then their leases were kept by the gateway alone.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import structlog

from corral.backends.fleet.backend import FleetBackend
from corral.backends.fleet.messages import EndpointAnswer
from corral.core.fleets.fleets import FarewellGiven
from corral.core.people.accounts import AccessRefused
from corral.core.people.commands import node_user
from corral.server.api.entry.rate import Buckets
from corral.server.ending import ServerStopped
from corral.server.gateway.gateway import AgentGateway
from corral.server.gateway.link import Figures
from corral.server.gateway.roster import Credentials
from corral.server.loop import AnyEvent
from corral.server.service import Service
from corral.server.start import FOUNDER

log = structlog.get_logger(__name__)

_DOUBT_MS = 600_000  # by so much the clocks of two servers may differ
_REFUSALS_PER_S, _REFUSALS_BURST = 0.1, 20


class Attached:
    def __init__(self, service: Service, fleet: FleetBackend, gateway: AgentGateway) -> None:
        self._service, self._fleet, self._gateway = service, fleet, gateway
        self._credentials = Credentials(service.accounts)
        self._refusals = Buckets(_REFUSALS_PER_S, _REFUSALS_BURST)
        self._writing: set[asyncio.Future[Any]] = set()
        thread = asyncio.get_running_loop()

        def refuse(node: str, what: str) -> None:
            with suppress(RuntimeError):  # the server has ended meanwhile
                thread.call_soon_threadsafe(self._write_down, node, what)

        service.loop.watchers.append(self._notice)
        fleet.keeper, fleet.endpoint = gateway, EndpointAnswer(gateway.port, gateway.has_tls)
        gateway.count = self._count
        at_ms, lease_ms = service.fleets.farewell
        is_recent = service.now_ms() - at_ms < lease_ms + _DOUBT_MS
        gateway.open(fleet, self._credentials.all(), lease_ms if is_recent else 0, refuse)

    async def say_farewell(self) -> None:
        """The last thing that agents hear of this server. It is in the record before anybody hears it, so that the
        next server, here or elsewhere, gives up no node that may still rely on it."""
        loop, lease_ms = self._service.loop, self._fleet.settings.farewell_ms
        if loop.failure is not None or not self._fleet.standings():
            return
        try:
            await loop.change_fleets(FOUNDER, lambda _fleets, now_ms: [FarewellGiven(now_ms, lease_ms)])
        except ServerStopped as stopped:
            log.warning("no_farewell", error=str(stopped))
            return
        if not await asyncio.to_thread(self._gateway.say_farewell, lease_ms):
            log.warning("farewell_not_heard")

    def _count(self, figures: Figures) -> None:
        counts = self._fleet.counts
        counts.connections, counts.renewals = figures.connections, figures.renewals
        counts.connections_refused, counts.messages_busy = figures.refused, figures.busy

    def _notice(self, event: AnyEvent) -> None:
        if (node := self._credentials.take(event)) is not None:
            self._gateway.set_credentials(node, self._credentials.of(node))

    def _write_down(self, node: str, what: str) -> None:
        """Into the record, but not as often as somebody may like."""
        user, now_ms = node_user(node), self._service.now_ms()
        log.warning("access_refused", user=user, what=what)
        if self._refusals.take(user, now_ms / 1000) == 0 and self._service.loop.failure is None:
            event = AccessRefused(now_ms, user, what)
            task = asyncio.ensure_future(self._service.change_accounts(user, lambda _accounts, _now_ms: [event]))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
