"""Containers that outlive a server, and what is left of those that should not have: on a real Podman."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.core.model import FailureClass
from corral.runtime.base import Phase, TaskKey, TaskReport
from tests.runtime.container_backend import ContainerHarness
from tests.runtime.local_backend import is_alive
from tests.runtime.podman import IMAGE, Podman
from tests.runtime.reports import now_ms, until


@pytest.fixture
def harness(tmp_path: Path, podman: Podman) -> Iterator[ContainerHarness]:
    harness = ContainerHarness(tmp_path, podman)
    yield harness
    harness.close()
    until(lambda: not harness.names())


def test_a_container_is_adopted_by_the_next_server_and_its_log_goes_on(harness: ContainerHarness):
    key = harness.sh("echo one; trap 'echo two; exit 85' TERM; while :; do sleep 0.05; done")
    harness.says(key, "one")
    up, pid = harness.collector.up(key), harness.pid(key)
    harness.backend.close()
    harness.open()
    assert harness.collector.up(key) == up
    assert harness.pid(key) == pid
    harness.backend.warn(key, now_ms() + 60_000, "drain")
    assert harness.collector.down(key).exit_code == 85
    assert harness.log(key) == "one\ntwo\n"


def test_an_end_without_a_server_is_recorded(harness: ContainerHarness):
    key = harness.sh("echo one; while [ ! -e /tmp/go ]; do sleep 0.02; done; exit 4")
    harness.says(key, "one")
    go = Path(f"/proc/{harness.pid(key)}/root/tmp/go")
    harness.backend.close()
    go.touch()
    until(lambda: harness.record(key).exit() is not None)
    harness.open()
    assert harness.collector.down(key).exit_code == 4


def test_a_container_whose_supervisor_was_killed_is_ended_and_reported_lost(harness: ContainerHarness):
    key = harness.sh("echo ready; sleep 600")
    harness.says(key, "ready")
    pid = harness.pid(key)
    os.kill(_supervisor(harness, key), signal.SIGKILL)
    down = harness.collector.down(key)
    assert down.failure is FailureClass.NODE_LOST
    assert not is_alive(pid), "it is ended before it is reported lost"


def test_a_lost_container_is_not_reported_lost_while_it_may_still_run(harness: ContainerHarness):
    key = harness.sh("echo ready; sleep 600")
    harness.says(key, "ready")
    pid, supervisor = harness.pid(key), _supervisor(harness, key)
    harness.backend.close()
    os.kill(supervisor, signal.SIGKILL)
    harness.podman.stop()
    try:
        harness.open()
        assert is_alive(pid)
        assert [report.phase for report in harness.collector.of(key) if isinstance(report, TaskReport)] == [Phase.UP]
    finally:
        harness.podman.start()
    assert harness.collector.down(key).failure is FailureClass.NODE_LOST
    assert not is_alive(pid)


def test_leftovers_of_this_installation_are_removed_and_those_of_others_are_not(harness: ContainerHarness):
    runs = harness.sh("echo ready; sleep 600")
    harness.says(runs, "ready")
    mine = _leave(harness.podman, harness.host.label() | {"corral.name": "5%2Fmain@1.0", "corral.gang": "5/main"})
    theirs = _leave(harness.podman, {"corral.data": "somebody-else", "corral.name": "6%2Fmain@1.0"})
    nobodys = _leave(harness.podman, {})
    until(lambda: mine not in _ids(harness.podman))
    assert {theirs, nobodys} <= _ids(harness.podman)
    assert harness.names() == [runs.gang]
    for container in (theirs, nobodys):
        harness.podman.engine.call("DELETE", f"/containers/{container}?force=1")


def test_what_the_engine_could_not_remove_is_removed_later(harness: ContainerHarness):
    key = harness.sh("echo ready; sleep 600")
    harness.says(key, "ready")
    harness.podman.stop()
    try:
        harness.backend.kill(key)
        down = harness.collector.down(key)
    finally:
        harness.podman.start()
    assert (down.exit_code, down.signal) == (137, 9)
    until(lambda: not harness.names())


def _leave(podman: Podman, labels: dict[str, str]) -> str:
    """A container that runs, not made by a backend."""
    body = {"Image": IMAGE, "Entrypoint": ["sleep", "600"], "Labels": labels, "HostConfig": {"NetworkMode": "host"}}
    container: str = podman.engine.call("POST", "/containers/create", body)["Id"]
    podman.engine.call("POST", f"/containers/{container}/start")
    return container


def _ids(podman: Podman) -> set[str]:
    return {each["Id"] for each in podman.containers()}


def _supervisor(harness: ContainerHarness, key: TaskKey) -> int:
    return harness.started(key).supervisor


def test_a_task_can_be_killed_while_the_engine_hangs(harness: ContainerHarness):
    harness.podman.pause()
    try:
        key = harness.sh("echo ready; sleep 600")
        until(lambda: (harness.state(key) / "control").exists())
        harness.backend.kill(key)
        down = harness.collector.down(key)
    finally:
        harness.podman.resume()
    assert (down.exit_code, down.signal) == (137, 9)
