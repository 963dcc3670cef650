"""Runs one reconciler for each fleet; starts and stops with the leading server.

Knows which fleets there are and how to open their providers. Everything follows from the journal, so that another
server continues where this one stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from corral.core.fleets.fleets import FarewellGiven, Fleet, FleetEvent
from corral.core.fleets.outlook import follows_demand
from corral.providers.base import Provider, ProviderRefused
from corral.providers.catalog import kind_of, read_settings
from corral.remote.backend import RemoteBackend
from corral.server.planner.client import PlannerError, PlannerLost
from corral.server.provisioning.reconciler import FleetReconciler
from corral.server.service import ServerService
from corral.wire.codec import AnyEvent

log = structlog.get_logger(__name__)

Opened = Callable[[Fleet, str], Provider]


def opened(fleet: Fleet, cluster: str) -> Provider:
    """The provider of a fleet, from the catalog."""
    kind = kind_of(fleet.spec.kind)
    settings = read_settings(kind, fleet.spec.settings)
    missing = kind.missing(settings)
    if missing:
        raise ProviderRefused(missing)
    return kind.opened(settings, cluster)


class ProvisioningController:
    """``urls``: addresses of the server for agents."""

    def __init__(
        self, service: ServerService, backend: RemoteBackend, urls: tuple[str, ...], opened: Opened = opened
    ) -> None:
        self._service = service
        self._backend = backend
        self._urls = urls
        self._opened = opened
        self._reconcilers: dict[str, tuple[FleetReconciler, asyncio.Task[None]]] = {}
        self._news = asyncio.Event()

    def notice(self, event: AnyEvent) -> None:
        """A fleet was changed by a user or a provider: reconcile it now."""
        if isinstance(event, FleetEvent) and not isinstance(event, FarewellGiven):
            self._news.set()
            name = event.spec.name if hasattr(event, "spec") else event.fleet
            if name in self._reconcilers and hasattr(event, "spec"):
                self._reconcilers[name][0].woken.set()

    async def run(self) -> None:
        try:
            while True:
                self._news.clear()
                self._begin_missing()
                await self._news.wait()
        finally:
            tasks = [task for _, task in self._reconcilers.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin_missing(self) -> None:
        for name in self._service.fleets.fleets:
            known = self._reconcilers.get(name)
            if known is None or known[1].done():
                reconciler = FleetReconciler(name, self._service, self._backend, self._urls, self._open, self._target)
                task = asyncio.create_task(reconciler.run())
                task.add_done_callback(partial(self._ended, name))
                self._reconcilers[name] = reconciler, task

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        """A reconciler has ended: its fleet was removed, or it failed and is restarted."""
        if task.cancelled():
            return
        fault = task.exception()
        if fault is not None:
            log.error("fleet_reconciler_failed", fleet=name, error=str(fault), exc_info=fault)
            asyncio.get_running_loop().call_later(1.0, self._news.set)
        elif name in self._service.fleets.fleets:
            self._news.set()

    def _open(self, fleet: Fleet) -> Provider:
        return self._opened(fleet, self._service.fleets.cluster)

    async def _target(self, fleet: Fleet) -> int:
        """The wanted number of nodes: by demand if the fleet scales. If the planner cannot say, it stays as it is."""
        if fleet.is_recalled:
            return 0
        if not follows_demand(fleet):
            return fleet.spec.nodes_min
        try:
            found = await self._service.planning.planner.needs(self._service.now_ms())
        except (PlannerLost, PlannerError) as lost:
            log.warning("demand_unknown", fleet=fleet.spec.name, error=str(lost))
            return len(fleet.wanted)
        return found.get(fleet.spec.name, fleet.spec.nodes_min)
