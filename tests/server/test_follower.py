"""A server that does not lead: what it knows, what it answers, and where it sends the rest."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from corral.core.accounts.accounts import Role, TokenRevoked
from corral.core.intake.refusal import Refusal
from corral.server.api.app import make_app
from corral.server.api.http.problems import ApiError
from corral.server.ha.detached_wait import apart
from corral.server.ha.follower import STALE_S, Follower
from corral.server.ha.redirect import Redirect, Starting, Switch, is_answered_here
from corral.server.journal_state import IMAGE_FORMAT
from corral.store.journal import JournalAway, JournalBusy, StoredImage
from corral.store.memory import MemoryJournal
from tests.server.asgi import ask
from tests.server.in_memory_service import MemoryService
from tests.server.test_sessions import Browser
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
    assert not follower.is_ready, "it has not been started yet"
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


async def test_the_dashboard_of_a_standby_is_signed_in_there_and_shows_the_cluster():
    leading = MemoryService(nodes=2)
    leading.queue("team")
    token = leading.user("ann", (Role.MEMBER, "team"))
    follower = Follower(leading.journal, leading.lookup)
    browser = Browser(Redirect(make_app(follower), lambda: "https://b:1"))
    assert (await browser.sign_in(token=token)).status == 200
    view = (await browser.ask("GET", "/v1/live?parts=nodes,queues")).json()
    assert (view["leads"], view["overview"]["gpus"]["total"]) == (False, 16)
    assert len(view["topology"]["nodes"]) == 2
    assert [queue["name"] for queue in view["queues"]] == ["team"]
    assert (await browser.ask("GET", "/v1/jobs")).status == 200
    assert (await browser.ask("GET", "/v1/session")).json()["user"] == "ann"
    assert (await browser.ask("POST", "/v1/jobs", {"command": "true"})).status == 307
    line = await browser.ask("GET", "/v1/line", headers=[("Sec-Fetch-Mode", "cors")])
    assert (line.status, line.json()["code"]) == (503, "not_leader"), "a page cannot follow to another address"
    await follower.catch_up()
    assert (await browser.ask("DELETE", "/v1/session", csrf="wrong")).status == 403
    assert (await browser.ask("DELETE", "/v1/session")).status == 200
    assert (await browser.ask("GET", "/v1/live")).status == 401


async def test_a_session_of_a_standby_ends_with_the_token():
    leading = MemoryService()
    token = leading.user("ann", (Role.VIEWER, ""))
    follower = Follower(leading.journal, leading.lookup)
    browser = Browser(make_app(follower))
    await browser.sign_in(token=token)
    leading.do_accounts("root", [TokenRevoked(leading.now_ms(), token.split("_")[1])])
    await follower.catch_up()
    answer = await browser.ask("GET", "/v1/live")
    assert (answer.status, answer.json()["code"]) == (401, "session_over")
    assert (await browser.sign_in(code="x" * 43)).json()["code"] == "not_leader"


@pytest.mark.parametrize(
    ("method", "path", "here"),
    [
        ("GET", "/v1/jobs", True),
        ("GET", "/v1/jobs/7", True),
        ("GET", "/v1/events", True),
        ("GET", "/v1/health", True),
        ("POST", "/v1/session", True),
        ("GET", "/v1/jobs/7/why", False),
        ("GET", "/v1/jobs/7/logs", False),
        ("POST", "/v1/jobs", False),
        ("DELETE", "/v1/tokens/x", False),
        ("POST", "/v1/agent/join", False),
        ("GET", "/v1/agent/endpoint", False),
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


# ---- a database that is away --------------------------------------------------------------------------------


async def test_who_cannot_follow_says_so_and_answers_nothing_from_memory(monkeypatch):
    leader = MemoryJournal()
    leader.append(entries_of(events_of_run(3, 50)))
    follower = Follower(leader, leader.lookup)
    await follower.catch_up()
    app = make_app(follower)
    served = Redirect(app, lambda: "", follower.vitals)
    told = (await ask(served, "GET", "/v1/health")).json()
    assert (told["status"], told["following"], told["seq"]) == ("ok", True, leader.head.seq)
    assert told["followed_s_ago"] < STALE_S
    monkeypatch.setattr(follower, "followed_s", follower.followed_s - 100)
    follower.database = "silent"
    told = (await ask(served, "GET", "/v1/health")).json()
    assert (told["status"], told["following"], told["database"]) == ("failed", False, "silent")
    assert told["followed_s_ago"] >= 100
    assert told["waits_for"] == "the database to answer"
    answer = await ask(served, "GET", "/v1/jobs")
    assert (answer.status, answer.json()["code"]) == (503, "no_database")
    assert answer.headers["retry-after"] == "1"
    await follower.catch_up()
    assert follower.vitals().following


async def test_a_server_that_waits_for_its_database_tells_for_what():
    waiting = Starting(lambda: "read_only")
    told = (await ask(waiting, "GET", "/v1/health")).json()
    assert (told["status"], told["role"], told["following"]) == ("starting", "standby", False)
    assert told["waits_for"] == "the database to be writable: it is read-only"
    answer = await ask(waiting, "POST", "/v1/jobs")
    assert (answer.status, answer.json()["code"]) == (503, "no_database")
    assert answer.headers["retry-after"] == "1"


async def test_who_is_cut_off_by_a_stop_is_reported_so_as_a_problem():
    """Otherwise the web server answers with 500 in plain text, which no client takes for Corral's."""
    begun = asyncio.Event()

    async def never(*_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(ask(Switch(never), "POST", "/v1/jobs"))
    await begun.wait()
    task.cancel()
    answer = await task
    assert (answer.status, answer.json()["code"]) == (503, "going_down")
    assert answer.headers["retry-after"] == "1"


async def test_who_asks_something_while_the_server_goes_down_is_reported_so():
    leader = MemoryJournal()
    leader.append(entries_of(events_of_run(3, 50)))
    app = make_app(Follower(leader, leader.lookup))
    app.close()
    for look in (app.shared.look, app.shared.look_first, app.shared.look_at_logs):
        with pytest.raises(ApiError) as told:
            await look(leader.lookup.job, "1")
        assert (told.value.status, told.value.code) == (503, "going_down")


async def test_a_call_that_never_returns_is_left_to_itself():
    free, late = threading.Event(), list[str]()
    closed = threading.Event()

    def stuck() -> str:
        free.wait(60)
        return "journal"

    def close(result: str) -> None:
        late.append(result)
        closed.set()

    with pytest.raises(JournalAway) as told:
        await apart(stuck, 0.05, close)
    assert told.value.kind == "silent"
    free.set()
    assert await asyncio.to_thread(closed.wait, 10)
    assert late == ["journal"], "what it returned all the same is closed"
    assert await apart(lambda: 5, 10) == 5
