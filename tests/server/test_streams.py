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


async def submit(setup, count: int = 1) -> None:
    for _ in range(count):
        assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, JOB)).status == 201


def numbers(told: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"^id: (\d+)$", told, re.MULTILINE)]


# ---- events ----------------------------------------------------------------------------------------------


async def test_pages_lead_through_the_whole_record(setup):
    await submit(setup, 30)
    seen, after = [], 0
    while True:
        page = (await ask(setup.app, "GET", f"/v1/events?after={after}&limit=7", setup.root)).json()
        seen += [event["seq"] for event in page["events"]]
        if not page["events"]:
            break
        after = page["next"]
    assert seen == list(range(1, setup.service.journal.head.seq + 1))
    assert page["head"] == seen[-1]


async def test_a_page_after_a_record_that_does_not_exist_shows_the_true_head(setup):
    """The reader knows another journal: it must be able to notice."""
    await submit(setup)
    head = setup.service.journal.head.seq
    for after, shown in ((head - 1, head), (head, head), (head + 1, head), (10**9, head)):
        page = (await ask(setup.app, "GET", f"/v1/events?after={after}", setup.root)).json()
        assert (page["head"], page["next"]) == (shown, max(after, head))


async def test_pages_can_be_narrowed(setup):
    await submit(setup, 3)
    page = (await ask(setup.app, "GET", "/v1/events?job=2", setup.root)).json()
    assert [event["type"] for event in page["events"]] == ["JobSubmitted"]
    page = (await ask(setup.app, "GET", "/v1/events?types=QueueSet,NodeAdded", setup.root)).json()
    assert {event["type"] for event in page["events"]} == {"QueueSet", "NodeAdded"}
    page = (await ask(setup.app, "GET", "/v1/events?queue=team&types=JobSubmitted", setup.root)).json()
    assert [event["job"] for event in page["events"]] == ["1", "2", "3"]
    assert page["events"][0]["text"] == "job 1 was submitted to team"
    assert page["events"][0]["actor"] == "member"


async def test_private_names_of_actors_in_old_journals_are_shown_as_system(setup):
    assert any(record.actor == "world" for record in setup.service.journal.read(0, 1000))
    page = (await ask(setup.app, "GET", "/v1/events?types=NodeAdded", setup.root)).json()
    assert {event["actor"] for event in page["events"]} == {"system"}


async def test_no_digest_of_a_token_is_ever_reported(setup):
    told = (await ask(setup.app, "GET", "/v1/events?limit=1000", setup.root)).body
    assert b"TokenIssued" in told
    assert not any(token.digest.encode() in told for token in setup.service.accounts.tokens.values())


async def test_a_stream_tells_what_was_and_what_comes(setup):
    await submit(setup, 2)
    async with Stream(setup.app, FOLLOW, setup.root) as stream:
        assert dict((await stream.head)["headers"])[b"content-type"] == b"text/event-stream"
        told = await stream.until(b'"job":"2"')
        await submit(setup, 3)
        told += await stream.until(b'"job":"5"')
    assert numbers(told) == list(range(1, setup.service.journal.head.seq + 1))
    data = [json.loads(line[6:]) for line in told.splitlines() if line.startswith(b"data: ")]
    assert [event["seq"] for event in data] == numbers(told)


async def test_a_stream_begins_where_the_last_one_ended(setup):
    await submit(setup, 3)
    head = setup.service.journal.head.seq
    async with Stream(setup.app, "/v1/events", setup.root, [
        ("Accept", "text/event-stream"), ("Last-Event-ID", str(head - 1))
    ]) as stream:  # fmt: skip
        assert numbers(await stream.until(b'"job":"3"')) == [head]


async def test_nothing_is_missed_while_much_is_written(setup):
    async with Stream(setup.app, FOLLOW, setup.root) as stream:
        writing = asyncio.create_task(submit(setup, 200))
        told = await stream.until(b'"job":"200"')
        await writing
    assert numbers(told) == list(range(1, setup.service.journal.head.seq + 1))


async def test_silence_is_broken_by_heartbeats(setup):
    async with Stream(
        setup.app, f"/v1/events?follow=true&after={setup.service.journal.head.seq}", setup.root
    ) as stream:
        assert b"still here" in await stream.until(b": still here\n\n: still here\n\n"[:14])


async def test_a_stream_ends_when_the_server_goes_down(setup):
    async with Stream(setup.app, FOLLOW, setup.root) as stream:
        await stream.until(b"id: 1")
        setup.app.close()
        await stream.rest()


@pytest.mark.parametrize("end", ["revoked", "expired", "disabled"])
async def test_a_stream_ends_with_its_token(setup, end):
    now_ms = setup.service.now_ms()
    token = setup.service.token("member", expires_ms=now_ms + 10_000)
    async with Stream(setup.app, FOLLOW, token) as stream:
        await stream.until(b"id: 1")
        if end == "expired":
            setup.service.time_ms += 10_000
        elif end == "revoked":
            setup.service.do_accounts("root", [a.TokenRevoked(now_ms, token.split("_")[1])])
        else:
            setup.service.do_accounts("root", [a.UserSet(now_ms, "member", "", True)])
        await stream.rest()


async def test_streams_are_bounded_and_given_back(setup):
    streams = [Stream(setup.app, FOLLOW, setup.member) for _ in range(3)]
    for stream in streams:
        await stream.__aenter__()
        await stream.head
    async with Stream(setup.app, FOLLOW, setup.member) as extra:
        assert (await extra.head)["status"] == 429
    for stream in streams:
        await stream.__aexit__()
    async with Stream(setup.app, FOLLOW, setup.member) as stream:
        assert (await stream.head)["status"] == 200


def test_every_event_has_its_sentence():
    assert {kind.__name__ for kind in get_args(codec.AnyEvent)} == {kind.__name__ for kind in _SENTENCES}


# ---- logs ------------------------------------------------------------------------------------------------


async def run(setup) -> None:
    """Job 1 runs."""
    await submit(setup)
    setup.service.plan()
    tell(setup, f.TasksUp("1/main", 1, 1))


def tell(setup, fact) -> None:
    setup.service.do("world", react(setup.service.state, fact, setup.service.now_ms()))


KEY = (TaskKey("1/main", 1, 0), "stdout")


async def test_a_part_of_a_log(setup):
    await run(setup)
    setup.service.backend.logs[KEY] = b"0123456789"
    answer = await ask(setup.app, "GET", "/v1/jobs/1/logs?offset=2&limit=3", setup.member)
    assert (answer.status, answer.body) == (200, b"234")
    assert (answer.headers["corral-log-offset"], answer.headers["corral-log-next"]) == ("2", "5")
    assert answer.headers["corral-log-over"] == "false"
    answer = await ask(setup.app, "GET", "/v1/jobs/1/logs?tail=4", setup.member)
    assert (answer.body, answer.headers["corral-log-over"]) == (b"6789", "true")


@pytest.mark.parametrize("query", ["gang=none", "task=1", "attempt=2", "stream=stderr", "gang=3"])
async def test_a_log_that_is_not_there(setup, query):
    await run(setup)
    setup.service.backend.logs[KEY] = b"x"
    assert (await ask(setup.app, "GET", f"/v1/jobs/1/logs?{query}", setup.member)).status == 404


async def test_logs_of_an_array_are_found_by_number(setup):
    job = JOB | {"array": "0-2"}
    assert (await ask(setup.app, "POST", "/v1/jobs", setup.member, job)).status == 201
    setup.service.plan()
    setup.service.backend.logs[TaskKey("1[2]/main", 1, 0), "stdout"] = b"third"
    for gang in ("2", "2/main", "1%5B2%5D/main"):
        answer = await ask(setup.app, "GET", f"/v1/jobs/1/logs?gang={gang}", setup.member)
        assert answer.body == b"third", gang


async def test_a_job_that_has_not_started_has_no_log_yet(setup):
    await submit(setup)
    answer = await ask(setup.app, "GET", "/v1/jobs/1/logs", setup.member)
    assert (answer.status, answer.code) == (404, "no_such_log")


async def test_following_begins_before_the_job_and_ends_with_it(setup):
    await submit(setup)
    async with Stream(setup.app, "/v1/jobs/1/logs?follow=true", setup.member) as stream:
        await stream.head
        setup.service.plan()
        tell(setup, f.TasksUp("1/main", 1, 1))
        setup.service.backend.logs[KEY] = b"one "
        setup.service.backend.open.add(KEY)
        assert await stream.until(b"one ") == b"one "
        setup.service.backend.logs[KEY] += b"two"
        assert await stream.until(b"two") == b"two"
        setup.service.backend.open.discard(KEY)
        tell(setup, f.TasksDown("1/main", 1, 1, 0, None, "n0"))
        assert await stream.rest() == b""


async def test_following_goes_on_with_the_next_run(setup):
    await run(setup)
    setup.service.backend.logs[KEY] = b"first "
    async with Stream(setup.app, "/v1/jobs/1/logs?follow=true", setup.member) as stream:
        await stream.until(b"first ")
        assert (await ask(setup.app, "POST", "/v1/jobs/1/requeue", setup.member)).status == 200
        tell(setup, f.TasksDown("1/main", 1, 1, 143, None, "n0"))
        setup.service.plan()
        setup.service.backend.logs[TaskKey("1/main", 2, 0), "stdout"] = b"second"
        tell(setup, f.TasksUp("1/main", 2, 1))
        assert await stream.until(b"second") == b"second"
        tell(setup, f.TasksDown("1/main", 2, 1, 0, None, "n0"))
        assert await stream.rest() == b""
