"""A GPU breaks under a running job: it is fenced alone, the job goes on without it, and the operator reads why."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.typed import typed
from tests.e2e.live import Live
from tests.e2e.test_restart import until_running

INTERVAL_MS = 500
HEALTH = json.dumps({"interval_ms": INTERVAL_MS, "quiet_ms": 300, "probe_retry_ms": 500, "clock_jump_ms_max": 0})


PATIENCE_S = 10  # for what takes a fraction of that on a machine with nothing else to do

Type = Callable[..., str]


@pytest.fixture
def corral(capsys: pytest.CaptureFixture[str]) -> Type:
    """What a command says, as an operator types it on the machine."""

    def corral(*words: str) -> str:
        ran = typed(capsys, *words)
        assert ran.code == 0, ran.err
        return ran.out

    return corral


def drill(corral: Type, server: Live, *words: str) -> float:
    """When it was drilled."""
    began = time.monotonic()
    corral("node", "drill", "--data", str(server.data), "--gpu", "3", *words)
    return began


def gpu(server: Live, slot: int = 3) -> Any:
    return server.ask("GET", "/v1/nodes/here")["gpus"][slot]


def until(what: Callable[[], bool], within_s: float = 20) -> float:
    end = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < end, "it does not come to that"
        time.sleep(0.01)
    return time.monotonic()


def healths(server: Live) -> list[str]:
    return [each["health"] for each in server.ask("GET", "/v1/nodes/here")["gpus"]]


def test_an_xid_under_a_running_job(live, corral, monkeypatch):
    server = live(health=HEALTH)
    server.start()
    hit = server.submit({"command": "trap 'exit 0' TERM; sleep 1000 & wait", "gpus": 4})
    until_running(server, hit)
    other = server.submit({"command": "sleep 1000", "gpus": 2})
    until_running(server, other)
    assert gpu(server)["gangs"] == [f"{hit}/main"]

    drill(corral, server, "--fail-probe")
    began = drill(corral, server, "--xid", "79")
    seen = until(lambda: gpu(server)["health"] == "failed")
    assert seen - began < PATIENCE_S, "seen at once, or nearly"

    until(lambda: server.job(hit)["attempts"] == 2 and server.job(hit)["state"] == "running")
    assert gpu(server)["gangs"] == []
    assert healths(server) == ["healthy"] * 3 + ["failed"] + ["healthy"] * 4
    assert server.ask("GET", "/v1/nodes/here")["open"], "the node itself goes on"
    assert server.job(other)["attempts"] == 1, "no other job is touched"

    monkeypatch.setenv("CORRAL_URL", f"http://127.0.0.1:{server.port}")
    monkeypatch.setenv("CORRAL_TOKEN", server.token)
    assert "Xid 79: the GPU has fallen off the bus" in corral("node", "show", "here")
    assert "GPU 3 of node here is failed: Xid 79" in corral("events")

    # a restart forgives nothing; a probe that fails does not either
    book = server.data / "health" / "book.json"
    until(
        lambda: (
            {(key["gang"], key["attempt"]) for key, _ in json.loads(book.read_text())["tasks"]} >= {(f"{hit}/main", 2)}
        )
    )
    server.kill()
    server.start()
    until(lambda: gpu(server)["why"].startswith("a probe failed"))
    assert gpu(server)["health"] == "failed"

    drill(corral, server, "--end")
    until(lambda: gpu(server)["health"] == "healthy")
    assert gpu(server)["why"].startswith("a probe passed")
    whole = server.submit({"command": "true", "gpus": 2})
    server.until_over([whole])


def test_an_xid_is_received_and_does_not_wait_for_the_next_look(live, corral):
    server = live(health=json.dumps({"interval_ms": 600_000}))
    server.start()
    until(lambda: gpu(server)["health"] == "healthy")
    drill(corral, server, "--xid", "79")
    until(lambda: gpu(server)["health"] == "failed")


def test_memory_errors_drain_the_gpu_and_its_job_moves(live, corral):
    server = live(health=HEALTH)
    server.start()
    hit = server.submit({"command": "sleep 1000", "gpus": 4, "grace": "1s"})
    until_running(server, hit)
    time.sleep(INTERVAL_MS / 1000)  # one look before, so that the errors are new
    began = drill(corral, server, "--uncorrected", "2", "--fail-probe")
    seen = until(lambda: gpu(server)["health"] == "draining")
    assert seen - began < PATIENCE_S, "at the next look, or nearly"
    assert gpu(server)["why"] == "2 uncorrectable memory errors"
    until(lambda: server.job(hit)["attempts"] == 2 and server.job(hit)["state"] == "running")
    assert gpu(server)["gangs"] == []


def test_an_operator_clears_what_is_mended(live, corral):
    server = live(health=HEALTH)
    server.start()
    drill(corral, server, "--vanish")
    until(lambda: gpu(server)["health"] == "failed")
    assert gpu(server)["why"] == "the driver can no longer reach the GPU"
    drill(corral, server, "--end")
    corral("node", "clear", "--data", str(server.data), "--gpu", "3")
    until(lambda: gpu(server)["health"] == "healthy")
