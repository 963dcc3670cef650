"""The intake: messages go from a broker to the server, and are acknowledged when the server says they are durable.

Knows the seams to a broker and to a server, and which failure means what: a message that is refused is buried, a server
that is away or behind is waited for, a broker that is away is connected to again. Knows no broker and no HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

import structlog

from corral.integrations.broker import Broker, BrokerCounts, BrokerLost, Delivery, PendingItems
from corral.io.backoff import Backoff
from corral.wire.api.answers import ProblemView
from corral.wire.api.batch import ItemView
from corral.wire.api.broker_intake import IntakeMessage, IntakeOutcome, IntakeStatus
from corral.wire.api.record import EventList

log = structlog.get_logger(__name__)

AT_ONCE = 200  # messages in one request
BYTES_AT_ONCE = 8 << 20
TRIES_MAX = 5  # of a message with which the server fails
_WAIT_S = 0.5
_LONGEST_WAIT_S = 10.0
_STATUS_S = 5.0
_GRACE_S = 1.0  # for a connection to be closed, and for what has to end
_TURN_S = 0.1
_REST = 0.5  # of all messages that may be held, how many may wait for a second try


class ServerAway(Exception):
    """The server cannot be reached, is starting, or is behind: wait, and send the same again. ``is_misconfigured``:
    an operator has to do something about it."""

    def __init__(self, why: str, wait_s: float = 1.0, *, is_misconfigured: bool = False) -> None:
        super().__init__(why)
        self.wait_s = wait_s
        self.is_misconfigured = is_misconfigured


class RequestFailed(Exception):
    """The server refused a whole request, or failed with it."""

    def __init__(self, problem: ProblemView) -> None:
        super().__init__(problem.detail)
        self.problem = problem


class ServerPort(Protocol):
    """What the intake needs of a server. Every call may raise ``ServerAway``."""

    async def hand_over(
        self, messages: Sequence[IntakeMessage], status: IntakeStatus | None
    ) -> Sequence[IntakeOutcome]: ...

    async def events(self, after: int | None) -> EventList:
        """Events about jobs after a record; None: none, only the number of the newest record."""

    async def results(self, batch: str, ids: Sequence[str]) -> Sequence[ItemView] | None:
        """The state of items; None: the batching queue does not exist any more."""


class IntakeLoop:
    """``held_max``: messages that the broker delivers before the first of them is acknowledged."""

    def __init__(self, broker: Broker, server: ServerPort, name: str, *, held_max: int = 500) -> None:
        self.broker = broker
        self.server = server
        self.name = name
        self.published = 0
        self.accepted = self.buried = 0
        self.paused = ""
        self._counts = BrokerCounts(0, 0)
        self._resting: list[tuple[float, Delivery]] = []  # with the time of the next try
        self._rest_max = max(1, int(held_max * _REST))

    async def run(self, stop: asyncio.Event, *more: Part) -> None:
        """Until ``stop``. ``more``: what else uses the connection, such as the publisher of events."""
        backoff = Backoff(0.2, _LONGEST_WAIT_S)
        while not stop.is_set():
            try:
                await first_of(stop, self.broker.open())
                if stop.is_set():
                    break
                log.info("broker_connected", broker=self.broker.kind)
                backoff.succeeded()
                await self._session(stop, more)
            except BrokerLost as lost:
                wait_s = backoff.failed()
                log.warning("broker_lost", broker=self.broker.kind, why=str(lost)[:300], retry_s=round(wait_s, 1))
                with suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), wait_s)
            finally:
                self._resting.clear()  # the broker delivers them again
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.broker.close(), _GRACE_S)

    async def _session(self, stop: asyncio.Event, more: Sequence[Part]) -> None:
        """One connection. The first part that ends or fails ends the others."""
        await first_of(stop, self._take_all(), self._report(), *(part.run(self.broker) for part in more))

    async def _take_all(self) -> None:
        while True:
            due = self._due()
            wait_s = 0.0 if due else _WAIT_S
            room = AT_ONCE - len(due) if len(self._resting) < self._rest_max else 0
            if room > 0:
                due += await self.broker.receive(room, wait_s)
            else:
                await asyncio.sleep(0 if due else 0.05)
            for part in in_parts(due):
                await self.take(part)

    def _due(self) -> list[Delivery]:
        now_s = time.monotonic()
        due = [delivery for at_s, delivery in self._resting if at_s <= now_s][:AT_ONCE]
        if due:
            chosen = set(map(id, due))
            self._resting = [each for each in self._resting if id(each[1]) not in chosen]
        return due

    # ---- one request -------------------------------------------------------------------------------------------

    async def take(self, deliveries: Sequence[Delivery]) -> None:
        """Hand messages over, and acknowledge or bury them. Returns when none of them is left but those that rest."""
        for delivery in deliveries:
            if delivery.fault is not None:
                await self._bury(delivery, delivery.fault)
        left = [each for each in deliveries if each.fault is None]
        if not left:
            return
        backoff = Backoff(0.2, _LONGEST_WAIT_S)
        while True:
            try:
                outcomes = await self.server.hand_over([_message(each) for each in left], None)
            except ServerAway as away:
                await self._pause(away, backoff)
                continue
            except RequestFailed as failed:
                await self._halve(left, failed.problem)
                return
            self._resume()
            await self._settle(left, outcomes)
            return

    async def _halve(self, left: Sequence[Delivery], problem: ProblemView) -> None:
        """The server fails with the request as a whole: find the message that it fails with."""
        if len(left) > 1:
            middle = len(left) // 2
            await self.take(left[:middle])
            await self.take(left[middle:])
            return
        delivery = left[0]
        delivery.tries += 1
        if problem.status < 500 or delivery.tries >= TRIES_MAX:
            await self._bury(delivery, problem)
        else:
            self._resting.append((time.monotonic() + delivery.tries, delivery))

    async def _settle(self, deliveries: Sequence[Delivery], outcomes: Sequence[IntakeOutcome]) -> None:
        done: list[Delivery] = []
        items: list[PendingItems] = []
        for delivery, outcome in zip(deliveries, outcomes, strict=True):
            if outcome.problem is None:
                done.append(delivery)
                if outcome.items:
                    items.append(PendingItems(outcome.id, delivery.batch, outcome.user, outcome.items))
                continue
            delivery.tries += outcome.problem.status == 500
            if outcome.retry_ms and delivery.tries < TRIES_MAX:
                self._resting.append((time.monotonic() + outcome.retry_ms / 1000, delivery))
            else:
                await self._bury(delivery, outcome.problem)
        if items:
            await self.broker.keep_items(items)
        await self.broker.acknowledge(done)
        self.accepted += len(done)

    async def _bury(self, delivery: Delivery, problem: ProblemView) -> None:
        await self.broker.bury(delivery, problem)
        self.buried += 1
        log.info("message_refused", message=delivery.id[:100], code=problem.code)

    # ---- the state of the intake -------------------------------------------------------------------------------

    async def _pause(self, away: ServerAway, backoff: Backoff) -> None:
        """Wait for the server. What is held stays held, so the broker delivers no more than that."""
        wait_s = max(away.wait_s, backoff.failed())
        if str(away) != self.paused:
            self.paused = str(away)[:300]
            tell = log.error if away.is_misconfigured else log.warning
            tell("intake_paused", why=self.paused)
        await asyncio.sleep(min(wait_s, _LONGEST_WAIT_S))

    def _resume(self) -> None:
        if self.paused:
            log.info("intake_resumed")
        self.paused = ""

    async def _report(self) -> None:
        """Tell the server regularly how the intake is; this also notices that a queue was deleted."""
        while True:
            self._counts = await self.broker.counts()
            rests = f"{len(self._resting)} messages wait for a second try" if self._resting else ""
            status = IntakeStatus(
                name=self.name,
                broker=self.broker.kind,  # type: ignore[arg-type]
                waiting=self._counts.waiting,
                dead=self._counts.dead,
                published=self.published,
                paused=self.paused or rests,
            )
            with suppress(ServerAway, RequestFailed):
                await self.server.hand_over([], status)
            await asyncio.sleep(_STATUS_S)


class Part(Protocol):
    """Something that works on the connection of an intake."""

    async def run(self, broker: Broker) -> None: ...


async def first_of(stop: asyncio.Event, *parts: Coroutine[Any, Any, None]) -> None:
    """Until ``stop``, or until a part ends or fails: it ends the others. Libraries lose a cancellation now and then,
    when what they wait for is done at the same moment, so it is repeated; what does not end in a second is left."""
    tasks = [asyncio.create_task(part) for part in parts]
    ended = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([*tasks, ended], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        left: set[asyncio.Task[Any]] = {*tasks, ended}
        end_s = time.monotonic() + _GRACE_S
        while left and time.monotonic() < end_s:
            for each in left:
                each.cancel()
            over, left = await asyncio.wait(left, timeout=_TURN_S)
            for each in over:
                if not each.cancelled():
                    each.exception()  # it is known to be over: the first failure is the one that counts


def in_parts(deliveries: Sequence[Delivery]) -> list[list[Delivery]]:
    """In order, each part small enough for one request."""
    parts: list[list[Delivery]] = []
    size = 0
    for delivery in deliveries:
        size += len(delivery.body)
        if not parts or size > BYTES_AT_ONCE or len(parts[-1]) >= AT_ONCE:
            parts.append([])
            size = len(delivery.body)
        parts[-1].append(delivery)
    return parts


def _message(delivery: Delivery) -> IntakeMessage:
    return IntakeMessage(
        id=delivery.id, body=delivery.body.decode(), token=delivery.token, user=delivery.user, batch=delivery.batch
    )
