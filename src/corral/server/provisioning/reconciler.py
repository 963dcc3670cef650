"""The reconciler of one fleet: check its pilots, compute the necessary actions, execute them, repeat.

All state is in the journal; what is kept here (since when a node is idle, since when a provider does not know a pilot)
is only about time and may be lost. Errors of a provider affect only its fleet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

from corral.core import facts
from corral.core.accounts import commands as account_commands
from corral.core.fleets import fleets as f
from corral.core.fleets.fleets import Fleet, FleetEvent, NodeShape, Pilot, PilotPhase
from corral.core.fleets.reconcile import Actions, PilotNode, is_over_cost_limit, reconcile
from corral.core.intake import commands as cluster
from corral.core.intake.refusal import Refusal
from corral.io.backoff import Backoff, no_chance
from corral.providers.base import PilotOrder, PilotStatus, Provider, ProviderRefused, ProviderUnavailable
from corral.remote.backend import RemoteBackend
from corral.server.auth import Verb, may, new_token
from corral.server.loop import SYSTEM
from corral.server.provisioning.serial_executor import SerialExecutor
from corral.server.service import ServerService
from corral.server.shutdown import ServerStopped

log = structlog.get_logger(__name__)

TICKET_MS = 7 * 86_400_000  # a pilot may be queued for a long time at its provider
AT_ONCE = 64  # pilots requested and returned between two checks
LOOK_S, CALM_S = 1.0, 5.0
_RETRY_S, _RETRY_S_MAX = 2.0, 60.0
_SAME_END_MS = 5_000
_WHY_MS = 30_000  # the reason why a pilot waits changes often; it is recorded at most this often

#: How many nodes a fleet should have now.
Target = Callable[[Fleet], Awaitable[int]]


class FleetReconciler:
    """``urls``: addresses of the server for agents. ``opened`` returns the provider of a fleet."""

    def __init__(
        self,
        name: str,
        service: ServerService,
        backend: RemoteBackend,
        urls: tuple[str, ...],
        opened: Callable[[Fleet], Provider],
        target: Target,
    ) -> None:
        self.name = name
        self._service = service
        self._backend = backend
        self._urls = urls
        self._opened = opened
        self._target = target
        self._caller = SerialExecutor(name)
        self._provider: Provider | None = None
        self._opened_spec: f.FleetSpec | None = None
        self._since: dict[str, tuple[str, int]] = {}  # node -> its condition, since when
        self._absent: dict[str, int] = {}
        self._told_ms: dict[str, int] = {}
        self._wanted: list[tuple[int, int]] = []  # (when, number of nodes) within the cool-down
        self._retry_ms = 0
        self._backoff = Backoff(_RETRY_S, _RETRY_S_MAX, no_chance)
        self.woken = asyncio.Event()

    # ---- the loop ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Reconcile until the fleet is removed."""
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
        provider, self._provider = self._provider, None
        if provider is not None:
            with suppress(Exception):
                async with asyncio.timeout(1.0):
                    await self._caller.call(provider.close)
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
            trouble = await self._reconcile(fleet)
        except ServerStopped:
            return
        except (ProviderUnavailable, ProviderRefused) as said:
            trouble = str(said)
        except Exception as fault:  # a bug of the provider or of Corral: shown, and tried again
            log.error("fleet_failed", fleet=self.name, error=str(fault), exc_info=fault)
            trouble = f"{type(fault).__name__}: {fault}"
        known = self._service.fleets.fleets.get(self.name)
        if known is not None and known.trouble != trouble:
            log.warning("fleet_trouble", fleet=self.name, why=trouble)
            with suppress(ServerStopped):
                await self._write([f.FleetTroubled(self._service.now_ms(), self.name, trouble)])

    async def _reconcile(self, fleet: Fleet) -> str:
        """One round. Returns the problem of the fleet; empty if there is none."""
        if fleet.is_recalled and not fleet.pilots:  # the provider is not needed
            await self._record(reconcile(fleet, (), {}, 0, {}, self._service.now_ms()))
            return ""
        provider = await self._opened_provider(fleet)
        sightings = await self._caller.call(provider.look, list(fleet.pilots)) if fleet.pilots else ()
        await self._note(fleet, sightings)
        if (fleet_now := self._service.fleets.fleets.get(self.name)) is None:
            return ""
        actions = self._actions(fleet_now, await self._target(fleet_now))
        await self._record(actions)
        for node in actions.drain:
            await self._drain(node)
        wrong = await self._acquire(fleet_now, provider, actions.acquire)
        for pilot in actions.release[:AT_ONCE]:
            await self._caller.call(provider.release, pilot)
        return wrong or self._lasting_trouble(fleet_now)

    async def _opened_provider(self, fleet: Fleet) -> Provider:
        if self._provider is None or self._opened_spec != fleet.spec:
            old = self._provider
            self._provider = await self._caller.call(self._opened, fleet)
            self._opened_spec = fleet.spec
            self._retry_ms = 0
            self._backoff.succeeded()
            if old is not None:
                await self._caller.call(old.close)
        return self._provider

    def _lasting_trouble(self, fleet: Fleet) -> str:
        if is_over_cost_limit(fleet, self._service.now_ms()):
            return "cost limit reached: no nodes are requested; raise it with corral fleet scale --cost-max"
        return fleet.last_end if fleet.failures else ""

    # ---- status of pilots --------------------------------------------------------------------------------------

    async def _note(self, fleet: Fleet, sightings: Sequence[PilotStatus]) -> None:
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
            self._set_end(pilot.name, sighting, until_ms)
        for gone in self._absent.keys() - fleet.pilots.keys():
            del self._absent[gone]
        await self._write(news)

    def _is_news(self, pilot: Pilot, sighting: PilotStatus, until_ms: int | None, now_ms: int) -> bool:
        if (pilot.phase, pilot.where) != (sighting.phase, sighting.where):
            return True
        if (pilot.until_ms is None) != (until_ms is None) or abs(
            (pilot.until_ms or 0) - (until_ms or 0)
        ) > _SAME_END_MS:
            return True
        return pilot.why != sighting.why and now_ms - self._told_ms.get(pilot.name, 0) >= _WHY_MS

    def _set_end(self, node: str, sighting: PilotStatus, until_ms: int | None) -> None:
        """Set the end time of a node. An end time that the node itself reports wins."""
        if sighting.phase is PilotPhase.STARTED and not self._backend.is_leaving(node):
            self._service.loop.take_fact(facts.NodeEnds(node, until_ms))

    # ---- actions -----------------------------------------------------------------------------------------------

    def _actions(self, fleet: Fleet, target: int) -> Actions:
        now_ms, fleets = self._service.now_ms(), self._service.fleets
        names = [fleets.next_pilot(self.name, ahead) for ahead in range(AT_ONCE)]
        nodes = {pilot: node for pilot in fleet.pilots if (node := self._node(pilot, now_ms)) is not None}
        held = self._held(target, fleet.spec.idle_ms, now_ms)
        return reconcile(fleet, names, nodes, target, self._absent, now_ms, held)

    def _held(self, target: int, idle_ms: int, now_ms: int) -> int:
        """The largest target within the cool-down, so that short changes of demand do not start and stop pilots."""
        self._wanted = [each for each in self._wanted if each[0] > now_ms - idle_ms] + [(now_ms, target)]
        return max(most for _, most in self._wanted)

    def _node(self, name: str, now_ms: int) -> PilotNode | None:
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
        return PilotNode(node.lost, is_busy, node.drained, self._since[name][1], shape)

    async def _record(self, actions: Actions) -> None:
        """Remove nodes, then record events. A node is removed before its pilot is forgotten, or it would never be."""
        kept: set[str] = set()
        for node in actions.remove:
            if not await self._remove(node):
                kept.add(node)
        events = [each for each in actions.events if not (isinstance(each, f.PilotEnded) and each.pilot in kept)]
        if kept:
            events = [each for each in events if not isinstance(each, f.FleetRemoved)]
        await self._write(events)
        for each in events:
            if isinstance(each, f.PilotEnded | f.PilotJoined):
                await self._void_tickets(each.pilot)

    async def _void_tickets(self, pilot: str) -> None:
        await self._service.change_accounts(
            SYSTEM, lambda accounts, now_ms: account_commands.void_tickets(accounts, pilot, now_ms)
        )

    async def _drain(self, node: str) -> None:
        await self._service.change(SYSTEM, lambda state, now_ms: cluster.drain(state, node, now_ms))

    async def _remove(self, node: str) -> bool:
        """Remove a node. False if it is still in use; then it is tried again."""
        if isinstance(cluster.remove_node(self._service.state, node, self._service.now_ms()), Refusal):
            return False
        await self._service.change_accounts(
            SYSTEM, lambda accounts, now_ms: account_commands.dismiss_node(accounts, node, now_ms)
        )
        done = await self._service.change(SYSTEM, lambda state, now_ms: cluster.remove_node(state, node, now_ms))
        self._backend.remove(node)
        return not isinstance(done, Refusal)

    async def _write(self, events: Sequence[FleetEvent]) -> None:
        if events:
            await self._service.change_fleets(SYSTEM, lambda _fleets, _now_ms: list(events))

    # ---- requests to the provider ------------------------------------------------------------------------------

    async def _acquire(self, fleet: Fleet, provider: Provider, pilots: Sequence[str]) -> str:
        """Request pilots. Returns why that failed; empty if it did not."""
        now_ms = self._service.now_ms()
        if not pilots or now_ms < self._retry_ms:
            return fleet.trouble if pilots else ""
        wrong = self._cannot_ask(fleet)
        try:
            if not wrong:
                orders = [await self._order(fleet, pilot) for pilot in pilots[:AT_ONCE]]
                await self._caller.call(provider.acquire, orders)
        except ProviderRefused as refused:
            wrong = str(refused)
        if wrong:
            self._retry_ms = now_ms + round(self._backoff.failed() * 1000)
        else:
            self._retry_ms = 0
            self._backoff.succeeded()
            self.woken.set()  # check now
        return wrong

    def _cannot_ask(self, fleet: Fleet) -> str:
        owner = self._service.accounts.users.get(fleet.owner)
        if owner is None or owner.disabled or not may(owner, Verb.NODES_CHANGE, ""):
            return f"its owner {fleet.owner} may no longer add nodes: run corral fleet up again as a user who may"
        return ""

    async def _order(self, fleet: Fleet, pilot: str) -> PilotOrder:
        drawn, until_ms = new_token(), self._service.now_ms() + TICKET_MS
        await self._service.change_accounts(
            SYSTEM,
            lambda accounts, now_ms: account_commands.issue_ticket(
                accounts, fleet.owner, pilot, drawn.id, drawn.digest, until_ms, now_ms
            ),
        )
        return PilotOrder(pilot=pilot, urls=self._urls, token=drawn.text, lasts_ms=fleet.spec.lasts_ms)
