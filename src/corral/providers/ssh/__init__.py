"""Agents on machines that can be reached by SSH, given a list of hosts."""

from __future__ import annotations

from corral.providers.hosts import HostProvider
from corral.providers.ssh.remote_exec import SshExec, missing
from corral.providers.ssh.settings import PLAIN, SshHost, SshSettings

__all__ = ["PLAIN", "Settings", "SshHost", "SshSettings", "missing", "opened"]

Settings = SshSettings  # the name that every provider has


def opened(settings: SshSettings, cluster: str) -> HostProvider:
    return HostProvider(settings, cluster, SshExec(settings))
