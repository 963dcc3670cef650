"""Two servers on one database: one leads, the other follows, answers what can be read, and takes over."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.client import Client
from corral.store.journal import all_records
from corral.store.postgres import PostgresReader, verify
from tests.database import Database, NoServer
from tests.e2e.failover import Failover, Pair, is_good, wrong_writers
from tests.e2e.live import Live, Refused, is_alive

SLEEPER = {"command": ["sleep", "600"], "gpus": 1}


@pytest.mark.timeout(600)
def test_five_takeovers(database, tmp_path):
    figures = Failover(tmp_path, database.new(), trials=5, seed=3).run()
    assert is_good(figures), figures
    assert figures["trials"] == 5


@pytest.fixture
def pair(database: Database, tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path, database.new(), lease_s=2.0)
    pair.start()
    yield pair
    for live in pair.servers:
        if live.process is not None:
            live.process.send_signal(signal.SIGCONT)
    pair.stop()


def sides(pair: Pair) -> tuple[Live, Live]:
    leader = pair.leader()
    assert leader is not None
    return leader, next(live for live in pair.servers if live is not leader)


def until(what: Any, within_s: float = 30) -> Any:
    end = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.05)
    return found


def test_who_stands_by_answers_what_can_be_read_and_sends_the_rest_to_the_leader(pair):
    leader, other = sides(pair)
    id = leader.submit(SLEEPER)
    until(lambda: id in [job["id"] for job in other.jobs()], 5)
    until(lambda: other.job(id)["state"] == "running", 15)
    assert [node["name"] for node in other.ask("GET", "/v1/nodes")["nodes"]] == ["here"]
    with other.connection() as connection:
        connection.request("POST", "/v1/jobs?x=1", b"{}")
        answer = connection.getresponse()
        answer.read()
        assert (answer.status, answer.getheader("Location")) == (307, f"{leader.url}/v1/jobs?x=1")
    with pytest.raises(Refused, match="not_leader"):
        other.ask("GET", f"/v1/jobs/{id}/why")
    with Client(other.url, pair.token) as client:
        client.cancel(id)
        assert client.url == leader.url, "the client stays with the leader"
        until(lambda: client.job(id).state == "cancelled")


def test_a_leader_that_was_frozen_is_fenced_and_ends(pair):
    leader, other = sides(pair)
    id = leader.submit(SLEEPER)
    until(lambda: leader.job(id)["state"] == "running")
    (supervisor,) = Live(leader.data.parent / "tasks").supervisors()
    assert leader.process is not None
    leader.process.send_signal(signal.SIGSTOP)
    until(lambda: pair.leader() is other)
    until(lambda: can_submit(other))
    leader.process.send_signal(signal.SIGCONT)
    assert leader.process.wait(30) == 1, leader.errors()
    assert other.job(id)["state"] == "running"
    assert is_alive(supervisor)
    other.ask("POST", f"/v1/jobs/{id}/cancel")
    other.until_over([id])
    reader = PostgresReader(pair.address)
    assert wrong_writers(list(all_records(reader))) == []
    reader.close()
    leader.start()


def can_submit(live: Live) -> bool:
    try:
        live.submit({"command": ["true"]})
    except Refused:
        return False
    return True


@pytest.mark.timeout(300)
def test_a_database_that_is_killed_and_comes_back_has_lost_nothing(tmp_path):
    try:
        database = Database(durable=True)
    except NoServer as missing:
        pytest.skip(str(missing))
    pair = Pair(tmp_path, database.new(), lease_s=2.0)
    try:
        pair.start()
        leader, other = sides(pair)
        ids = [leader.submit({"command": ["true"]}) for _ in range(20)]
        database.kill()
        assert leader.process is not None
        assert leader.process.wait(30) == 1, leader.errors()
        with pytest.raises(Refused, match=r"503.*(no_leader|database_away)"):
            other.submit({"command": ["true"]})
        database.start()
        until(lambda: can_submit(other))
        assert {view["state"] for view in other.until_over(ids).values()} == {"succeeded"}
        leader.start()
        assert verify(pair.address) == []
        pair.stop()
    finally:
        for live in pair.servers:
            if live.process is not None and live.process.poll() is None:
                live.kill()
        database.stop()
