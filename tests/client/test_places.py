"""Clients find the leader among several servers by themselves, and never where a token would travel readably."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from corral.client.errors import Unreachable
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
    places = Places("http://a, http://b/")
    assert places.follow("http://c:1/v1/jobs?x", HOPS)
    assert places.current == "http://c:1"
    places.lost()
    assert places.current == "http://a"
    places.lost()
    assert places.current == "http://b"
    places.lost()
    assert places.current == "http://a"
