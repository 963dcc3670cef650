"""A fleet, reconciled in memory: what it asks its provider for, and in how many calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from corral.core.accounts.accounts import Role
from corral.core.fleets.fleets import Fleet, FleetSet, FleetSpec, PilotPhase
from corral.providers.base import PilotOrder
from corral.providers.fake import FakeCloud, FakeProvider
from corral.server.provisioning.reconciler import AT_ONCE, FleetReconciler
from tests.server.in_memory_service import MemoryService


class Listening(FakeProvider):
    def __init__(self, engine: FakeCloud) -> None:
        super().__init__(engine)
        self.asked: list[list[str]] = []

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        self.asked.append([order.pilot for order in orders])
        super().acquire(orders)


async def tended(provider: Listening, nodes: int) -> MemoryService:
    """As it is when all pilots of a fleet have been seen."""
    service = MemoryService(nodes=0)
    service.user("ann", (Role.OPERATOR, ""))
    spec = FleetSpec(name="gpu", kind="fake", nodes_min=nodes, nodes_max=nodes)
    service.do_fleets("ann", [FleetSet(service.now_ms(), spec, "ann", "c0ffee")])

    async def target(_fleet: Fleet) -> int:
        return nodes

    whole: Any = service  # as much of it as is used here
    nothing: Any = None  # no node ever joins
    tender = FleetReconciler("gpu", whole, nothing, ("http://head:7411",), lambda _fleet: provider, target)
    task = asyncio.create_task(tender.run())
    try:
        async with asyncio.timeout(20):
            while sum(pilot.phase is not None for pilot in service.fleets.fleets["gpu"].pilots.values()) < nodes:
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
    return service


async def test_all_that_is_needed_is_asked_for_in_one_call() -> None:
    provider = Listening(FakeCloud(nodes=0))
    await tended(provider, 5)
    assert provider.asked == [["gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-5"]]


async def test_between_two_looks_there_is_an_end_to_it() -> None:
    provider = Listening(FakeCloud(nodes=0))
    await tended(provider, AT_ONCE + 6)
    assert [len(asked) for asked in provider.asked] == [AT_ONCE, 6]


async def test_one_answer_that_is_lost_keeps_no_other_from_being_seen() -> None:
    provider = Listening(FakeCloud(nodes=0))
    provider.engine.lose_answers = 1
    service = await tended(provider, 3)
    assert provider.engine.acquired == ["gpu-1", "gpu-2", "gpu-3"]
    assert {pilot.phase for pilot in service.fleets.fleets["gpu"].pilots.values()} == {PilotPhase.WAITING}
