"""What a process knows about itself: its job and attempt from the environment, the commit of its code from the folder.

Reads variables and files, changes nothing. Outside Corral everything is empty, and the run is named by the user.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
import sys
from typing import Any

from .manifest import Origin

_COMMIT = re.compile(r"[0-9a-f]{40,64}")


def origin() -> Origin:
    env = os.environ
    attempt = env.get("CORRAL_ATTEMPT", "")
    return Origin(
        job=env.get("CORRAL_JOB_ID", ""),
        gang=env.get("CORRAL_GANG", ""),
        attempt=int(attempt) if attempt.isdecimal() else 0,
        user=env.get("CORRAL_USER", env.get("USER", "")),
        host=env.get("CORRAL_NODE", socket.gethostname()),
        code=commit_of_code(os.getcwd()),
    )


def run_name() -> str:
    """One run per gang; attempts of a gang continue its run."""
    env = os.environ
    job = env.get("CORRAL_JOB_ID")
    if not job:
        return "default"
    index, role = env.get("CORRAL_ARRAY_INDEX"), env.get("CORRAL_ROLE", "main")
    return f"job-{job}" + (f"-{index}" if index else "") + (f"-{role}" if role != "main" else "")


def number(name: str, otherwise: float) -> float:
    with contextlib.suppress(ValueError):
        return float(os.environ.get(name, ""))
    return otherwise


def commit_of_code(folder: str) -> str:
    """The commit of the Git repository around a folder; empty: there is none. Git itself need not be installed."""
    while not os.path.exists(os.path.join(folder, ".git")):
        above = os.path.dirname(folder)
        if above == folder:
            return ""
        folder = above
    with contextlib.suppress(OSError, ValueError):
        return _head(os.path.join(folder, ".git"))
    return ""


def _head(git: str) -> str:
    if os.path.isfile(git):  # a worktree: the file names its directory
        git = os.path.join(os.path.dirname(git), _text(git).partition("gitdir: ")[2])
    head = _text(os.path.join(git, "HEAD"))
    if not head.startswith("ref: "):
        return head if _COMMIT.fullmatch(head) else ""
    reference = head[len("ref: ") :]
    common = os.path.join(git, "commondir")
    shared = os.path.join(git, _text(common)) if os.path.exists(common) else git
    for folder in (git, shared):
        if os.path.exists(os.path.join(folder, reference)):
            found = _text(os.path.join(folder, reference))
            return found if _COMMIT.fullmatch(found) else ""
    for line in _text(os.path.join(shared, "packed-refs")).splitlines():
        if line.endswith(f" {reference}") and _COMMIT.fullmatch(line.split(" ")[0]):
            return line.split(" ")[0]
    return ""


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def training() -> Any | None:
    """The module for training scripts, as the program has imported it, or as it is found; None outside Corral."""
    for name in ("corral_training", "corral.client.training"):
        if name in sys.modules:
            return sys.modules[name]
    if "CORRAL_JOB_ID" in os.environ:
        for name in ("corral_training", "corral.client.training"):
            with contextlib.suppress(ImportError):
                return importlib.import_module(name)
    return None


def report_saved(step: int, path: str, took_s: float, stall_s: float) -> None:
    """Report a commit to Corral. An older module takes the step only."""
    module = training()
    if module is None:
        return
    try:
        module.checkpoint_saved(step, path, took_s=took_s, stall_s=stall_s)
    except TypeError:
        module.checkpoint_saved(step)
