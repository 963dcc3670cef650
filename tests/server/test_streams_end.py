"""Streams and the users who open them: they end within a second of losing the right, and no user takes all of them."""

from __future__ import annotations

import asyncio
import time

import pytest

from corral.core import facts as f
from corral.core.accounts import accounts as a
from corral.core.accounts.accounts import Role
from corral.core.engine import react
from corral.remote.backend import RemoteBackend
from corral.remote.settings import RemoteSettings
from corral.runtime.base import TaskKey
from corral.server.api.http.settings import ApiSettings
from corral.server.service import EventFeed, EventHub
from corral.store.journal import Record
from tests.server.asgi import Stream, ask

JOB = {"queue": "team", "command": "true", "gpus": 1}
EVENTS = "/v1/events?follow=true"
LOGS = "/v1/jobs/1/logs?follow=true"
KEY = TaskKey("1/main", 1, 0)
WITHIN_S = 5.0  # one is documented; without a message it would be the 15 of a heartbeat


@pytest.fixture
def settings():
    return ApiSettings(streams_max=40, streams_reserve=10, streams_per_user=12, streams_per_address=20,
                       streams_per_token=8)  # fmt: skip


async def running_job(setup) -> None:
    """Job 1 of another user runs, and its log may still grow."""
    owner = setup.service.user("owner", (Role.MEMBER, "team"))
    assert (await ask(setup.app, "POST", "/v1/jobs", owner, JOB)).status == 201
    setup.service.plan()
    setup.service.do("world", react(setup.service.state, f.TasksUp("1/main", 1, 1), setup.service.now_ms()))
    setup.service.backend.logs[KEY, "stdout"] = b"id: 1\n"
    setup.service.backend.open.add((KEY, "stdout"))


@pytest.mark.parametrize("path", [EVENTS, LOGS], ids=["events", "logs"])
@pytest.mark.parametrize("end", ["revoked", "expired", "disabled", "removed", "role"])
async def test_a_stream_ends_within_a_second_of_losing_the_right(setup, end, path):
    await running_job(setup)
    service = setup.service
    began_ms, began = service.time_ms, time.monotonic()
    service.now_ms = lambda: began_ms + int((time.monotonic() - began) * 1000)
    token = service.token("member", expires_ms=service.now_ms() + (1500 if end == "expired" else 600_000))
    async with Stream(setup.app, path, token) as stream:
        await stream.until(b"id: 1")
        await asyncio.sleep(0.2)  # it is idle now
        now_ms = service.now_ms()
        events = {
            "expired": [],
            "revoked": [a.TokenRevoked(now_ms, token.split("_")[1])],
            "disabled": [a.UserSet(now_ms, "member", "", True)],
            "removed": [a.UserRemoved(now_ms, "member")],
            "role": [a.RoleRevoked(now_ms, "member", Role.MEMBER, "team")],
        }[end]
        wait_s = 1.5 if end == "expired" else 0.0
        service.do_accounts("root", events)
        async with asyncio.timeout(wait_s + WITHIN_S):
            await stream.task
    assert not setup.app.streams.open


@pytest.mark.parametrize("path", [EVENTS, LOGS], ids=["events", "logs"])
async def test_what_does_not_touch_its_right_does_not_end_a_stream(setup, path):
    await running_job(setup)
    async with Stream(setup.app, path, setup.member) as stream:
        await stream.until(b"id: 1")
        other = setup.service.user("other", (Role.VIEWER, "team"))
        now_ms = setup.service.now_ms()
        setup.service.do_accounts("root", [a.TokenRevoked(now_ms, other.split("_")[1])])
        setup.service.do_accounts("root", [a.RoleGranted(now_ms, "member", Role.VIEWER, "other")])
        await asyncio.sleep(0.3)
        assert not stream.task.done()


# ---- how many --------------------------------------------------------------------------------------------


async def opened(setup, stack: list[Stream], token: str, client: str = "10.0.0.1") -> int:
    stream = Stream(setup.app, EVENTS, token)
    stream.scope["client"] = (client, 1)
    await stream.__aenter__()
    status = (await stream.head)["status"]
    if status == 200:
        stack.append(stream)
    else:
        await stream.__aexit__()
    return int(status)


@pytest.fixture
async def stack(setup):
    del setup
    streams: list[Stream] = []
    yield streams
    for stream in streams:
        await stream.__aexit__()


async def test_one_user_does_not_take_all_streams_with_many_tokens(setup, stack):
    tokens = [setup.service.token("member") for _ in range(8)]
    took = [await opened(setup, stack, token, f"10.0.0.{n}") for n, token in enumerate(tokens) for _ in range(8)]
    assert took.count(200) == 12
    assert set(took) == {200, 429}
    assert await opened(setup, stack, setup.root) == 200


async def test_one_address_does_not_take_all_streams_with_many_users(setup, stack):
    tokens = [setup.service.user(f"u{n}", (Role.VIEWER, "team")) for n in range(5)]
    took = [await opened(setup, stack, token) for token in tokens for _ in range(8)]
    assert took.count(200) == 20
    assert await opened(setup, stack, setup.root, "10.0.0.2") == 200


async def test_the_last_streams_are_for_those_who_have_few(setup, stack):
    tokens = [setup.service.user(f"u{n}", (Role.VIEWER, "team")) for n in range(5)]
    took = [await opened(setup, stack, token, f"10.0.0.{n}") for n, token in enumerate(tokens) for _ in range(8)]
    assert took.count(200) == 30 + 2  # the fifth may have as many as any user may have of the reserve
    assert await opened(setup, stack, setup.root, "10.0.0.9") == 200


async def test_a_refused_stream_says_what_to_do(setup, stack):
    for _ in range(8):
        assert await opened(setup, stack, setup.member) == 200
    answer = await ask(setup.app, "GET", EVENTS, setup.member)
    assert (answer.status, answer.code) == (429, "too_many_streams")
    assert "8" in answer.json()["detail"]
    assert answer.headers["retry-after"]


# ---- logs of machines that do not answer -----------------------------------------------------------------


class TestLogsOfAFleet:
    @pytest.fixture
    def settings(self):
        return ApiSettings(
            streams_max=2_000, streams_per_user=1_000, streams_per_token=1_000, streams_per_address=1_000
        )

    async def fleet(self, setup, tmp_path, wait_ms: int) -> RemoteBackend:
        """Job 1 runs on a node of a fleet whose agent says nothing about its log."""
        await running_job(setup)
        backend = RemoteBackend(tmp_path, RemoteSettings(log_wait_ms=wait_ms))
        backend.expect(setup.service.state.nodes["n0"].spec, False, [KEY])
        backend.open(lambda _: None, 1)
        setup.service.backend = backend
        return backend

    @pytest.mark.parametrize("followers", [15, 300])
    async def test_followers_of_a_log_do_not_keep_others_from_reading(self, setup, tmp_path, followers):
        backend = await self.fleet(setup, tmp_path, 60_000)
        streams = [Stream(setup.app, LOGS, setup.member) for _ in range(followers)]
        for stream in streams:
            await stream.__aenter__()
        await asyncio.gather(*(stream.head for stream in streams))
        await asyncio.sleep(0.3)
        try:
            async with asyncio.timeout(5):
                for _ in range(5):
                    assert (await ask(setup.app, "GET", "/v1/jobs", setup.root)).status == 200
                assert (await ask(setup.app, "GET", "/v1/jobs/1", setup.root)).status == 200
        finally:
            backend.close()
            for stream in streams:
                stream.gone.set()
            await asyncio.gather(*(stream.task for stream in streams))

    async def test_followers_of_one_log_share_one_question_to_its_node(self, setup, tmp_path):
        backend = await self.fleet(setup, tmp_path, 60_000)
        streams = [Stream(setup.app, LOGS, setup.member) for _ in range(20)]
        for stream in streams:
            await stream.__aenter__()
        await asyncio.gather(*(stream.head for stream in streams))
        await asyncio.sleep(0.5)
        try:
            assert len(backend._members["n0"].log_asks) == 1
        finally:
            backend.close()
            for stream in streams:
                stream.gone.set()
            await asyncio.gather(*(stream.task for stream in streams))


async def test_feeds_that_are_equally_far_read_together():
    reads = []

    def read(after: int, limit: int) -> list[Record]:
        reads.append((after, limit))
        return []

    room = EventHub(read)
    feeds = [aiter(EventFeed(room, 7)) for _ in range(100)]
    waiting = [asyncio.ensure_future(anext(feed)) for feed in feeds]
    await asyncio.sleep(0.1)
    assert len(reads) == 1
    room.wake()
    await asyncio.sleep(0.1)
    assert len(reads) == 2
    room.end_feeds()
    await asyncio.gather(*waiting, return_exceptions=True)
