"""The backend of one machine: plain processes, and containers for what has an image.

One backend for both, because a container has the same supervisor, records and logs as a plain process; the order says
which it is. Knows the two ways; used by the server for its own machine and by the agent of any other.
"""

from __future__ import annotations

from pathlib import Path

from corral.backends.container.host import ContainerHost
from corral.backends.container.settings import ContainerSettings
from corral.backends.local.backend import LocalBackend
from corral.backends.local.settings import LocalSettings
from corral.core.cluster.topology import NodeSpec


def machine_backend(
    data: Path,
    node: NodeSpec | None = None,
    settings: LocalSettings | None = None,
    containers: ContainerSettings | None = None,
) -> LocalBackend:
    """``data``: where its tasks are kept. ``node``: this machine; None: as it is found. The container engine is looked
    for when the backend is opened, and again from time to time as long as there is none."""
    settings = settings or LocalSettings()
    return LocalBackend(data, node, settings, ContainerHost(containers, settings))
