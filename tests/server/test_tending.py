"""A fleet, tended in memory: what it asks its engine for, and in how many calls."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from corral.backends.carriers.base import PilotOrder
from corral.backends.carriers.fake import FakeCarrier, FakeEngine
from corral.core.fleets.fleets import Fleet, FleetSet, FleetSpec, PilotPhase
from corral.core.people.accounts import Role
from corral.server.carrying.tending import AT_ONCE, Tender
from tests.server.memory_service import MemoryService


class Listening(FakeCarrier):
    def __init__(self, engine: FakeEngine) -> None:
        super().__init__(engine)
        self.asked: list[list[str]] = []

    def acquire(self, orders: Sequence[PilotOrder]) -> None:
        self.asked.append([order.pilot for order in orders])
        super().acquire(orders)


async def tended(carrier: Listening, nodes: int) -> MemoryService:
    """As it is when all pilots of a fleet have been seen."""
    service = MemoryService(nodes=0)
    service.user("ann", (Role.OPERATOR, ""))
    spec = FleetSpec(name="gpu", kind="fake", nodes_min=nodes, nodes_max=nodes)
    service.do_fleets("ann", [FleetSet(service.now_ms(), spec, "ann", "c0ffee")])

    async def target(_fleet: Fleet) -> int:
        return nodes

    whole: Any = service  # as much of it as is used here
    nothing: Any = None  # no node ever joins
    tender = Tender("gpu", whole, nothing, ("http://head:7411",), lambda _fleet: carrier, target)
    task = asyncio.create_task(tender.run())
    try:
        async with asyncio.timeout(20):
            while sum(pilot.phase is not None for pilot in service.fleets.fleets["gpu"].pilots.values()) < nodes:
                await asyncio.sleep(0.01)
    finally:
        task.cancel()
    return service


async def test_all_that_is_needed_is_asked_for_in_one_call() -> None:
    carrier = Listening(FakeEngine(nodes=0))
    await tended(carrier, 5)
    assert carrier.asked == [["gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-5"]]


async def test_between_two_looks_there_is_an_end_to_it() -> None:
    carrier = Listening(FakeEngine(nodes=0))
    await tended(carrier, AT_ONCE + 6)
    assert [len(asked) for asked in carrier.asked] == [AT_ONCE, 6]


async def test_one_answer_that_is_lost_keeps_no_other_from_being_seen() -> None:
    carrier = Listening(FakeEngine(nodes=0))
    carrier.engine.lose_answers = 1
    service = await tended(carrier, 3)
    assert carrier.engine.acquired == ["gpu-1", "gpu-2", "gpu-3"]
    assert {pilot.phase for pilot in service.fleets.fleets["gpu"].pilots.values()} == {PilotPhase.WAITING}
