"""Agents on machines that can be reached by SSH: a list of hosts is all there is to know."""

from __future__ import annotations

from corral.backends.carriers.ssh.carrier import SshCarrier
from corral.backends.carriers.ssh.settings import Host, Settings
from corral.backends.carriers.ssh.shell import missing, opened_shell

__all__ = ["Host", "Settings", "missing", "opened"]


def opened(settings: Settings, cluster: str) -> SshCarrier:
    return SshCarrier(settings, cluster, opened_shell(settings))
