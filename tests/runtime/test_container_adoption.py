"""Containers that outlive a server, and what is left of those that should not have: on a real Podman."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.core.model import FailureClass
from corral.runtime.base import Phase, TaskKey, TaskReport
from tests.runtime.container_ground import ContainerGround
from tests.runtime.local_ground import is_alive
from tests.runtime.podman import IMAGE, Podman
from tests.runtime.telling import now_ms, until


@pytest.fixture
def ground(tmp_path: Path, podman: Podman) -> Iterator[ContainerGround]:
    ground = ContainerGround(tmp_path, podman)
    yield ground
    ground.close()
    until(lambda: not ground.names())


def test_a_container_is_adopted_by_the_next_server_and_its_log_goes_on(ground: ContainerGround):
    key = ground.sh("echo one; trap 'echo two; exit 85' TERM; while :; do sleep 0.05; done")
    ground.says(key, "one")
    up, pid = ground.ear.up(key), ground.pid(key)
    ground.backend.close()
    ground.open()
    assert ground.ear.up(key) == up
    assert ground.pid(key) == pid
    ground.backend.warn(key, now_ms() + 60_000, "drain")
    assert ground.ear.down(key).exit_code == 85
    assert ground.log(key) == "one\ntwo\n"


def test_an_end_without_a_server_is_recorded(ground: ContainerGround):
    key = ground.sh("echo one; while [ ! -e /tmp/go ]; do sleep 0.02; done; exit 4")
    ground.says(key, "one")
    go = Path(f"/proc/{ground.pid(key)}/root/tmp/go")
    ground.backend.close()
    go.touch()
    until(lambda: ground.record(key).exit() is not None)
    ground.open()
    assert ground.ear.down(key).exit_code == 4


def test_a_container_whose_supervisor_was_killed_is_ended_and_told_lost(ground: ContainerGround):
    key = ground.sh("echo ready; sleep 600")
    ground.says(key, "ready")
    pid = ground.pid(key)
    os.kill(_supervisor(ground, key), signal.SIGKILL)
    down = ground.ear.down(key)
    assert down.failure is FailureClass.NODE_LOST
    assert not is_alive(pid), "it is ended before it is told lost"


def test_a_lost_container_is_not_told_lost_while_it_may_still_run(ground: ContainerGround):
    key = ground.sh("echo ready; sleep 600")
    ground.says(key, "ready")
    pid, supervisor = ground.pid(key), _supervisor(ground, key)
    ground.backend.close()
    os.kill(supervisor, signal.SIGKILL)
    ground.podman.stop()
    try:
        ground.open()
        assert is_alive(pid)
        assert [report.phase for report in ground.ear.of(key) if isinstance(report, TaskReport)] == [Phase.UP]
    finally:
        ground.podman.start()
    assert ground.ear.down(key).failure is FailureClass.NODE_LOST
    assert not is_alive(pid)


def test_leftovers_of_this_installation_are_removed_and_those_of_others_are_not(ground: ContainerGround):
    runs = ground.sh("echo ready; sleep 600")
    ground.says(runs, "ready")
    mine = _leave(ground.podman, ground.host.label() | {"corral.name": "5%2Fmain@1.0", "corral.gang": "5/main"})
    theirs = _leave(ground.podman, {"corral.data": "somebody-else", "corral.name": "6%2Fmain@1.0"})
    nobodys = _leave(ground.podman, {})
    until(lambda: mine not in _ids(ground.podman))
    assert {theirs, nobodys} <= _ids(ground.podman)
    assert ground.names() == [runs.gang]
    for container in (theirs, nobodys):
        ground.podman.engine.call("DELETE", f"/containers/{container}?force=1")


def test_what_the_engine_could_not_remove_is_removed_later(ground: ContainerGround):
    key = ground.sh("echo ready; sleep 600")
    ground.says(key, "ready")
    ground.podman.stop()
    try:
        ground.backend.kill(key)
        down = ground.ear.down(key)
    finally:
        ground.podman.start()
    assert (down.exit_code, down.signal) == (137, 9)
    until(lambda: not ground.names())


def _leave(podman: Podman, labels: dict[str, str]) -> str:
    """A container that runs, made by nobody that a backend knows."""
    body = {"Image": IMAGE, "Entrypoint": ["sleep", "600"], "Labels": labels, "HostConfig": {"NetworkMode": "host"}}
    container: str = podman.engine.call("POST", "/containers/create", body)["Id"]
    podman.engine.call("POST", f"/containers/{container}/start")
    return container


def _ids(podman: Podman) -> set[str]:
    return {each["Id"] for each in podman.containers()}


def _supervisor(ground: ContainerGround, key: TaskKey) -> int:
    return ground.started(key).supervisor


def test_a_task_can_be_killed_while_the_engine_hangs(ground: ContainerGround):
    ground.podman.pause()
    try:
        key = ground.sh("echo ready; sleep 600")
        until(lambda: (ground.state(key) / "control").exists())
        ground.backend.kill(key)
        down = ground.ear.down(key)
    finally:
        ground.podman.resume()
    assert (down.exit_code, down.signal) == (137, 9)
