"""The intake's broker, and its dead letters, in RabbitMQ: quorum queues, publisher confirms, manual acknowledgement.

Knows AMQP through aio-pika, and which failures mean that the connection is lost. Each connection is new, and is not
restored by the library: an acknowledgement belongs to the channel that delivered the message, so one that was restored
would acknowledge other messages or close the new channel.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import aio_pika
import msgspec
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import AMQPError

from corral.integrations.broker import (
    BrokerCounts,
    BrokerLost,
    Delivery,
    Judge,
    PendingItems,
    StateChange,
    bounded_text,
    dead_letter,
    delivery_of,
    read_dead_letter,
)
from corral.wire.api.answers import ProblemView
from corral.wire.brokers.broker_names import BATCH, CODE, CURSOR, DEAD, EVENTS, ITEMS, KEYS, LANES, SUBMIT, TOKEN

_QUORUM = {"x-queue-type": "quorum"}
_CONNECT_S = 10.0
_HEARTBEAT_S = 10
_CONFIRM_S = 30.0
_WINDOW = 200  # messages published before the first of them is confirmed
_JSON = "application/json"
_LOST = (AMQPError, OSError, TimeoutError, asyncio.TimeoutError, asyncio.InvalidStateError, RuntimeError)


@asynccontextmanager
async def _lost() -> AsyncIterator[None]:
    """Whatever ends a connection or a channel becomes ``BrokerLost``."""
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise BrokerLost("the connection was closed") from None  # the library cancels what waits for an answer
    except _LOST as error:
        raise BrokerLost(f"{type(error).__name__}: {error}"[:300]) from None


async def _connected(url: str) -> AbstractConnection:
    return await aio_pika.connect(url, timeout=_CONNECT_S, heartbeat=_HEARTBEAT_S)


async def _declare(channel: AbstractChannel) -> dict[str, AbstractQueue]:
    names = (*LANES, DEAD, ITEMS)
    found = {name: await channel.declare_queue(name, durable=True, arguments=dict(_QUORUM)) for name in names}
    one: dict[str, Any] = {**_QUORUM, "x-max-length": 1}
    found[CURSOR] = await channel.declare_queue(CURSOR, durable=True, arguments=one)
    submit = await channel.declare_exchange(SUBMIT, aio_pika.ExchangeType.DIRECT, durable=True)
    for lane in LANES:
        await found[lane].bind(submit, KEYS[lane])
    return found


class RabbitBroker:
    """``held_max``: messages that are delivered before the first of them is acknowledged."""

    kind = "rabbitmq"

    def __init__(self, url: str, *, held_max: int = 500) -> None:
        self._url = url
        self._held_max = held_max
        self._connection: AbstractConnection | None = None
        self._channels: list[AbstractChannel] = []
        self._queues: list[AbstractQueue] = []  # referenced for as long as they deliver
        self._inboxes: dict[str, asyncio.Queue[Delivery]] = {}
        self._items: asyncio.Queue[tuple[AbstractIncomingMessage, PendingItems]] = asyncio.Queue()
        self._arrived = asyncio.Event()
        self._ended = asyncio.Event()

    async def open(self) -> None:
        self._ended.clear()
        self._arrived.clear()
        self._inboxes = {lane: asyncio.Queue() for lane in LANES}
        self._items = asyncio.Queue()
        async with _lost():
            self._connection = await _connected(self._url)
            self._connection.close_callbacks.add(self._has_ended)
            self._control = await self._channel(publisher_confirms=False)
            self._publishing = await self._channel(publisher_confirms=True)
            await _declare(self._control)
            self._events = await self._publishing.declare_exchange(EVENTS, aio_pika.ExchangeType.TOPIC, durable=True)
            for lane in LANES:
                await self._consume(lane, self._deliver(lane), self._held_max)
            await self._consume(ITEMS, self._take_items, self._held_max)

    async def _channel(self, *, publisher_confirms: bool) -> AbstractChannel:
        assert self._connection is not None
        channel = await self._connection.channel(
            publisher_confirms=publisher_confirms, on_return_raises=publisher_confirms
        )
        channel.close_callbacks.add(self._has_ended)
        self._channels.append(channel)
        return channel

    async def _consume(self, name: str, callback: Any, prefetch: int) -> None:
        channel = await self._channel(publisher_confirms=False)
        await channel.set_qos(prefetch_count=prefetch)
        queue = await channel.get_queue(name, ensure=False)
        await queue.consume(callback)
        self._queues.append(queue)

    def _has_ended(self, *_: Any) -> None:
        self._ended.set()
        self._arrived.set()

    def _deliver(self, lane: str) -> Any:
        inbox = self._inboxes[lane]

        async def deliver(message: AbstractIncomingMessage) -> None:
            inbox.put_nowait(_delivery(lane, message))
            self._arrived.set()

        return deliver

    async def _take_items(self, message: AbstractIncomingMessage) -> None:
        try:
            pending = msgspec.json.decode(message.body, type=PendingItems)
        except (msgspec.DecodeError, UnicodeDecodeError):
            await message.reject(requeue=False)  # not written by an intake
            return
        self._items.put_nowait((message, pending))

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        self._channels, self._queues = [], []
        if connection is not None:
            with suppress(*_LOST, asyncio.CancelledError):
                async with asyncio.timeout(5):
                    await connection.close()

    def _check(self) -> None:
        if self._ended.is_set() or self._connection is None:
            raise BrokerLost("the connection or a channel was closed")

    # ---- messages ----------------------------------------------------------------------------------------------

    async def receive(self, most: int, wait_s: float) -> list[Delivery]:
        self._check()
        if all(inbox.empty() for inbox in self._inboxes.values()):
            self._arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), wait_s)
            self._check()
        found: list[Delivery] = []
        for inbox in self._inboxes.values():
            while len(found) < most and not inbox.empty():
                found.append(inbox.get_nowait())
        return found

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        self._check()
        async with _lost():
            for delivery in deliveries:
                await delivery.mark.ack()

    async def bury(self, delivery: Delivery, problem: ProblemView) -> None:
        self._check()
        async with _lost():
            letter = aio_pika.Message(
                dead_letter(delivery, problem), message_id=delivery.id, headers={CODE: problem.code}, **_KEPT
            )
            await self._send(DEAD, [letter])
            await delivery.mark.ack()

    async def publish(self, changes: Sequence[StateChange], cursor: int | None) -> None:
        self._check()
        async with _lost():
            messages = [
                (change.key, aio_pika.Message(change.body, message_id=change.id, **_KEPT)) for change in changes
            ]
            for start in range(0, len(messages), _WINDOW):
                part = messages[start : start + _WINDOW]
                await self._confirmed(
                    self._events.publish(message, key, mandatory=False, timeout=_CONFIRM_S) for key, message in part
                )
            if cursor is not None:
                await self._send(CURSOR, [aio_pika.Message(b"%d" % cursor, **_KEPT)])

    async def _send(self, key: str, messages: Sequence[aio_pika.Message]) -> None:
        default = self._publishing.default_exchange
        await self._confirmed(default.publish(message, key, timeout=_CONFIRM_S) for message in messages)

    async def _confirmed(self, sent: Any) -> None:
        """Returns when all of them are confirmed. They are sent in order."""
        for confirmed in await asyncio.gather(*sent):
            del confirmed

    async def cursor(self) -> int | None:
        self._check()
        async with _lost():
            queue = await self._control.get_queue(CURSOR, ensure=False)
            found = await queue.get(fail=False, timeout=_CONNECT_S)
            if found is None:
                return None
            await found.nack(requeue=True)
            return int(found.body) if found.body.isdigit() and len(found.body) < 19 else None

    async def counts(self) -> BrokerCounts:
        self._check()
        async with _lost():
            sizes = {}
            for name in (*LANES, DEAD):
                queue = await self._control.declare_queue(name, durable=True, passive=True, timeout=_CONNECT_S)
                counted = queue.declaration_result
                sizes[name] = counted.message_count or 0
                if name != DEAD and not counted.consumer_count:
                    raise BrokerLost(f"{name} was deleted: it has no consumer")
        return BrokerCounts(sum(sizes[lane] for lane in LANES), sizes[DEAD])

    # ---- items -------------------------------------------------------------------------------------------------

    async def keep_items(self, pending: Sequence[PendingItems]) -> None:
        self._check()
        async with _lost():
            await self._send(ITEMS, [aio_pika.Message(msgspec.json.encode(each), **_KEPT) for each in pending])

    async def pending_items(self, most: int) -> list[tuple[Any, PendingItems]]:
        self._check()
        found: list[tuple[Any, PendingItems]] = []
        while len(found) < most and not self._items.empty():
            found.append(self._items.get_nowait())
        return found

    async def drop_items(self, marks: Sequence[Any]) -> None:
        self._check()
        async with _lost():
            for mark in marks:
                await mark.ack()


_KEPT: dict[str, Any] = {"content_type": _JSON, "delivery_mode": aio_pika.DeliveryMode.PERSISTENT}


def _delivery(lane: str, message: AbstractIncomingMessage) -> Delivery:
    headers = message.headers
    return delivery_of(
        lane,
        message,
        message.body,
        id=message.message_id,
        token=headers.get(TOKEN),
        user=message.user_id,  # the broker accepts no other than that of the publisher's connection
        batch=headers.get(BATCH),
        encoding=bounded_text(message.content_encoding),
        kind=bounded_text(message.content_type),
    )


class RabbitDeadLetters:
    """Dead letters of RabbitMQ."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> RabbitDeadLetters:
        async with _lost():
            self._connection = await _connected(self._url)
            self._channel = await self._connection.channel()
            self._queue = (await _declare(self._channel))[DEAD]
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(*_LOST):
            await self._connection.close()

    async def sift(self, judge: Judge, most: int) -> None:
        kept: list[AbstractIncomingMessage] = []
        async with _lost():
            while most > 0 and (message := await self._queue.get(fail=False, timeout=_CONNECT_S)) is not None:
                most -= 1
                if await judge(read_dead_letter(message.body)):
                    await message.ack()
                else:
                    kept.append(message)
            for message in kept:
                await message.nack(requeue=True)
