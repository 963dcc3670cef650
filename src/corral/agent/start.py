"""From a folder, a description of the machine and a line to an agent at work.

Knows which parts there are. One agent at a time has a folder.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from msgspec import structs

from corral.agent.agent import Agent
from corral.agent.line import Line
from corral.agent.place import AgentPlace
from corral.backends.container.settings import ContainerSettings
from corral.backends.health.monitor import Monitor
from corral.backends.health.watched import WatchedBackend
from corral.backends.local.settings import LocalSettings
from corral.backends.local.task.lease import LEASE
from corral.backends.machine import machine_backend
from corral.core.cluster.topology import NodeSpec
from corral.wire.health import HealthSettings


class Busy(Exception):
    """Another agent has the folder."""


def begin(
    folder: Path,
    node: NodeSpec,
    line: Line,
    health: HealthSettings | None = None,
    tasks: LocalSettings | None = None,
    containers: ContainerSettings | None = None,
) -> Agent:
    place = AgentPlace(folder)
    place.own()
    run = folder / "run"
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    _lock(run / "agent.lock")
    local = machine_backend(folder, node, structs.replace(tasks or LocalSettings(), has_lease=True), containers)
    health = health or HealthSettings()
    backend = WatchedBackend(local, Monitor(node, folder, health)) if health.is_on else local
    agent = Agent(node.name, backend, line, place.fence(), run / LEASE, place.next_session())
    agent.begin()
    return agent


def _lock(path: Path) -> None:
    """For as long as this process lives."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Busy(f"another agent runs in {path.parent.parent}") from None
