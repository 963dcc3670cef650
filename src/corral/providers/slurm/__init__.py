"""Slurm as a provider: a pilot is a batch job on one node. Uses only Slurm's commands."""

from __future__ import annotations

import shutil
import subprocess

from corral.providers.slurm.provider import SlurmProvider
from corral.providers.slurm.settings import PLAIN, SlurmSettings
from corral.providers.slurm.slurm_commands import PROGRAMS, SlurmCommands

__all__ = ["PLAIN", "Settings", "SlurmProvider", "SlurmSettings", "controller_fault", "missing", "opened"]

_ANSWER_S = 10.0
Settings = SlurmSettings  # the name that every provider has


def missing(_settings: SlurmSettings | None = None) -> str:
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if not absent:
        return ""
    todo = "install Slurm's commands (Debian, Ubuntu: apt-get install slurm-client), with the cluster's slurm.conf and"
    return f"{', '.join(absent)} not found; {todo} its munge key"


def controller_fault() -> str:
    """Why the Slurm controller does not answer this machine; empty if it does. Takes up to some seconds."""
    try:
        done = subprocess.run(["squeue", "--noheader", "--me"], capture_output=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"squeue does not answer ({type(error).__name__})"
    if done.returncode == 0:
        return ""
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
    return f"the Slurm controller refuses: {lines[-1][:200]}"


def opened(settings: SlurmSettings, cluster: str) -> SlurmProvider:
    return SlurmProvider(settings, cluster, SlurmCommands(settings))
