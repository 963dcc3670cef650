"""A broker in memory and a server that answers as a test says, for the intake's own rules."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from corral.integrations.broker import BrokerCounts, BrokerLost, Delivery, PendingItems, StateChange
from corral.integrations.intake_loop import ServerAway
from corral.wire.api.answers import ProblemView
from corral.wire.api.batch import ItemView
from corral.wire.api.broker_intake import IntakeMessage, IntakeOutcome, IntakeStatus
from corral.wire.api.record import EventList
from corral.wire.brokers.broker_names import JOBS


class MemoryBroker:
    """What is not acknowledged is delivered again after ``open``."""

    kind = "rabbitmq"

    def __init__(self, *ids: str) -> None:
        self.stored = {id: Delivery(id, b"{}", JOBS, id) for id in ids}
        self.coming: list[Delivery] = []
        self.dead: list[tuple[str, ProblemView]] = []
        self.published: list[str] = []
        self.at: int | None = None
        self.items: list[PendingItems] = []
        self.opened = 0
        self.loses = 0  # this many calls of receive fail

    async def open(self) -> None:
        self.opened += 1
        self.coming = list(self.stored.values())

    async def close(self) -> None:
        self.coming = []

    async def receive(self, most: int, wait_s: float) -> list[Delivery]:
        if self.loses:
            self.loses -= 1
            raise BrokerLost("as the test says")
        await asyncio.sleep(0 if self.coming else 0.01)
        found, self.coming = self.coming[:most], self.coming[most:]
        return found

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        for each in deliveries:
            del self.stored[each.id]

    async def bury(self, delivery: Delivery, problem: ProblemView) -> None:
        self.dead.append((delivery.id, problem))
        del self.stored[delivery.id]

    async def publish(self, changes: Sequence[StateChange], cursor: int | None) -> None:
        self.published += [change.id for change in changes]
        self.at = self.at if cursor is None else cursor

    async def cursor(self) -> int | None:
        return self.at

    async def counts(self) -> BrokerCounts:
        return BrokerCounts(len(self.stored), len(self.dead))

    async def keep_items(self, pending: Sequence[PendingItems]) -> None:
        self.items += pending

    async def pending_items(self, most: int) -> list[tuple[Any, PendingItems]]:
        return []

    async def drop_items(self, marks: Sequence[Any]) -> None: ...


Judging = Callable[[Sequence[IntakeMessage]], Sequence[IntakeOutcome]]


class ScriptedServer:
    """``judge`` answers; ``away`` times it is away first."""

    def __init__(self, judge: Judging, away: int = 0) -> None:
        self.judge, self.away = judge, away
        self.asked: list[list[str]] = []

    async def hand_over(
        self, messages: Sequence[IntakeMessage], status: IntakeStatus | None
    ) -> Sequence[IntakeOutcome]:
        if not messages:
            return []
        self.asked.append([message.id for message in messages])
        if self.away:
            self.away -= 1
            raise ServerAway("it is starting", 0.01)
        return self.judge(messages)

    async def events(self, after: int | None) -> EventList:
        return EventList(events=(), next=after or 0, head=after or 0)

    async def results(self, batch: str, ids: Sequence[str]) -> Sequence[ItemView] | None:
        return None
