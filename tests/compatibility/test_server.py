"""A server on the folder of an earlier version, and requests of an earlier client to a server of today."""

from __future__ import annotations

import json
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.core.laws import check
from corral.server.journal_state import JournalState
from corral.store.images import ImageFolder
from tests.compatibility.recorded import VERSION, lacking, recorded
from tests.e2e.live import Live

EXCHANGE: list[dict[str, Any]] = recorded("exchange.json")


def answer_to(typed: str) -> Any:
    """The last answer that the old server gave to a command."""
    entry = [each for each in EXCHANGE if each["typed"] == typed][-1]
    return json.loads(entry["requests"][-1]["answer"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with tarfile.open(VERSION / "data.tar.gz") as archive:
        archive.extractall(tmp_path, filter="tar")  # tasks have named pipes
    return tmp_path / "data"


@pytest.fixture
def upgraded(folder: Path) -> Iterator[Live]:
    """A server of today on the old folder, a minute after the old one was stopped: its token is good for some weeks."""
    stopped_s = answer_to("show 4 --json")["ended_ms"] // 1000
    live = Live(folder, ahead_s=stopped_s + 60 - int(time.time()))
    (folder / "credentials.json").write_bytes((VERSION / "credentials.json").read_bytes())
    live.start()
    yield live
    live.stop()


def test_the_image_of_an_old_folder_is_loaded(folder: Path):
    stored = ImageFolder(folder / "images").newest()
    assert stored is not None
    known = JournalState.unpack(stored.body)
    check(known.state)
    assert {"1", "2", "4", "5", "6"} <= known.state.jobs.keys()
    assert known.accounts.users.keys() == {"admin", "ann"}


def test_a_server_starts_on_an_old_folder_and_knows_everything(upgraded: Live):
    for job in ("3", "4"):
        assert list(lacking(answer_to(f"show {job} --json"), upgraded.job(job), values=True)) == []
    assert [each["id"] for each in upgraded.jobs(states="waiting")] == ["5", "2", "1"]
    users = upgraded.ask("GET", "/v1/users")
    assert list(lacking(answer_to("user list --json"), users, values=True)) == []
    queues = upgraded.ask("GET", "/v1/queues")
    assert list(lacking(answer_to("queue show lab --json"), _queue(queues, "lab"))) == []
    assert _queue(queues, "lab")["guarantee"] == answer_to("queue show lab --json")["guarantee"]
    assert upgraded.ask("GET", "/v1/secrets") == answer_to("secret list --json")
    events = upgraded.ask("GET", "/v1/events?after=0&limit=1000")["events"]
    for before, now in zip(answer_to("events --since 0 --limit 20 --json")["events"], events, strict=False):
        kept = {key: value for key, value in before.items() if key not in ("text", "actor")}  # said in other words
        assert list(lacking(kept, now, values=True)) == []


def test_work_goes_on_where_an_old_server_left_it(upgraded: Live):
    upgraded.ask("POST", "/v1/jobs/1/release")
    assert upgraded.until_over(["1"])["1"]["state"] == "succeeded"
    new = upgraded.submit({"command": "true"})
    assert upgraded.until_over([new])[new]["state"] == "succeeded"


def _queue(queues: Any, name: str) -> Any:
    return next(each for each in queues["queues"] if each["name"] == name)


def test_an_old_client_gets_from_a_new_server_what_it_reads(tmp_path: Path):
    """Every request of the old command line, in order: the same status, and every field that the old answer had."""
    live = Live(tmp_path / "data")
    live.start()
    try:
        for entry in EXCHANGE:
            for each in entry["requests"]:
                assert _differences(live, each) == [], entry["typed"]
    finally:
        live.stop()


def _differences(live: Live, recorded: dict[str, Any]) -> list[str]:
    """Asked again for some seconds, for what happens meanwhile: a job ends, and its log is there."""
    until = time.monotonic() + (20 if recorded["method"] == "GET" else 0)
    while True:
        with live.connection() as connection:
            headers = recorded["headers"] | {"Authorization": f"Bearer {live.token}"}
            connection.request(recorded["method"], recorded["path"], recorded["body"] or None, headers)
            answer = connection.getresponse()
            body = answer.read().decode()
        if answer.status != recorded["status"]:
            found = [f"status {answer.status}, was {recorded['status']}: {body}"]
        elif "json" in recorded["type"]:
            found = list(lacking(json.loads(recorded["answer"]), json.loads(body)))
        else:
            found = [] if body == recorded["answer"] else [body]
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.2)
