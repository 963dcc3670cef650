"""What the kernel says about a container, whatever its runtime says: its processes, its memory, its devices.

Knows /proc, cgroups and the first process of the container. Runtimes have been seen to lose both the fact that the
kernel killed for lack of memory (Podman 4.3) and requested devices (Podman 4 with device requests).
"""

from __future__ import annotations

import os
import stat

from corral.runtime.local.task.cgroups import mounts
from corral.runtime.local.task.kill_tree import descendants


def memory_counter(pid: int) -> str:
    """The file that counts out-of-memory kills in the cgroup of this process. Empty: there is none."""
    places = mounts()
    found = ""
    try:
        with open(f"/proc/{pid}/cgroup") as groups:
            for line in groups:
                _, controllers, path = line.rstrip("\n").split(":", 2)
                if "memory" in controllers.split(",") and "memory" in places:
                    return f"{places['memory']}{path}/memory.oom_control"
                if not controllers and "v2" in places:
                    found = f"{places['v2']}{path}/memory.events"
    except OSError:
        return ""  # it has already ended
    return found


def oom_kills(counter: str) -> int:
    try:
        with open(counter) as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def main_group(first: int) -> list[int]:
    """The processes that get signals to the task: the process group of its command, as for a task without a container.
    The init, which would only forward them, is not one of them. Empty: the command has not started."""
    below = descendants(first)
    leader = next((group for pid in below if (group := _group_of(pid))), 0)
    return [pid for pid in below if _group_of(pid) == leader]


def missing_devices(first: int, nodes: dict[str, str]) -> list[str]:
    """Which of these (UUID to device node) the container does not have. Raises PermissionError if it cannot look."""
    return [uuid for uuid, node in nodes.items() if not _is_same_device(node, f"/proc/{first}/root{node}")]


def _is_same_device(outside: str, inside: str) -> bool:
    try:
        there, here = os.stat(inside), os.stat(outside)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISCHR(there.st_mode) and there.st_rdev == here.st_rdev


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
