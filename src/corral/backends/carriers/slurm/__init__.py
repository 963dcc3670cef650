"""Slurm as a carrier: a pilot is a batch job on one node. Speaks to Slurm by its commands; needs nothing else of it."""

from __future__ import annotations

import shutil

from corral.backends.carriers.slurm.carrier import SlurmCarrier
from corral.backends.carriers.slurm.commands import PROGRAMS, SlurmCommands
from corral.backends.carriers.slurm.settings import PLAIN, Settings

__all__ = ["PLAIN", "Settings", "SlurmCarrier", "missing", "opened"]


def missing(_settings: Settings | None = None) -> str:
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if not absent:
        return ""
    todo = "install Slurm's commands (Debian, Ubuntu: apt-get install slurm-client), with the cluster's slurm.conf and"
    return f"{', '.join(absent)} not found; {todo} its munge key"


def opened(settings: Settings, cluster: str) -> SlurmCarrier:
    return SlurmCarrier(settings, cluster, SlurmCommands(settings))
