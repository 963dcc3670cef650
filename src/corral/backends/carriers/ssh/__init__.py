"""Agents on machines that can be reached by SSH: a list of hosts is all there is to know."""

from __future__ import annotations

from corral.backends.carriers.hosts import HostCarrier
from corral.backends.carriers.ssh.settings import PLAIN, Host, Settings
from corral.backends.carriers.ssh.shell import SshShell, missing

__all__ = ["PLAIN", "Host", "Settings", "missing", "opened"]


def opened(settings: Settings, cluster: str) -> HostCarrier:
    return HostCarrier(settings, cluster, SshShell(settings))
