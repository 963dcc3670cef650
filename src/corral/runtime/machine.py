"""The backend of one machine: plain processes, and containers for tasks with an image.

It is one backend for both, because a container has the same supervisor, records and logs as a plain process. The order
says which it is. The server uses it for its own machine, and the agent on every other.
"""

from __future__ import annotations

from pathlib import Path

from corral.core.cluster.topology import NodeSpec
from corral.runtime.container.container_host import ContainerHost
from corral.runtime.container.settings import ContainerSettings
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings


def machine_backend(
    data: Path,
    node: NodeSpec | None = None,
    settings: LocalSettings | None = None,
    containers: ContainerSettings | None = None,
) -> LocalBackend:
    """``data``: where its tasks are kept. ``node``: this machine; None: as it is found. The container runtime is looked
    for when the backend is opened, and again from time to time while there is none."""
    settings = settings or LocalSettings()
    return LocalBackend(data, node, settings, ContainerHost(containers, settings))
