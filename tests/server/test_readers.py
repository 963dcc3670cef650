"""Reads never delay writes: heavy ones are made one at a time, in steps, once for all readers of the same."""

from __future__ import annotations

import asyncio

import pytest

from corral.core.accounts.accounts import Role
from corral.server.api.http.shared_views import SharedViews, in_steps
from tests.server.asgi import ask
from tests.steps import tracing

JOB = {"queue": "team", "command": ["true"], "gpus": 1}


async def test_who_asks_while_a_view_is_made_shares_the_next_one():
    views, made, may_go_on = SharedViews(), list[str](), asyncio.Event()

    async def make() -> bytes:
        made.append("begun")
        await may_go_on.wait()
        return str(len(made)).encode()

    first = asyncio.ensure_future(views.of("x", make))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(views.of("x", make)) for _ in range(50)]
    await asyncio.sleep(0)
    may_go_on.set()
    assert await first == b"1"
    assert await asyncio.gather(*others) == [b"2"] * 50, "no reader gets an answer that was begun before its request"
    assert len(made) == 2


async def test_views_of_all_kinds_are_made_one_at_a_time():
    views, at_once, most = SharedViews(), 0, 0

    async def make() -> bytes:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        for _ in range(5):
            await asyncio.sleep(0)
        at_once -= 1
        return b""

    await asyncio.gather(*(views.of(n % 10, make) for n in range(40)))
    assert most == 1
    assert views.made == 10


async def test_one_who_leaves_does_not_take_the_view_from_the_others():
    views = SharedViews()

    async def make() -> bytes:
        await asyncio.sleep(0)
        return b"it"

    gone, stays = (asyncio.ensure_future(views.of("x", make)) for _ in range(2))
    await asyncio.sleep(0)
    gone.cancel()
    assert await stays == b"it"


async def test_a_view_that_cannot_be_made_is_reported_to_all_who_wait_and_made_again_for_the_next():
    views = SharedViews()

    async def fail() -> bytes:
        raise LookupError("no")

    async def make() -> bytes:
        return b"it"

    answers = await asyncio.gather(*(views.of("x", fail) for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in answers] == [LookupError] * 3
    assert await views.of("x", make) == b"it"


async def test_others_have_a_turn_between_the_steps_of_a_long_read(monkeypatch):
    monkeypatch.setattr("corral.server.api.http.shared_views._STEP_S", -1)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while turns < 1_000:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(other())
    found = [each async for each in in_steps(range(100))]
    assert found == list(range(100))
    assert turns >= 99
    task.cancel()


@pytest.mark.parametrize("path", ["/v1/queues", "/v1/queues/team"])
async def test_a_view_of_queues_costs_what_there_are_queues_not_what_waits_in_them(setup, path):
    async def count() -> int:
        with tracing("corral.server.api.handlers.cluster", "corral.core") as counted:
            answer = await ask(setup.app, "GET", path, setup.root)
        assert answer.status == 200
        return counted.lines

    await count()
    few = await count()
    for n in range(60):  # no two alike: each is in a bucket of its own
        answer = await ask(setup.app, "POST", "/v1/jobs", setup.root, {**JOB, "cpus": 1 + n})
        assert answer.status == 201, answer.body
    assert await count() < few + 60


async def test_the_events_of_a_job_are_found_without_reading_those_of_others(setup, monkeypatch):
    numbers = []
    for _ in range(30):
        answer = await ask(setup.app, "POST", "/v1/jobs", setup.root, JOB)
        numbers.append(answer.json()["id"])
    job = numbers[20]
    read, read_some = list[int](), setup.service.journal.read

    def counted_read(after: int, limit: int) -> object:
        read.append(after)
        return read_some(after, limit)

    monkeypatch.setattr(setup.service.journal, "read", counted_read)
    with tracing("corral.server.api.handlers.events") as counted:
        answer = await ask(setup.app, "GET", f"/v1/events?job={job}", setup.root)
    assert [event["job"] for event in answer.json()["events"]] == [job]
    assert read == []
    with tracing("corral.server.api.handlers.events") as all_of_them:
        await ask(setup.app, "GET", "/v1/events", setup.root)
    assert counted.lines * 5 < all_of_them.lines


async def test_views_are_shared_by_those_of_the_same_rights_only(setup):
    mate = setup.service.user("mate", (Role.MEMBER, "team"))
    stranger = setup.service.user("stranger", (Role.MEMBER, "other"))
    asked = [setup.member, mate, setup.root, stranger]
    answers = await asyncio.gather(*(ask(setup.app, "GET", "/v1/queues", token) for token in asked))
    names = [[queue["name"] for queue in answer.json()["queues"]] for answer in answers]
    assert names[0] == names[1]
    assert "team" in names[0]
    assert "other" not in names[0]
    assert "other" in names[3]
    assert "team" not in names[3]
    assert {"team", "other"} <= set(names[2])
