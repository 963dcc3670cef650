"""Agents on the nodes of a Ray cluster: one detached actor a node sees to one of them. Imports nothing of Ray."""

from __future__ import annotations

from corral.backends.carriers.hosts import HostCarrier
from corral.backends.carriers.ray.bridge import Bridge, missing
from corral.backends.carriers.ray.settings import PLAIN, Settings
from corral.backends.carriers.ray.shell import RayShell

__all__ = ["PLAIN", "Settings", "missing", "opened"]


def opened(settings: Settings, cluster: str) -> HostCarrier:
    return HostCarrier(settings, cluster, RayShell(settings, Bridge(settings, cluster)))
