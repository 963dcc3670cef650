"""Slurm as a provider: a pilot is a batch job on one node. Uses only Slurm's commands."""

from __future__ import annotations

import shutil

from corral.providers.slurm.provider import SlurmProvider
from corral.providers.slurm.settings import PLAIN, SlurmSettings
from corral.providers.slurm.slurm_commands import PROGRAMS, SlurmCommands

__all__ = ["PLAIN", "Settings", "SlurmProvider", "SlurmSettings", "missing", "opened"]

Settings = SlurmSettings  # the name that every provider has


def missing(_settings: SlurmSettings | None = None) -> str:
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if not absent:
        return ""
    todo = "install Slurm's commands (Debian, Ubuntu: apt-get install slurm-client), with the cluster's slurm.conf and"
    return f"{', '.join(absent)} not found; {todo} its munge key"


def opened(settings: SlurmSettings, cluster: str) -> SlurmProvider:
    return SlurmProvider(settings, cluster, SlurmCommands(settings))
