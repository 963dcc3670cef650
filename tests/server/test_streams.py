"""The record and the logs: pages, streams that miss nothing, and every way in which a stream ends."""

from __future__ import annotations

import asyncio
import json
import re
from typing import get_args

import pytest

from corral.core import facts as f
from corral.core.accounts import accounts as a
from corral.core.engine import react
from corral.runtime.base import TaskKey
from corral.server.api.handlers.event_text import _SENTENCES
from corral.server.api.http.settings import ApiSettings
from corral.wire import codec
from tests.server.asgi import Stream, ask

JOB = {"queue": "team", "command": "true", "gpus": 1}
FOLLOW = "/v1/events?follow=true"


@pytest.fixture
def settings():
    return ApiSettings(heartbeat_s=0.05, log_poll_s=0.01, streams_per_token=3)


async def submit(desk, count: int = 1) -> None:
    for _ in range(count):
        assert (await ask(desk.app, "POST", "/v1/jobs", desk.member, JOB)).status == 201


def numbers(told: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"^id: (\d+)$", told, re.MULTILINE)]


# ---- events ----------------------------------------------------------------------------------------------


async def test_pages_lead_through_the_whole_record(desk):
    await submit(desk, 30)
    seen, after = [], 0
    while True:
        page = (await ask(desk.app, "GET", f"/v1/events?after={after}&limit=7", desk.root)).json()
        seen += [event["seq"] for event in page["events"]]
        if not page["events"]:
            break
        after = page["next"]
    assert seen == list(range(1, desk.service.journal.head.seq + 1))
    assert page["head"] == seen[-1]


async def test_pages_can_be_narrowed(desk):
    await submit(desk, 3)
    page = (await ask(desk.app, "GET", "/v1/events?job=2", desk.root)).json()
    assert [event["type"] for event in page["events"]] == ["JobSubmitted"]
    page = (await ask(desk.app, "GET", "/v1/events?types=QueueSet,NodeAdded", desk.root)).json()
    assert {event["type"] for event in page["events"]} == {"QueueSet", "NodeAdded"}
    page = (await ask(desk.app, "GET", "/v1/events?queue=team&types=JobSubmitted", desk.root)).json()
    assert [event["job"] for event in page["events"]] == ["1", "2", "3"]
    assert page["events"][0]["text"] == "job 1 was submitted to team"
    assert page["events"][0]["actor"] == "member"


async def test_private_names_of_actors_in_old_journals_are_shown_as_system(desk):
    assert any(record.actor == "world" for record in desk.service.journal.read(0, 1000))
    page = (await ask(desk.app, "GET", "/v1/events?types=NodeAdded", desk.root)).json()
    assert {event["actor"] for event in page["events"]} == {"system"}


async def test_no_digest_of_a_token_is_ever_told(desk):
    told = (await ask(desk.app, "GET", "/v1/events?limit=1000", desk.root)).body
    assert b"TokenIssued" in told
    assert not any(token.digest.encode() in told for token in desk.service.accounts.tokens.values())


async def test_a_stream_tells_what_was_and_what_comes(desk):
    await submit(desk, 2)
    async with Stream(desk.app, FOLLOW, desk.root) as stream:
        assert dict((await stream.head)["headers"])[b"content-type"] == b"text/event-stream"
        told = await stream.until(b'"job":"2"')
        await submit(desk, 3)
        told += await stream.until(b'"job":"5"')
    assert numbers(told) == list(range(1, desk.service.journal.head.seq + 1))
    data = [json.loads(line[6:]) for line in told.splitlines() if line.startswith(b"data: ")]
    assert [event["seq"] for event in data] == numbers(told)


async def test_a_stream_begins_where_the_last_one_ended(desk):
    await submit(desk, 3)
    head = desk.service.journal.head.seq
    async with Stream(desk.app, "/v1/events", desk.root, [
        ("Accept", "text/event-stream"), ("Last-Event-ID", str(head - 1))
    ]) as stream:  # fmt: skip
        assert numbers(await stream.until(b'"job":"3"')) == [head]


async def test_nothing_is_missed_while_much_is_written(desk):
    async with Stream(desk.app, FOLLOW, desk.root) as stream:
        writing = asyncio.create_task(submit(desk, 200))
        told = await stream.until(b'"job":"200"')
        await writing
    assert numbers(told) == list(range(1, desk.service.journal.head.seq + 1))


async def test_silence_is_broken_by_heartbeats(desk):
    async with Stream(desk.app, f"/v1/events?follow=true&after={desk.service.journal.head.seq}", desk.root) as stream:
        assert b"still here" in await stream.until(b": still here\n\n: still here\n\n"[:14])


async def test_a_stream_ends_when_the_server_goes_down(desk):
    async with Stream(desk.app, FOLLOW, desk.root) as stream:
        await stream.until(b"id: 1")
        desk.app.close()
        await stream.rest()


@pytest.mark.parametrize("end", ["revoked", "expired", "disabled"])
async def test_a_stream_ends_with_its_token(desk, end):
    now_ms = desk.service.now_ms()
    token = desk.service.token("member", expires_ms=now_ms + 10_000)
    async with Stream(desk.app, FOLLOW, token) as stream:
        await stream.until(b"id: 1")
        if end == "expired":
            desk.service.time_ms += 10_000
        elif end == "revoked":
            desk.service.do_accounts("root", [a.TokenRevoked(now_ms, token.split("_")[1])])
        else:
            desk.service.do_accounts("root", [a.UserSet(now_ms, "member", "", True)])
        await stream.rest()


async def test_streams_are_bounded_and_given_back(desk):
    streams = [Stream(desk.app, FOLLOW, desk.member) for _ in range(3)]
    for stream in streams:
        await stream.__aenter__()
        await stream.head
    async with Stream(desk.app, FOLLOW, desk.member) as extra:
        assert (await extra.head)["status"] == 429
    for stream in streams:
        await stream.__aexit__()
    async with Stream(desk.app, FOLLOW, desk.member) as stream:
        assert (await stream.head)["status"] == 200


def test_every_event_has_its_sentence():
    assert {kind.__name__ for kind in get_args(codec.AnyEvent)} == {kind.__name__ for kind in _SENTENCES}


# ---- logs ------------------------------------------------------------------------------------------------


async def run(desk) -> None:
    """Job 1 runs."""
    await submit(desk)
    desk.service.plan()
    tell(desk, f.TasksUp("1/main", 1, 1))


def tell(desk, fact) -> None:
    desk.service.do("world", react(desk.service.state, fact, desk.service.now_ms()))


KEY = (TaskKey("1/main", 1, 0), "stdout")


async def test_a_part_of_a_log(desk):
    await run(desk)
    desk.service.backend.logs[KEY] = b"0123456789"
    answer = await ask(desk.app, "GET", "/v1/jobs/1/logs?offset=2&limit=3", desk.member)
    assert (answer.status, answer.body) == (200, b"234")
    assert (answer.headers["corral-log-offset"], answer.headers["corral-log-next"]) == ("2", "5")
    assert answer.headers["corral-log-over"] == "false"
    answer = await ask(desk.app, "GET", "/v1/jobs/1/logs?tail=4", desk.member)
    assert (answer.body, answer.headers["corral-log-over"]) == (b"6789", "true")


@pytest.mark.parametrize("query", ["gang=none", "task=1", "attempt=2", "stream=stderr", "gang=3"])
async def test_a_log_that_is_not_there(desk, query):
    await run(desk)
    desk.service.backend.logs[KEY] = b"x"
    assert (await ask(desk.app, "GET", f"/v1/jobs/1/logs?{query}", desk.member)).status == 404


async def test_logs_of_an_array_are_found_by_number(desk):
    job = JOB | {"array": "0-2"}
    assert (await ask(desk.app, "POST", "/v1/jobs", desk.member, job)).status == 201
    desk.service.plan()
    desk.service.backend.logs[TaskKey("1[2]/main", 1, 0), "stdout"] = b"third"
    for gang in ("2", "2/main", "1%5B2%5D/main"):
        answer = await ask(desk.app, "GET", f"/v1/jobs/1/logs?gang={gang}", desk.member)
        assert answer.body == b"third", gang


async def test_a_job_that_has_not_started_has_no_log_yet(desk):
    await submit(desk)
    answer = await ask(desk.app, "GET", "/v1/jobs/1/logs", desk.member)
    assert (answer.status, answer.code) == (404, "no_such_log")


async def test_following_begins_before_the_job_and_ends_with_it(desk):
    await submit(desk)
    async with Stream(desk.app, "/v1/jobs/1/logs?follow=true", desk.member) as stream:
        await stream.head
        desk.service.plan()
        tell(desk, f.TasksUp("1/main", 1, 1))
        desk.service.backend.logs[KEY] = b"one "
        desk.service.backend.open.add(KEY)
        assert await stream.until(b"one ") == b"one "
        desk.service.backend.logs[KEY] += b"two"
        assert await stream.until(b"two") == b"two"
        desk.service.backend.open.discard(KEY)
        tell(desk, f.TasksDown("1/main", 1, 1, 0, None, "n0"))
        assert await stream.rest() == b""


async def test_following_goes_on_with_the_next_run(desk):
    await run(desk)
    desk.service.backend.logs[KEY] = b"first "
    async with Stream(desk.app, "/v1/jobs/1/logs?follow=true", desk.member) as stream:
        await stream.until(b"first ")
        assert (await ask(desk.app, "POST", "/v1/jobs/1/requeue", desk.member)).status == 200
        tell(desk, f.TasksDown("1/main", 1, 1, 143, None, "n0"))
        desk.service.plan()
        desk.service.backend.logs[TaskKey("1/main", 2, 0), "stdout"] = b"second"
        tell(desk, f.TasksUp("1/main", 2, 1))
        assert await stream.until(b"second") == b"second"
        tell(desk, f.TasksDown("1/main", 2, 1, 0, None, "n0"))
        assert await stream.rest() == b""
