"""Starts an agent, given its directory, the description of its machine and a connection to the server.

Knows which parts an agent has. Only one agent at a time can use a directory.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from msgspec import structs

from corral.agent.agent import Agent
from corral.agent.agent_dir import AgentDir
from corral.agent.server_connection import ServerConnection
from corral.core.cluster.topology import NodeSpec
from corral.health.monitor import Monitor
from corral.health.watched import WatchedBackend
from corral.runtime.container.settings import ContainerSettings
from corral.runtime.local.settings import LocalSettings
from corral.runtime.local.task.lease import LEASE
from corral.runtime.machine import machine_backend
from corral.wire.health import HealthSettings


class Busy(Exception):
    """Another agent uses the directory."""


def begin(
    folder: Path,
    node: NodeSpec,
    server: ServerConnection,
    health: HealthSettings | None = None,
    tasks: LocalSettings | None = None,
    containers: ContainerSettings | None = None,
) -> Agent:
    place = AgentDir(folder)
    place.own()
    run = folder / "run"
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    _lock(run / "agent.lock")
    local = machine_backend(folder, node, structs.replace(tasks or LocalSettings(), has_lease=True), containers)
    health = health or HealthSettings()
    backend = WatchedBackend(local, Monitor(node, folder, health)) if health.is_on else local
    agent = Agent(node.name, backend, server, place.fence(), run / LEASE, place.next_session())
    agent.begin()
    return agent


def _lock(path: Path) -> None:
    """Lock the directory for the lifetime of this process."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise Busy(f"another agent is running in {path.parent.parent}") from None
