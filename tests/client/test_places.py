"""Clients find the leader among several servers by themselves, and never where a token would travel readably."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from corral.client.asynchronous import AsyncClient
from corral.client.blocking import Client
from corral.client.credentials import save_credentials
from corral.client.errors import BadCredentials, Unreachable
from corral.client.places import HOPS, Places
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
def test_whoever_does_not_lead_names_the_leader_which_is_asked(fake: Fake, other: Fake, kind: str) -> None:
    fake.on("POST", PATH, sent_to(other))
    other.on("POST", PATH, Reply({"seq": 5}))
    assert Both(kind, fake.url)("cancel", "7").seq == 5
    assert [len(each.asked("POST", PATH)) for each in (fake, other)] == [1, 1]
    assert other.seen[0].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_where_nobody_answers_the_next_is_asked(fake: Fake, kind: str) -> None:
    fake.on("POST", PATH, Reply({"seq": 6}))
    assert Both(kind, f"http://127.0.0.1:1,{fake.url}/")("cancel", "7").seq == 6


@pytest.mark.parametrize("kind", ["blocking", "awaited"])
def test_servers_that_name_each_other_are_given_up_on_in_time(fake: Fake, other: Fake, kind: str) -> None:
    fake.on("POST", PATH, sent_to(other))
    other.on("POST", PATH, sent_to(fake))
    with pytest.raises(Unreachable, match="does not lead"):
        Both(kind, fake.url, patience_s=0.0)("cancel", "7")
    assert len(fake.seen) + len(other.seen) == HOPS + 1


@pytest.mark.parametrize("location", ["http://b:1/v1/jobs", "ftp://b", "", "/v1/jobs", "https://a:1/x", "http://["])
def test_a_token_does_not_leave_tls_nor_go_in_circles(location: str) -> None:
    places = Places("https://a:1")
    with pytest.raises(Unreachable):
        places.follow(location, HOPS)
    assert places.current == "https://a:1"


def test_a_leader_that_is_lost_is_looked_for_among_those_that_were_named() -> None:
    places = Places("http://a, http://b/", allow_plain=True)
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
    places = Places("http://127.0.0.1:1")
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
