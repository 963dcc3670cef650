"""Clients find the leader among several servers by themselves, and never where a token would travel readably."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from corral.client.asynchronous import AsyncClient
from corral.client.blocking import Client
from corral.client.credentials import save_credentials
from corral.client.errors import BadCredentials, Unreachable
from corral.client.servers import HOPS, Servers
from tests.client.conftest import Both
from tests.client.fake import Fake, Reply, problem, serving

WHO = Reply({"user": "ann", "token": "t", "roles": [], "scopes": []})
PATH = "/v1/jobs/7/cancel"


@pytest.fixture
def other() -> Iterator[Fake]:
    with serving(Fake()) as server:
        yield server


def sent_to(there: Fake) -> Reply:
    found = problem(307, "not_leader")
    return Reply(found.body, 307, {"Location": f"{there.url}{PATH}"})


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_who_does_not_lead_names_the_leader_which_is_asked(fake: Fake, other: Fake, kind: str) -> None:
    fake.on("POST", PATH, sent_to(other))
    other.on("POST", PATH, Reply({"seq": 5}))
    assert Both(kind, fake.url)("cancel", "7").seq == 5
    assert [len(each.asked("POST", PATH)) for each in (fake, other)] == [1, 1]
    assert other.seen[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_where_no_one_answers_the_next_is_asked(fake: Fake, kind: str) -> None:
    fake.on("POST", PATH, Reply({"seq": 6}))
    assert Both(kind, f"http://127.0.0.1:1,{fake.url}/")("cancel", "7").seq == 6


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_the_next_is_asked_also_by_those_who_would_not_wait_for_a_single_one(fake: Fake, kind: str) -> None:
    """As the command line does: with one server it reports at once that there is no server."""
    fake.on("POST", PATH, Reply({"seq": 6}))
    assert Both(kind, f"http://127.0.0.1:1,{fake.url}", first_patience_s=0.0)("cancel", "7").seq == 6


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_servers_that_name_each_other_are_given_up_on_in_time(fake: Fake, other: Fake, kind: str) -> None:
    fake.on("POST", PATH, sent_to(other))
    other.on("POST", PATH, sent_to(fake))
    with pytest.raises(Unreachable, match="is not the leader"):
        Both(kind, fake.url, patience_s=0.0)("cancel", "7")
    assert len(fake.seen) + len(other.seen) == HOPS + 1


# ---- a server that falls silent --------------------------------------------------------------------------------------

SHORT_S = 20.0  # far below the minute that an answer may take, far above what leaving takes


@pytest.fixture
def frozen() -> Iterator[Fake]:
    """It accepts whatever is sent, and never answers."""
    thawed = threading.Event()

    def never(_: object) -> Reply:
        thawed.wait(60)
        return Reply(drop=True)

    server = Fake()
    for method, path in (("POST", PATH), ("GET", "/v1/health"), ("GET", "/v1/events"), ("POST", "/v1/tokens")):
        server.on(method, path, never)
    with serving(server):
        yield server
        thawed.set()


def healthy(role: str, leader: str = "") -> Reply:
    return Reply({"status": "ok", "version": "1", "role": role, "leader": leader})


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_a_frozen_leader_is_left_as_soon_as_another_leads(frozen: Fake, other: Fake, kind: str) -> None:
    other.then("GET", "/v1/health", healthy("standby", frozen.url), healthy("standby"), healthy("leader"))
    other.on("POST", PATH, Reply({"seq": 7}))
    began = time.monotonic()
    assert Both(kind, f"{frozen.url},{other.url}", patience_s=1.0)("cancel", "7").seq == 7
    assert time.monotonic() - began < SHORT_S
    assert len(other.asked("POST", PATH)) == 1
    assert len(other.asked("GET", "/v1/health")) == 3, "not before it leads"


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_a_stream_that_falls_silent_goes_on_where_another_leads(frozen: Fake, other: Fake, kind: str) -> None:
    other.on("GET", "/v1/health", healthy("leader"))
    event = b'data: {"seq": 3, "at_ms": 5, "data": {}, "actor": "a", "type": "X", "text": "x"}\n\n'
    other.on("GET", "/v1/events", lambda _: Reply(stream=iter([event])))
    began = time.monotonic()
    found = Both(kind, f"{frozen.url},{other.url}").all("events", follow=True, most=1)
    assert [each.seq for each in found] == [3]
    assert time.monotonic() - began < SHORT_S


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_a_server_that_is_merely_slow_is_waited_for(fake: Fake, other: Fake, kind: str) -> None:
    def slow(_: object) -> Reply:
        time.sleep(3.5)
        return Reply({"seq": 8})

    fake.on("POST", PATH, slow)
    fake.on("GET", "/v1/health", healthy("leader"))
    other.on("GET", "/v1/health", healthy("standby", fake.url))
    assert Both(kind, f"{fake.url},{other.url}")("cancel", "7").seq == 8
    assert len(fake.asked("POST", PATH)) == 1
    assert other.asked("POST", PATH) == []


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_what_may_have_happened_is_not_done_again_but_reported_of_soon(frozen: Fake, other: Fake, kind: str) -> None:
    other.on("GET", "/v1/health", healthy("leader"))
    began = time.monotonic()
    with pytest.raises(Unreachable, match=f"{other.url} is the leader") as told:
        Both(kind, f"{frozen.url},{other.url}")("make_token")
    assert told.value.connected
    assert time.monotonic() - began < SHORT_S
    assert other.asked("POST", "/v1/tokens") == []


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_a_server_that_has_lost_its_database_is_left_for_the_next(fake: Fake, other: Fake, kind: str) -> None:
    fake.on("POST", PATH, problem(503, "no_database"))
    other.on("POST", PATH, Reply({"seq": 9}))
    assert Both(kind, f"{fake.url},{other.url}")("cancel", "7").seq == 9
    assert len(fake.asked("POST", PATH)) == 1


@pytest.mark.parametrize("location", ["http://b:1/v1/jobs", "ftp://b", "", "/v1/jobs", "https://a:1/x", "http://["])
def test_a_token_does_not_leave_tls_nor_go_in_circles(location: str) -> None:
    places = Servers("https://a:1")
    with pytest.raises(Unreachable):
        places.follow(location, HOPS)
    assert places.current == "https://a:1"


def test_a_leader_that_is_lost_is_looked_for_among_those_that_were_named() -> None:
    places = Servers("http://a, http://b/", allow_plain=True)
    assert places.follow("http://c:1/v1/jobs?x", HOPS)
    assert places.current == "http://c:1"
    places.lost()
    assert places.current == "http://a"
    places.lost()
    assert places.current == "http://b"
    places.lost()
    assert places.current == "http://a"


@pytest.mark.parametrize(
    "url", ["http://10.0.0.7:7411", "http://sched.example", "https://a,http://b", "http://0.0.0.0:1"]
)
def test_no_token_goes_unencrypted_beyond_this_machine(url: str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(BadCredentials, match="unencrypted"):
        Client(url, "t")
    with pytest.raises(BadCredentials, match="unencrypted"):
        AsyncClient(url, "t")
    Client(url, "t", allow_plain_http=True).close()
    monkeypatch.setenv("CORRAL_ALLOW_PLAIN_HTTP", "1")
    Client(url, "t").close()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:7411", "http://localhost:1", "http://[::1]:1", "https://sched.example"]
)
def test_on_this_machine_and_with_tls_nothing_need_be_allowed(url: str):
    Client(url, "t").close()


def test_a_leader_beyond_this_machine_is_not_followed_without_tls():
    places = Servers("http://127.0.0.1:1")
    with pytest.raises(Unreachable):
        places.follow("http://10.0.0.7:7411/v1/jobs", 3)
    assert places.follow("http://127.0.0.1:2/v1/jobs", 3)


def test_what_was_allowed_at_login_is_kept_with_the_credentials(tmp_path, monkeypatch: pytest.MonkeyPatch):
    for name in ("CORRAL_URL", "CORRAL_TOKEN", "CORRAL_ALLOW_PLAIN_HTTP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    save_credentials("http://10.0.0.7:7411", "t", allow_plain_http=True)
    Client().close()
    save_credentials("http://10.0.0.7:7411", "t")
    with pytest.raises(BadCredentials, match="unencrypted"):
        Client()
