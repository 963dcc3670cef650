"""Agents on the nodes of a Ray cluster: each has a detached actor on its node. Imports nothing of Ray."""

from __future__ import annotations

from corral.providers.hosts import HostProvider
from corral.providers.ray.bridge import Bridge, missing
from corral.providers.ray.remote_exec import RayExec
from corral.providers.ray.settings import PLAIN, RaySettings

__all__ = ["PLAIN", "RaySettings", "Settings", "missing", "opened"]

Settings = RaySettings  # the name that every provider has


def opened(settings: RaySettings, cluster: str) -> HostProvider:
    return HostProvider(settings, cluster, RayExec(settings, Bridge(settings, cluster)))
