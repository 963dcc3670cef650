"""Connects the gateway with the rest of the server, once the state is loaded.

Knows the loop and the journal. Runs in the thread of the event loop, except for callbacks of the gateway. From here on
agents are answered; until then the gateway only renewed their leases.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import structlog

from corral.core.accounts.accounts import AccessRefused
from corral.core.accounts.commands import node_user
from corral.core.fleets.fleets import FarewellGiven
from corral.remote.backend import RemoteBackend
from corral.remote.messages import EndpointAnswer
from corral.server.api.http.rate_limit import Buckets
from corral.server.gateway.gateway import AgentGateway
from corral.server.gateway.link import Figures
from corral.server.gateway.roster import NodeCredentials
from corral.server.loop import SYSTEM
from corral.server.service import ServerService
from corral.server.shutdown import ServerStopped
from corral.wire.codec import AnyEvent

log = structlog.get_logger(__name__)

_DOUBT_MS = 600_000  # the clocks of two servers may differ by this much
_REFUSALS_PER_S, _REFUSALS_BURST = 0.1, 20


class Attached:
    def __init__(self, service: ServerService, fleet: RemoteBackend, gateway: AgentGateway) -> None:
        self._service = service
        self._fleet = fleet
        self._gateway = gateway
        self._credentials = NodeCredentials(service.accounts)
        self._refusals = Buckets(_REFUSALS_PER_S, _REFUSALS_BURST)
        self._writing: set[asyncio.Future[Any]] = set()
        thread = asyncio.get_running_loop()

        def refuse(node: str, what: str) -> None:
            with suppress(RuntimeError):  # the server has ended meanwhile
                thread.call_soon_threadsafe(self._write_down, node, what)

        service.loop.durability.watchers.append(self._notice)
        fleet.keeper, fleet.endpoint = gateway, EndpointAnswer(gateway.port, gateway.has_tls)
        gateway.count = self._count
        at_ms, lease_ms = service.fleets.farewell
        is_recent = service.now_ms() - at_ms < lease_ms + _DOUBT_MS
        gateway.open(fleet, self._credentials.all(), lease_ms if is_recent else 0, refuse)

    async def say_farewell(self) -> None:
        """Give all agents a last, longer lease before the server stops. It is in the journal first, so that the next
        server, here or elsewhere, does not declare a node lost that still relies on it."""
        lease_ms = self._fleet.settings.farewell_ms
        if self._service.has_failed or not self._fleet.lease_statuses():
            return
        try:
            await self._service.change_fleets(SYSTEM, lambda _fleets, now_ms: [FarewellGiven(now_ms, lease_ms)])
        except ServerStopped as stopped:
            log.warning("farewell_failed", error=str(stopped))
            return
        if not await asyncio.to_thread(self._gateway.say_farewell, lease_ms):
            log.warning("farewell_not_confirmed")

    def _count(self, figures: Figures) -> None:
        counts = self._fleet.counts
        counts.connections, counts.renewals = figures.connections, figures.renewals
        counts.connections_refused, counts.messages_busy = figures.refused, figures.busy

    def _notice(self, event: AnyEvent) -> None:
        if (node := self._credentials.take(event)) is not None:
            self._gateway.set_credentials(node, self._credentials.of(node))

    def _write_down(self, node: str, what: str) -> None:
        """Record a refused access in the journal, at a limited rate."""
        user, now_ms = node_user(node), self._service.now_ms()
        log.warning("access_refused", user=user, what=what)
        if self._refusals.take(user, now_ms / 1000) == 0 and not self._service.has_failed:
            event = AccessRefused(now_ms, user, what)
            task = asyncio.ensure_future(self._service.change_accounts(user, lambda _accounts, _now_ms: [event]))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)
