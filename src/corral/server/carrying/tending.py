"""One fleet, tended: look at its pilots, work out what is owed, do it, and again.

All that is known is in the journal; what is kept here (since when a node is idle, since when an engine knows nothing of
a pilot) is only about time and may be lost. Whatever a carrier does or raises, it is trouble of the fleet and of
nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

from corral.backends.carriers.base import Carrier, CarrierAway, CarrierRefused, PilotOrder, Sighting
from corral.backends.fleet.backend import FleetBackend
from corral.core import facts
from corral.core.fleets import fleets as f
from corral.core.fleets.fleets import Fleet, FleetEvent, NodeShape, Pilot, PilotPhase
from corral.core.fleets.upkeep import Owed, Standing, is_too_dear, upkeep
from corral.core.intake import commands as cluster
from corral.core.intake.refusal import Refusal
from corral.core.people import commands as people
from corral.server.auth import Verb, may, new_token
from corral.server.carrying.caller import Caller
from corral.server.ending import ServerStopped
from corral.server.loop import WORLD
from corral.server.service import Service

log = structlog.get_logger(__name__)

ACTOR = "fleet"
TICKET_MS = 7 * 86_400_000  # a pilot may wait for long in the line of its engine
AT_ONCE = 64  # pilots asked for, and let go, between two looks
LOOK_S, CALM_S = 1.0, 5.0
_RETRY_MS, _RETRY_MS_MAX = 2_000, 60_000
_SAME_END_MS = 5_000
_WHY_MS = 30_000  # why a pilot waits changes often; so often it is written down

#: How many nodes a fleet should have now.
Target = Callable[[Fleet], Awaitable[int]]


class Tender:
    """``urls``: where agents find the server. ``opened`` gives the carrier of a fleet."""

    def __init__(
        self,
        name: str,
        service: Service,
        backend: FleetBackend,
        urls: tuple[str, ...],
        opened: Callable[[Fleet], Carrier],
        target: Target,
    ) -> None:
        self.name, self._service, self._backend, self._urls = name, service, backend, urls
        self._opened, self._target = opened, target
        self._caller = Caller(name)
        self._carrier: Carrier | None = None
        self._carried: f.FleetSpec | None = None
        self._since: dict[str, tuple[str, int]] = {}  # node -> how it is, since when
        self._absent: dict[str, int] = {}
        self._told_ms: dict[str, int] = {}
        self._wanted: list[tuple[int, int]] = []  # (when, how many nodes): of the last while
        self._retry_ms, self._wait_ms = 0, _RETRY_MS
        self.woken = asyncio.Event()

    # ---- its life ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until the fleet is gone."""
        try:
            while (fleet := self._service.fleets.fleets.get(self.name)) is not None:
                self.woken.clear()
                await self._once(fleet)
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._pause_s()):
                        await self.woken.wait()
        finally:
            await self._close()

    async def _close(self) -> None:
        carrier, self._carrier = self._carrier, None
        if carrier is not None:
            with suppress(Exception):
                async with asyncio.timeout(1.0):
                    await self._caller.call(carrier.close)
        self._caller.close()

    def _pause_s(self) -> float:
        fleet = self._service.fleets.fleets.get(self.name)
        if fleet is None:
            return 0.0
        is_calm = not fleet.trouble and all(
            pilot.joined_ms is not None and pilot.recalled_ms is None for pilot in fleet.pilots.values()
        )
        return CALM_S if is_calm and fleet.spec.nodes_min == fleet.spec.nodes_max else LOOK_S

    async def _once(self, fleet: Fleet) -> None:
        try:
            trouble = await self._tend(fleet)
        except ServerStopped:
            return
        except (CarrierAway, CarrierRefused) as said:
            trouble = str(said)
        except Exception as fault:  # a fault of a carrier, or of ours: it is told, and tried again
            log.error("fleet_fault", fleet=self.name, error=str(fault), exc_info=fault)
            trouble = f"{type(fault).__name__}: {fault}"
        known = self._service.fleets.fleets.get(self.name)
        if known is not None and known.trouble != trouble:
            log.warning("fleet_trouble", fleet=self.name, why=trouble)
            with suppress(ServerStopped):
                await self._write([f.FleetTroubled(self._service.now_ms(), self.name, trouble)])

    async def _tend(self, fleet: Fleet) -> str:
        """What is wrong; empty: nothing."""
        if fleet.is_recalled and not fleet.pilots:  # there is nothing to ask anybody about
            await self._write_down(upkeep(fleet, (), {}, 0, {}, self._service.now_ms()))
            return ""
        carrier = await self._opened_carrier(fleet)
        sightings = await self._caller.call(carrier.look, list(fleet.pilots)) if fleet.pilots else ()
        await self._note(fleet, sightings)
        if (fleet_now := self._service.fleets.fleets.get(self.name)) is None:
            return ""
        owed = self._owed(fleet_now, await self._target(fleet_now))
        await self._write_down(owed)
        for node in owed.drain:
            await self._drain(node)
        wrong = await self._acquire(fleet_now, carrier, owed.acquire)
        for pilot in owed.release[:AT_ONCE]:
            await self._caller.call(carrier.release, pilot)
        return wrong or self._standing_trouble(fleet_now)

    async def _opened_carrier(self, fleet: Fleet) -> Carrier:
        if self._carrier is None or self._carried != fleet.spec:
            old = self._carrier
            self._carrier = await self._caller.call(self._opened, fleet)
            self._carried, self._retry_ms, self._wait_ms = fleet.spec, 0, _RETRY_MS
            if old is not None:
                await self._caller.call(old.close)
        return self._carrier

    def _standing_trouble(self, fleet: Fleet) -> str:
        if is_too_dear(fleet, self._service.now_ms()):
            return "it has cost what it may cost: no node is asked for (corral fleet scale --cost-max)"
        return fleet.last_end if fleet.failures else ""

    # ---- what is seen ------------------------------------------------------------------------------------------

    async def _note(self, fleet: Fleet, sightings: Sequence[Sighting]) -> None:
        now_ms, seen = self._service.now_ms(), {each.pilot: each for each in sightings}
        news: list[FleetEvent] = []
        for pilot in fleet.pilots.values():
            sighting = seen.get(pilot.name)
            if sighting is None:
                self._absent.setdefault(pilot.name, now_ms)
                continue
            self._absent.pop(pilot.name, None)
            until_ms = None if sighting.left_ms is None else now_ms + sighting.left_ms
            if self._is_news(pilot, sighting, until_ms, now_ms):
                self._told_ms[pilot.name] = now_ms
                news.append(
                    f.PilotSeen(now_ms, self.name, pilot.name, sighting.phase, sighting.where, until_ms, sighting.why)
                )
            self._tell_end(pilot.name, sighting, until_ms)
        for gone in self._absent.keys() - fleet.pilots.keys():
            del self._absent[gone]
        await self._write(news)

    def _is_news(self, pilot: Pilot, sighting: Sighting, until_ms: int | None, now_ms: int) -> bool:
        if (pilot.phase, pilot.where) != (sighting.phase, sighting.where):
            return True
        if (pilot.until_ms is None) != (until_ms is None) or abs(
            (pilot.until_ms or 0) - (until_ms or 0)
        ) > _SAME_END_MS:
            return True
        return pilot.why != sighting.why and now_ms - self._told_ms.get(pilot.name, 0) >= _WHY_MS

    def _tell_end(self, node: str, sighting: Sighting, until_ms: int | None) -> None:
        """When a machine is taken away. One that says itself that it leaves knows better."""
        if sighting.phase is PilotPhase.STARTED and not self._backend.is_leaving(node):
            self._service.loop.tell(facts.NodeEnds(node, until_ms))

    # ---- what is owed ------------------------------------------------------------------------------------------

    def _owed(self, fleet: Fleet, target: int) -> Owed:
        now_ms, fleets = self._service.now_ms(), self._service.fleets
        names = [fleets.next_pilot(self.name, ahead) for ahead in range(AT_ONCE)]
        nodes = {pilot: standing for pilot in fleet.pilots if (standing := self._standing(pilot, now_ms)) is not None}
        return upkeep(fleet, names, nodes, target, self._absent, now_ms, self._held(target, fleet.spec.idle_ms, now_ms))

    def _held(self, target: int, idle_ms: int, now_ms: int) -> int:
        """The most that was wanted within the cool-down: work that comes and goes must not make pilots do so."""
        self._wanted = [each for each in self._wanted if each[0] > now_ms - idle_ms] + [(now_ms, target)]
        return max(most for _, most in self._wanted)

    def _standing(self, name: str, now_ms: int) -> Standing | None:
        state = self._service.state
        node = state.nodes.get(name)
        if node is None:
            self._since.pop(name, None)
            return None
        is_busy = cluster.is_in_use(state, name)
        how = "lost" if node.lost else "busy" if is_busy else "idle"
        if self._since.get(name, ("", 0))[0] != how:
            self._since[name] = how, now_ms
        shape = NodeShape(node.spec.gpus, node.spec.amounts)
        return Standing(node.lost, is_busy, node.drained, self._since[name][1], shape)

    async def _write_down(self, owed: Owed) -> None:
        """A node is removed before its pilot is forgotten: else nobody would ever do it."""
        kept: set[str] = set()
        for node in owed.remove:
            if not await self._remove(node):
                kept.add(node)
        events = [each for each in owed.events if not (isinstance(each, f.PilotEnded) and each.pilot in kept)]
        if kept:
            events = [each for each in events if not isinstance(each, f.FleetRemoved)]
        await self._write(events)
        for each in events:
            if isinstance(each, f.PilotEnded | f.PilotJoined):
                await self._void_tickets(each.pilot)

    async def _void_tickets(self, pilot: str) -> None:
        await self._service.change_accounts(
            ACTOR, lambda accounts, now_ms: people.void_tickets(accounts, pilot, now_ms)
        )

    async def _drain(self, node: str) -> None:
        await self._service.change(ACTOR, lambda state, now_ms: cluster.drain(state, node, now_ms))

    async def _remove(self, node: str) -> bool:
        """False: something is still there; it is tried again."""
        if isinstance(cluster.remove_node(self._service.state, node, self._service.now_ms()), Refusal):
            return False
        await self._service.change_accounts(ACTOR, lambda accounts, now_ms: people.dismiss_node(accounts, node, now_ms))
        done = await self._service.change(ACTOR, lambda state, now_ms: cluster.remove_node(state, node, now_ms))
        self._backend.remove(node)
        return not isinstance(done, Refusal)

    async def _write(self, events: Sequence[FleetEvent]) -> None:
        if events:
            await self._service.change_fleets(WORLD, lambda _fleets, _now_ms: list(events))

    # ---- asking the engine -------------------------------------------------------------------------------------

    async def _acquire(self, fleet: Fleet, carrier: Carrier, pilots: Sequence[str]) -> str:
        """Why not all could be had; empty: all could."""
        now_ms = self._service.now_ms()
        if not pilots or now_ms < self._retry_ms:
            return fleet.trouble if pilots else ""
        wrong = self._cannot_ask(fleet)
        try:
            if not wrong:
                orders = [await self._order(fleet, pilot) for pilot in pilots[:AT_ONCE]]
                await self._caller.call(carrier.acquire, orders)
        except CarrierRefused as refused:
            wrong = str(refused)
        if wrong:
            self._retry_ms, self._wait_ms = now_ms + self._wait_ms, min(self._wait_ms * 2, _RETRY_MS_MAX)
        else:
            self._retry_ms, self._wait_ms = 0, _RETRY_MS
            self.woken.set()  # look at once
        return wrong

    def _cannot_ask(self, fleet: Fleet) -> str:
        owner = self._service.accounts.users.get(fleet.owner)
        if owner is None or owner.disabled or not may(owner, Verb.NODES_CHANGE, ""):
            return f"its owner {fleet.owner} may not add nodes any more: make the fleet anew as somebody who may"
        return ""

    async def _order(self, fleet: Fleet, pilot: str) -> PilotOrder:
        drawn, until_ms = new_token(), self._service.now_ms() + TICKET_MS
        await self._service.change_accounts(
            ACTOR,
            lambda accounts, now_ms: people.issue_ticket(
                accounts, fleet.owner, pilot, drawn.id, drawn.digest, until_ms, now_ms
            ),
        )
        return PilotOrder(pilot=pilot, urls=self._urls, token=drawn.text, lasts_ms=fleet.spec.lasts_ms)
