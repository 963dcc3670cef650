"""The Python environment that a job is to use: the one that is active here, or one that is named.

Knows how virtual environments and conda environments look on disk. The directory must exist where the job is submitted;
that the nodes have it under the same path is up to the site (a shared file system).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from corral.wire.environment.export import ACTIVE, active_environment

_HOW = "activate one first (source venv/bin/activate, conda activate NAME), or name its directory: --venv DIR"


class NoPython(ValueError):
    """There is no such environment. ``hint``: what to do."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.hint = _HOW


def python_environment(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The variable that names it: VIRTUAL_ENV, or CONDA_PREFIX. ``name``: its directory, or ``active``."""
    folder = active_environment(environ) if name == ACTIVE else os.path.abspath(os.path.expanduser(name))
    if not folder:
        raise NoPython("no virtual environment or conda environment is active here")
    if not os.path.exists(f"{folder}/bin/python"):
        raise NoPython(f"{folder} is not a Python environment: there is no bin/python in it")
    return {"CONDA_PREFIX" if os.path.isdir(f"{folder}/conda-meta") else "VIRTUAL_ENV": folder}


def python_note(document: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Which Python a job will have; empty if no environment is active and none was named."""
    env = document.get("env")
    carried = env if isinstance(env, dict) else {}
    folder = active_environment(carried) or active_environment(environ)
    if not folder:
        return ""
    if "image" in document:
        return f"python is that of the image, not of the active environment {folder}"
    path = carried.get("PATH")
    if not isinstance(path, str):
        return f"python is that of the node, not of the active environment {folder}: --venv uses it"
    import shutil  # not for every command of a client

    python = shutil.which("python", path=path) or shutil.which("python3", path=path)
    if python is None:
        return f"PATH of the job has no python; the active environment is {folder}: --venv uses it"
    if os.path.dirname(python) == f"{folder}/bin":
        return f"python is {python}, as here (--export NONE: that of the node)"
    return f"python is {python}, not that of the active environment {folder}: --venv uses it"
