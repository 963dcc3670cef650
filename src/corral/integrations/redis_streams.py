"""The intake's broker, and its dead letters, in Redis: streams with a consumer group.

Knows streams through redis-py. Redis authenticates no senders of single messages, so each message needs a token. What a
command has answered is on disk only if Redis is configured so (``appendonly yes``, ``appendfsync always``).
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError, ResponseError

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
from corral.wire.brokers.broker_names import BATCH, CODE, CURSOR, DEAD, EVENTS, ITEMS, LANES, TOKEN

GROUP = "corral"
_TIMEOUT_S = 10.0
_STALE_MS = 15_000  # what another intake has not acknowledged after this time is taken over
_CLAIM_S = 10.0
_EVENTS_KEPT = 1_000_000


@asynccontextmanager
async def _lost() -> AsyncIterator[None]:
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise BrokerLost(f"{type(error).__name__}: {error}"[:300]) from None


def _connection(url: str) -> Any:
    return Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)


class RedisBroker:
    """``held_max``: messages that are received before the first of them is acknowledged."""

    kind = "redis"

    def __init__(self, url: str, *, held_max: int = 500, stale_ms: int = _STALE_MS) -> None:
        self._url = url
        self._held_max = held_max
        self._stale_ms = stale_ms
        self._name = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(4).hex()}"
        self._redis: Any = None
        self._held: set[Any] = set()
        self._claim_s = 0.0
        self._is_new = True  # what this one had received over an earlier connection comes first

    async def open(self) -> None:
        self._redis = _connection(self._url)
        self._held.clear()
        self._claim_s, self._is_new = 0.0, True
        async with _lost():
            for stream in (*LANES, ITEMS):
                with suppress(ResponseError):  # the group is there already
                    await self._redis.xgroup_create(stream, GROUP, "0", mkstream=True)
            await self._redis.ping()

    async def close(self) -> None:
        redis, self._redis = self._redis, None
        if redis is not None:
            with suppress(RedisError, OSError, asyncio.CancelledError):
                await redis.aclose()

    # ---- messages ----------------------------------------------------------------------------------------------

    async def receive(self, most: int, wait_s: float) -> list[Delivery]:
        room = min(most, self._held_max - len(self._held))
        if room <= 0:
            await asyncio.sleep(wait_s)
            return []
        found = await self._taken_over(room)
        async with _lost():
            if self._is_new:
                for lane in LANES:
                    own = await self._read({lane: "0"}, room, None)
                    found += [each for each in own if each.mark not in {other.mark for other in found}]
                self._is_new = False
            for lane in LANES:
                if len(found) < room:
                    found += await self._read({lane: ">"}, room - len(found), None)
            if not found and wait_s:
                found = await self._read(dict.fromkeys(LANES, ">"), room, max(1, int(wait_s * 1000)))
        self._held.update(delivery.mark for delivery in found)
        return found

    async def _read(self, streams: dict[str, str], most: int, wait_ms: int | None) -> list[Delivery]:
        answer = await self._redis.xreadgroup(GROUP, self._name, streams, count=most, block=wait_ms)
        parts = answer.items() if isinstance(answer, dict) else answer or []
        return [delivery for stream, rows in parts for delivery in _deliveries(_text(stream), rows)]

    async def _taken_over(self, most: int) -> list[Delivery]:
        """What an intake that has ended had received, and what this one had before it lost its connection."""
        if time.monotonic() < self._claim_s:
            return []
        found: list[Delivery] = []
        async with _lost():
            for lane in LANES:
                if len(found) < most:
                    answer = await self._redis.xautoclaim(
                        lane, GROUP, self._name, self._stale_ms, count=most - len(found)
                    )
                    found += [each for each in _deliveries(lane, answer[1]) if each.mark not in self._held]
        if not found:
            self._claim_s = time.monotonic() + min(_CLAIM_S, self._stale_ms / 1000)
        return found

    async def acknowledge(self, deliveries: Sequence[Delivery]) -> None:
        async with _lost():
            for lane in LANES:
                numbers = [delivery.mark[1] for delivery in deliveries if delivery.lane == lane]
                if numbers:
                    await self._done(lane, numbers)
        self._held.difference_update(delivery.mark for delivery in deliveries)

    async def _done(self, stream: str, numbers: Sequence[bytes]) -> None:
        async with self._redis.pipeline(transaction=True) as pipe:
            await pipe.xack(stream, GROUP, *numbers).xdel(stream, *numbers).execute()

    async def bury(self, delivery: Delivery, problem: ProblemView) -> None:
        lane, number = delivery.mark
        letter = {"letter": dead_letter(delivery, problem), CODE: problem.code}
        async with _lost(), self._redis.pipeline(transaction=True) as pipe:
            await pipe.xadd(DEAD, letter).xack(lane, GROUP, number).xdel(lane, number).execute()
        self._held.discard(delivery.mark)

    async def publish(self, changes: Sequence[StateChange], cursor: int | None) -> None:
        async with _lost(), self._redis.pipeline(transaction=True) as pipe:
            for change in changes:
                fields = {"id": change.id, "key": change.key, "body": change.body}
                pipe.xadd(EVENTS, fields, maxlen=_EVENTS_KEPT, approximate=True)
            if cursor is not None:
                pipe.set(CURSOR, cursor)
            await pipe.execute()

    async def cursor(self) -> int | None:
        async with _lost():
            found = await self._redis.get(CURSOR)
        return int(found) if found is not None and found.isdigit() and len(found) < 19 else None

    async def counts(self) -> BrokerCounts:
        async with _lost():
            sizes = [await self._redis.xlen(stream) for stream in (*LANES, DEAD)]
            for lane in LANES:
                if not await self._redis.exists(lane):
                    raise BrokerLost(f"the stream {lane} was deleted")
        return BrokerCounts(sum(sizes[:-1]), sizes[-1])

    # ---- items -------------------------------------------------------------------------------------------------

    async def keep_items(self, pending: Sequence[PendingItems]) -> None:
        async with _lost(), self._redis.pipeline(transaction=True) as pipe:
            for each in pending:
                pipe.xadd(ITEMS, {"items": msgspec.json.encode(each)})
            await pipe.execute()

    async def pending_items(self, most: int) -> list[tuple[Any, PendingItems]]:
        if most <= 0:
            return []
        found: list[tuple[Any, PendingItems]] = []
        async with _lost():
            claimed = await self._redis.xautoclaim(ITEMS, GROUP, self._name, self._stale_ms, count=most)
            fresh = await self._redis.xreadgroup(GROUP, self._name, {ITEMS: ">"}, count=most)
            parts = fresh.values() if isinstance(fresh, dict) else [rows for _, rows in fresh or []]
            for number, fields in [*claimed[1], *(row for rows in parts for row in _rows(rows))]:
                try:
                    found.append((number, msgspec.json.decode(fields[b"items"], type=PendingItems)))
                except (KeyError, msgspec.DecodeError, UnicodeDecodeError):
                    await self._done(ITEMS, [number])
        return found

    async def drop_items(self, marks: Sequence[Any]) -> None:
        async with _lost():
            await self._done(ITEMS, list(marks))


def _rows(rows: Any) -> list[Any]:
    """The library nests the rows of a stream in one more list with the newer protocol."""
    return rows[0] if rows and isinstance(rows[0], list) and rows[0] and not isinstance(rows[0][0], bytes) else rows


def _text(name: Any) -> str:
    return name.decode() if isinstance(name, bytes) else str(name)


def _deliveries(lane: str, rows: Any) -> list[Delivery]:
    return [
        delivery_of(
            lane,
            (lane, number),
            fields.get(b"body", b""),
            id=fields.get(b"id"),
            token=fields.get(TOKEN.encode()),
            user="",
            batch=fields.get(BATCH.encode()),
            encoding="",
            kind=bounded_text(fields.get(b"content-type", b"")),
        )
        for number, fields in _rows(rows)
        if fields
    ]


class RedisDeadLetters:
    """Dead letters of Redis."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> RedisDeadLetters:
        self._redis = _connection(self._url)
        async with _lost():
            await self._redis.ping()
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(RedisError, OSError):
            await self._redis.aclose()

    async def sift(self, judge: Judge, most: int) -> None:
        async with _lost():
            for number, fields in await self._redis.xrange(DEAD, count=most):
                if await judge(read_dead_letter(fields.get(b"letter", b""))):
                    await self._redis.xdel(DEAD, number)
