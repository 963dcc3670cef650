"""The command line against a server of an earlier version: its recorded answers are understood."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from corral.wire.environment.export import USUAL
from tests.cli.typed import typed
from tests.client.fake import Fake, Reply, Request, serving
from tests.compatibility.recorded import VERSION, lacking, recorded

EXCHANGE: list[dict[str, Any]] = recorded("exchange.json")


def old_server(upto: int) -> Fake:
    """Answers as the old server did: with what it answered to this command, or else last before it."""
    fake = Fake()
    for entry in EXCHANGE[: upto + 1]:
        for each in entry["requests"]:
            reply = Reply(each["answer"].encode(), each["status"], {"Content-Type": each["type"]})
            fake.on(each["method"], each["path"].partition("?")[0], reply)
    return fake


@pytest.mark.parametrize("number", range(len(EXCHANGE)), ids=[entry["typed"] for entry in EXCHANGE])
def test_a_command_understands_an_old_server(
    number: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    entry = EXCHANGE[number]
    monkeypatch.chdir(VERSION)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"s3cret")))
    with serving(old_server(number)) as server:
        monkeypatch.setenv("CORRAL_URL", server.url)
        monkeypatch.setenv("CORRAL_TOKEN", "secret")
        done = typed(capfd, *entry["typed"].split())
    assert done.code == entry["code"], done.err
    if "--json" in entry["typed"]:
        before = [json.loads(text) for text in _documents(entry["out"])]
        now = [json.loads(text) for text in _documents(done.out)]
        assert list(lacking(before, now, values=True)) == []
    assert bool(done.out) == bool(entry["out"])


def _documents(out: str) -> list[str]:
    """The JSON documents that a command printed: one, or one for each line."""
    lines = out.splitlines()
    return lines if len(lines) > 1 and all(line.startswith("{") and line.endswith("}") for line in lines) else [out]


def test_requests_are_those_that_an_old_server_knows(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """A submission of the new command line has the path and the body that the old one had."""
    entry = next(each for each in EXCHANGE if "--label for=record" in each["typed"])
    seen: list[Request] = []
    with serving(old_server(EXCHANGE.index(entry))) as server:
        monkeypatch.setenv("CORRAL_URL", server.url)
        monkeypatch.setenv("CORRAL_TOKEN", "secret")
        typed(capfd, *entry["typed"].split())
        seen += server.asked("POST", "/v1/jobs")
    sent = json.loads(entry["requests"][0]["body"])
    env = seen[0].body.pop("env", {})  # a key of old servers too; the old command line exported nothing by default
    assert env.keys() <= set(USUAL)
    assert [request.body.keys() for request in seen] == [sent.keys()]
    assert {key: value for key, value in seen[0].body.items() if key != "directory"} == {
        key: value for key, value in sent.items() if key != "directory"
    }
