"""A server that does not lead: what it knows, what it answers, and where it sends the rest."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.intake.refusal import Refusal
from corral.server.api.app import make_app
from corral.server.saved import IMAGE_FORMAT
from corral.server.standing.following import Follower
from corral.server.standing.redirect import Redirect, is_answered_here
from corral.store.journal import JournalBusy, StoredImage
from corral.store.memory import MemoryJournal
from tests.server.asgi import ask
from tests.store.entries import entry, submission
from tests.store.runs import entries_of, events_of_run


async def test_it_knows_what_the_leader_wrote_and_tells_those_who_listen():
    leader = MemoryJournal()
    leader.append(entries_of(events_of_run(3, 50)))
    follower = Follower(leader, leader.lookup)
    assert follower.is_ready
    feed = follower.subscribe()
    heard = feed.__aiter__()
    jobs = len(follower.state.jobs)
    leader.append([submission(90_001), submission(90_002)])
    await follower.catch_up()
    assert len(follower.state.jobs) == jobs + 2
    assert (await anext(heard)).seq == leader.head.seq - 1
    assert follower.journal.head == leader.head
    feed.close()


async def test_what_was_archived_meanwhile_is_learned_from_an_image(monkeypatch):
    history, leader = entries_of(events_of_run(3, 200)), MemoryJournal()
    leader.append(history[:10])
    follower = Follower(leader, leader.lookup)
    leader.append(history[10:100])
    leader.save_image(StoredImage(100, IMAGE_FORMAT, Follower(leader, leader.lookup).known.pack()))
    leader.append(history[100:])
    monkeypatch.setattr(leader, "_records", leader._records[80:])  # as an archive leaves it
    await follower.catch_up()
    assert follower.journal.head.seq == leader.head.seq
    assert follower.known.pack() == Follower(leader, leader.lookup).known.pack()


async def test_it_changes_nothing():
    leader = MemoryJournal()
    follower = Follower(leader, leader.lookup)
    assert not follower.is_ready, "nobody has founded it yet"
    for answer in (
        await follower.submit("ann", []),
        await follower.change("ann", lambda state, now_ms: []),
        await follower.change_accounts("ann", lambda accounts, now_ms: []),
        await follower.explain("1/main"),
        await follower.dry_run([], "ann"),
    ):
        assert isinstance(answer, Refusal)
        assert answer.code == "not_leader"
    with pytest.raises(JournalBusy):
        follower.journal.append([entry(1)]).result(0)
    assert leader.head.seq == 0


async def test_health_tells_who_leads():
    leader = MemoryJournal()
    leader.append(entries_of(events_of_run(3, 50)))
    follower = Follower(leader, leader.lookup)
    follower.leader = "https://b:1"
    told = (await ask(make_app(follower), "GET", "/v1/health")).json()
    assert (told["status"], told["role"], told["leader"]) == ("ok", "standby", "https://b:1")


@pytest.mark.parametrize(
    ("method", "path", "here"),
    [
        ("GET", "/v1/jobs", True),
        ("GET", "/v1/jobs/7", True),
        ("GET", "/v1/events", True),
        ("GET", "/v1/health", True),
        ("GET", "/v1/jobs/7/why", False),
        ("GET", "/v1/jobs/7/logs", False),
        ("POST", "/v1/jobs", False),
        ("DELETE", "/v1/tokens/x", False),
        ("POST", "/v1/agent/report", False),
    ],
)
def test_what_is_answered_here(method, path, here):
    assert is_answered_here(method, path) is here


@pytest.mark.parametrize(
    ("leader", "status", "header"),
    [
        ("https://b:1", 307, (b"location", b"https://b:1/v1/jobs/a%2Fb/cancel?x=1")),
        ("", 503, (b"retry-after", b"1")),
    ],
)
async def test_the_rest_is_sent_to_the_leader_if_there_is_one(leader, status, header):
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def never(*_: Any) -> Any:
        raise AssertionError("asked here")

    scope = {
        "type": "http", "method": "POST", "path": "/v1/jobs/a/b/cancel", "raw_path": b"/v1/jobs/a%2Fb/cancel",
        "query_string": b"x=1", "headers": [],
    }  # fmt: skip
    await Redirect(never, lambda: leader)(scope, never, send)
    assert sent[0]["status"] == status
    assert header in sent[0]["headers"]
