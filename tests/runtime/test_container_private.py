"""What tasks with the server's own account must not reach of the container runtime: from the first task on."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.runtime.container import container_host
from corral.runtime.container.container_host import ContainerHost
from corral.runtime.container.discovery import PODMAN, RuntimeFacts
from corral.runtime.container.settings import ContainerSettings

SOCKET, STORE = "/run/user/1/site.sock", "/home/corral/store"


def facts(socket: str) -> RuntimeFacts:
    return RuntimeFacts(
        socket=socket,
        kind=PODMAN,
        version="4.3.1",
        is_rootless=True,
        cgroup_version=2,
        has_device_requests=False,
        unenforced={},
        places=(STORE,),
    )


def test_the_first_task_does_not_reach_a_runtime_that_was_not_looked_for_yet(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(container_host, "find", facts)
    hidden = ContainerHost(ContainerSettings(socket=SOCKET)).private()
    assert {SOCKET, STORE} <= set(hidden)


def test_the_socket_of_a_runtime_that_does_not_answer_is_hidden_and_the_runtime_looked_for_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    asked: list[str] = []
    monkeypatch.setattr(container_host, "find", asked.append)
    socket = str(tmp_path / "site.sock")
    host = ContainerHost(ContainerSettings(socket=socket))
    assert socket in host.private()
    assert socket in host.private()
    assert asked == [socket]
