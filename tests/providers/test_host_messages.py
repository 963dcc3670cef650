"""Requests to hosts and their answers: both sides know the same keys, and what a host answers is checked."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec import structs

from corral.providers.bootstrap import bootstrap
from corral.providers.bootstrap.bundle import AgentBundle, WheelFile
from corral.providers.bootstrap.host_messages import (
    AgentEnd,
    BadHostAnswer,
    HostAnswer,
    HostFault,
    HostRequest,
    LookRequest,
    PilotRecord,
    StartRequest,
    decode,
    encode,
)
from corral.providers.bootstrap.payload import install_request
from corral.providers.remote_exec import HostUnfit, checked_answer
from corral.providers.ssh.settings import SshHost

RECORD = PilotRecord(pilot="gpu-1", cluster="ours", agent="1-a", at_ms=5, token="corral_1_secret", words=("--x",))


def executed(request: HostRequest, folder: Path) -> HostAnswer | HostFault | None:
    """What the server reads of the answer of a host."""
    answer = bootstrap.execute(json.loads(encode(request, str(folder))), io.BytesIO())
    return decode(b"Welcome!\n" + json.dumps(answer).encode() + b"\n")


def test_both_sides_know_the_same_keys() -> None:
    for kind in get_args(HostRequest):
        fields = {field.name for field in structs.fields(kind)}
        assert fields <= bootstrap.RequestDict.__annotations__.keys(), kind
    assert {field.name for field in structs.fields(PilotRecord)} == bootstrap.PilotRecordDict.__annotations__.keys()


def test_every_request_has_an_action_on_the_host() -> None:
    tags = {kind.__struct_config__.tag for kind in get_args(HostRequest)}
    assert tags == bootstrap.ACTS.keys()


def test_a_look_at_a_bare_host_tells_its_details(tmp_path: Path) -> None:
    answer = executed(LookRequest(), tmp_path / "base")
    assert isinstance(answer, HostAnswer)
    assert answer.details is not None
    assert (answer.place, answer.state.is_kept, answer.agents) == (None, False, ())
    assert answer.details.python >= (3, 11, 0)


def test_a_start_without_an_agent_is_answered_so(tmp_path: Path) -> None:
    answer = executed(StartRequest(RECORD, is_kept=True), tmp_path / "base")
    assert isinstance(answer, HostAnswer)
    assert answer.is_bare
    assert not answer.is_taken


def test_a_record_comes_back_without_its_token(tmp_path: Path) -> None:
    base = tmp_path / "base"
    (base / "agents" / "1-a").mkdir(parents=True)
    answer = executed(StartRequest(structs.replace(RECORD, is_kept=True), is_kept=True), base)
    assert isinstance(answer, HostAnswer)
    assert answer.place == PilotRecord(pilot="gpu-1", cluster="ours", agent="1-a", at_ms=5, is_kept=True)
    (base / "ended.json").write_text(json.dumps({"code": 3, "why": "refused", "at_ms": 7}))
    ended = executed(LookRequest(), base)
    assert isinstance(ended, HostAnswer)
    assert ended.state.ended == AgentEnd("refused", 3, 7)


def test_a_request_names_the_wheels_that_follow_it() -> None:
    wheel = WheelFile("x.whl", frozenset(), b"bytes", "mark")
    request, body = install_request(AgentBundle((wheel,), "1-a"))
    assert body == b"bytes"
    assert json.loads(encode(request, ""))["wheels"][0][0] == 5


def test_a_token_is_not_shown() -> None:
    assert "secret" not in repr(StartRequest(RECORD, is_kept=False))


WRONG: dict[str, dict[str, Any]] = {
    "no details": {"place": None, "state": {}, "agents": []},
    "a number as name": {"place": {"pilot": 7, "cluster": "c", "agent": "a", "at_ms": 0}},
    "a fault that is no text": {"fault": 7},
}


@pytest.mark.parametrize("answer", WRONG.values(), ids=WRONG.keys())
def test_an_invalid_answer_is_refused(answer: dict[str, Any]) -> None:
    with pytest.raises(BadHostAnswer):
        decode(json.dumps(answer).encode())
    with pytest.raises(HostUnfit, match="gpu1: cannot read the answer"):
        checked_answer(SshHost(host="gpu1"), json.dumps(answer).encode())


def test_what_is_no_answer_is_none() -> None:
    assert [decode(output) for output in (b"", b"Permission denied\n", b"[1]\n")] == [None, None, None]


def test_a_fault_makes_the_host_unfit() -> None:
    with pytest.raises(HostUnfit, match="gpu1: the disk is full"):
        checked_answer(SshHost(host="gpu1"), b'{"fault": "the disk is full"}\n')
