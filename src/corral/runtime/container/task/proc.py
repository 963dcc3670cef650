"""What the kernel says about a container, whatever its runtime says: its processes, its memory, its devices.

Knows /proc, cgroups and the first process of the container. Runtimes have been seen to lose both the fact that the
kernel killed for lack of memory (Podman 4.3) and requested devices (Podman 4 with device requests).
"""

from __future__ import annotations

import os
import stat

from corral.runtime.local.task.cgroups import groups_of, mounts, oom_counter
from corral.runtime.local.task.signal_audience import descendants, group_of, in_group


def memory_counter(pid: int) -> str:
    """The file that counts out-of-memory kills in the cgroup of this process. Empty: there is none."""
    places = mounts()
    try:
        groups = groups_of(pid)
    except OSError:
        return ""  # it has already ended
    if "memory" in groups and "memory" in places:
        return oom_counter(1, places["memory"] + groups["memory"])
    return oom_counter(2, places["v2"] + groups[""]) if "" in groups and "v2" in places else ""


def main_group(first: int) -> list[int]:
    """The processes that get signals to the task: the process group of its command, as for a task without a container.
    The init, which would only forward them, is not one of them. Empty: the command has not started."""
    below = descendants(first)
    return in_group(below, {next((group for pid in below if (group := group_of(pid))), 0)})


def missing_devices(first: int, nodes: dict[str, str]) -> list[str]:
    """Which of these (UUID to device node) the container does not have. Raises PermissionError if it cannot look."""
    return [uuid for uuid, node in nodes.items() if not _is_same_device(node, f"/proc/{first}/root{node}")]


def _is_same_device(outside: str, inside: str) -> bool:
    try:
        there, here = os.stat(inside), os.stat(outside)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISCHR(there.st_mode) and there.st_rdev == here.st_rdev
