"""All fleets of this server, each tended by itself; begun with the server that leads, and ended with it.

Knows which fleets there are and where their carriers come from. Everything is worked out from what is in the journal,
so that another server goes on where this one ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from corral.backends.carriers.base import Carrier, CarrierRefused
from corral.backends.carriers.catalog import kind_of, read_settings
from corral.backends.fleet.backend import FleetBackend
from corral.core.fleets.fleets import FarewellGiven, Fleet, FleetEvent
from corral.policy.demand import follows_demand
from corral.server.carrying.tending import Tender
from corral.server.loop import AnyEvent
from corral.server.planning.planner import PlannerLost, ThoughtFailed
from corral.server.service import Service

log = structlog.get_logger(__name__)

Opened = Callable[[Fleet, str], Carrier]


def opened(fleet: Fleet, cluster: str) -> Carrier:
    """The carrier of a fleet, from the catalog."""
    kind = kind_of(fleet.spec.kind)
    settings = read_settings(kind, fleet.spec.settings)
    missing = kind.missing(settings)
    if missing:
        raise CarrierRefused(missing)
    return kind.opened(settings, cluster)


class Carrying:
    """``urls``: where agents find the server."""

    def __init__(self, service: Service, backend: FleetBackend, urls: tuple[str, ...], opened: Opened = opened) -> None:
        self._service, self._backend, self._urls, self._opened = service, backend, urls, opened
        self._tenders: dict[str, tuple[Tender, asyncio.Task[None]]] = {}
        self._news = asyncio.Event()

    def notice(self, event: AnyEvent) -> None:
        """Something that people or engines did to a fleet: look at once."""
        if isinstance(event, FleetEvent) and not isinstance(event, FarewellGiven):
            self._news.set()
            name = event.spec.name if hasattr(event, "spec") else event.fleet
            if name in self._tenders and hasattr(event, "spec"):
                self._tenders[name][0].woken.set()

    async def run(self) -> None:
        try:
            while True:
                self._news.clear()
                self._begin_missing()
                await self._news.wait()
        finally:
            tasks = [task for _, task in self._tenders.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _begin_missing(self) -> None:
        for name in self._service.fleets.fleets:
            known = self._tenders.get(name)
            if known is None or known[1].done():
                tender = Tender(name, self._service, self._backend, self._urls, self._open, self._target)
                task = asyncio.create_task(tender.run())
                task.add_done_callback(partial(self._ended, name))
                self._tenders[name] = tender, task

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        """Its fleet is gone, or it met a fault that it did not expect: then it is begun anew."""
        if task.cancelled():
            return
        fault = task.exception()
        if fault is not None:
            log.error("tender_failed", fleet=name, error=str(fault), exc_info=fault)
            asyncio.get_running_loop().call_later(1.0, self._news.set)
        elif name in self._service.fleets.fleets:
            self._news.set()

    def _open(self, fleet: Fleet) -> Carrier:
        return self._opened(fleet, self._service.fleets.cluster)

    async def _target(self, fleet: Fleet) -> int:
        """As many as work asks for, where that is followed. While nobody can say, none are let go and none are had."""
        if fleet.is_recalled:
            return 0
        if not follows_demand(fleet):
            return fleet.spec.nodes_min
        try:
            found = await self._service.loop.planner.needs(self._service.now_ms())
        except (PlannerLost, ThoughtFailed) as lost:
            log.warning("no_needs", fleet=fleet.spec.name, error=str(lost))
            return len(fleet.wanted)
        return found.get(fleet.spec.name, fleet.spec.nodes_min)
