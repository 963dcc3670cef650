"""Three servers and a database to which things happen: one of each cheap kind, and what each finding was about."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.database import Database, NoServer
from tests.e2e.database_faults import Faults, Trio, is_good
from tests.e2e.live import Live, Refused, Unanswered, free_port
from tests.e2e.proxy import DatabaseProxy, Mode

SOON_S = 30.0  # generous: without deadlines it would be never


@pytest.fixture
def own_database() -> Iterator[Database]:
    """One that may be killed."""
    try:
        database = Database()
    except NoServer as missing:
        pytest.skip(str(missing))
    yield database
    database.stop()


@pytest.mark.timeout(300)
def test_one_fault_of_each_kind_under_load_loses_nothing(database: Database, tmp_path: Path) -> None:
    faults = Faults(tmp_path, database, seed=2)
    figures = faults.run(["replies_lost", "commit_cut", "table_locked", "leader_stopped"], each=1)
    figures["unavailable_s_max"] = figures["client_s_max"] = 0.0  # measured by `make soak-database`, on a quiet machine
    assert is_good(figures), figures
    assert figures["acknowledged"] > 5
    assert figures["complaints"] == []


@pytest.fixture
def server(database: Database, tmp_path: Path) -> Iterator[tuple[Live, DatabaseProxy]]:
    """One that leads by itself, and a second that stands by behind a proxy."""
    address = database.new()
    proxy = DatabaseProxy(str(database.folder), address)
    first, second = Live(tmp_path / "a"), Live(tmp_path / "b")
    for live, where in ((first, address), (second, proxy.url)):
        live.more = ["--database", where, "--tasks", str(tmp_path / "tasks"), "--lease-s", "2"]
        live.start()
    yield second, proxy
    proxy.heal()
    for live in (first, second):
        if live.process is not None:
            live.stop()
    proxy.close()


def until(what: Any, within_s: float = SOON_S) -> Any:
    end = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.05)
    return found


def health(live: Live) -> dict[str, Any]:
    try:
        told: dict[str, Any] = live.ask("GET", "/v1/health", timeout=5)
    except (Unanswered, Refused):
        return {}
    return told


@pytest.mark.timeout(180)
def test_a_standby_that_has_lost_replies_says_so_and_follows_again_by_itself(server):
    standby, proxy = server
    assert health(standby)["following"]
    proxy.fail(Mode.LOSE_REPLIES)
    told = until(lambda: (now := health(standby))["status"] == "failed" and now)
    assert not told["following"]
    assert told["followed_s_ago"] > 3
    assert told["waits_for"]
    proxy.heal(late=True)  # the connections that have lost replies stay open
    until(lambda: health(standby)["status"] == "ok")


def test_a_standby_without_answers_from_its_database_ends_when_it_is_asked_to(server):
    standby, proxy = server
    proxy.fail(Mode.HANG)
    time.sleep(1)
    began = time.monotonic()
    assert standby.stop() == 0
    assert time.monotonic() - began < SOON_S


def test_a_server_that_is_started_while_the_database_is_away_waits_for_it(own_database, tmp_path):
    live = Live(tmp_path / "a", port=free_port())
    live.more = ["--database", own_database.new(), "--lease-s", "2"]
    own_database.kill()
    live.begin()
    try:
        told = until(lambda: health(live))
        assert (told["status"], told["database"]) == ("starting", "away")
        assert told["waits_for"] == "the database to be reachable"
        own_database.start()
        until(lambda: health(live).get("role") == "leader" and health(live)["status"] == "ok")
        live.submit({"command": ["true"]})
        assert live.stop() == 0
    finally:
        if live.process is not None:
            live.kill()


def test_a_server_that_may_not_use_the_database_ends_and_says_why(database: Database, tmp_path: Path) -> None:
    live = Live(tmp_path / "a")
    live.more = ["--database", database.new().replace("corral@", "nobody_here@")]
    assert live.begin().wait(SOON_S) == 2
    assert 'role "nobody_here" does not exist' in live.errors()


@pytest.mark.timeout(180)
def test_a_leader_that_is_cut_off_ends_and_another_is_found(database: Database, tmp_path: Path) -> None:
    trio = Trio(tmp_path, database, database.new(), lease_s=2.0)
    try:
        trio.start()
        number = trio.leader()
        trio.restart_after_s = 5.0
        leader = trio.servers[number].process
        assert leader is not None
        with trio.client() as client:
            client.submit({"command": ["true"]})
            trio.proxies[number].fail(Mode.HANG)
            client.submit({"command": ["true"]}, key="once")
            assert client.url != trio.servers[number].url
        assert leader.wait(SOON_S) == 1
    finally:
        trio.stop()
