"""What only the asynchronous client does: many requests at once, and requests that are given up."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from corral.client import AsyncClient
from corral.io.http import Interrupted
from tests.client.fake import Fake, Reply

PATH = "/v1/jobs/7/cancel"


def slow(_: object) -> Reply:
    time.sleep(0.3)
    return Reply({"seq": 5})


async def test_requests_do_not_wait_for_each_other(fake: Fake) -> None:
    fake.on("POST", PATH, slow)
    async with AsyncClient(fake.url, "t") as client:
        began = time.monotonic()
        answers = await asyncio.gather(*(client.cancel("7") for _ in range(40)))
        assert time.monotonic() - began < 40 * 0.3 / 2
    assert {answer.seq for answer in answers} == {5}


async def test_a_request_that_is_given_up_ends_at_once_and_the_next_one_works(fake: Fake) -> None:
    thawed = threading.Event()
    fake.on("POST", PATH, lambda _: Reply({"seq": 5}) if thawed.wait(60) else Reply(drop=True))
    fake.on("POST", "/v1/jobs/8/cancel", Reply({"seq": 6}))
    async with AsyncClient(fake.url, "t") as client:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(client.cancel("7"), 0.2)
        assert (await client.cancel("8")).seq == 6
    await _threads_end()
    thawed.set()


async def test_a_stream_that_is_left_while_it_is_silent_is_closed(fake: Fake) -> None:
    left = threading.Event()
    event = b'data: {"seq": 3, "at_ms": 5, "data": {}, "actor": "a", "type": "X", "text": "x"}\n\n'

    def forever() -> object:
        try:
            yield event
            while True:
                time.sleep(0.05)
                yield b": nothing new\n"
        finally:
            left.set()

    fake.on("GET", "/v1/events", lambda _: Reply(stream=forever()))  # type: ignore[arg-type]
    async with AsyncClient(fake.url, "t") as client:
        found: set[int] = set()

        async def follow() -> None:
            async for each in client.events(follow=True):
                found.add(each.seq)

        following = asyncio.ensure_future(follow())
        while not found:
            await asyncio.sleep(0.01)
        following.cancel()
        with pytest.raises(asyncio.CancelledError):
            await following
        await asyncio.to_thread(left.wait, 20)
        assert left.is_set()
    await _threads_end()


async def test_closing_the_client_ends_its_requests(fake: Fake) -> None:
    thawed = threading.Event()
    fake.on("POST", PATH, lambda _: Reply({"seq": 5}) if thawed.wait(60) else Reply(drop=True))
    client = AsyncClient(fake.url, "t")
    asking = asyncio.ensure_future(client.cancel("7"))
    while not fake.seen:
        await asyncio.sleep(0.01)
    await client.aclose()
    with pytest.raises(Interrupted):
        await asyncio.wait_for(asking, 20)
    await _threads_end()
    thawed.set()


async def _threads_end() -> None:
    """Threads of a closed client end, whatever its server does."""
    until_s = time.monotonic() + 20
    while any(each.name.startswith("corral-client") for each in threading.enumerate()):
        assert time.monotonic() < until_s
        await asyncio.sleep(0.01)
