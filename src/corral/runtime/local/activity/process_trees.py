"""CPU time and memory of processes and of all that descend from them, as the kernel reports it in /proc.

Equivalent to walking the tree below every task, but reads each process of the machine once. Knows processes, not tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from msgspec import Struct

_TICK_MS = 1000 // os.sysconf("SC_CLK_TCK")
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
_STAT_BYTES_MAX = 1024


class ProcessUse(Struct, frozen=True, gc=False):
    """CPU time so far, with that of children that have ended, and memory that is resident now."""

    cpu_ms: int
    memory_kib: int


class ProcessTrees:
    """All processes of the machine at one time."""

    def __init__(self) -> None:
        self._uses: dict[int, ProcessUse] = {}
        self._children: dict[int, list[int]] = {}
        for name in os.listdir("/proc"):
            if name.isdecimal():
                self._add(int(name))

    def _add(self, pid: int) -> None:
        try:
            fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # it has ended
        try:
            fields = os.read(fd, _STAT_BYTES_MAX).rpartition(b")")[2].split()  # its name may contain anything
        except OSError:
            return
        finally:
            os.close(fd)
        if len(fields) > 21:
            own_and_children = sum(map(int, fields[11:15]))
            self._uses[pid] = ProcessUse(own_and_children * _TICK_MS, int(fields[21]) * _PAGE_KIB)
            self._children.setdefault(int(fields[1]), []).append(pid)

    def of(self, roots: Iterable[int]) -> ProcessUse | None:
        """These processes and all that descend from them. None: none of them is there."""
        found = [pid for pid in dict.fromkeys(roots) if pid in self._uses]
        if not found:
            return None
        seen = set(found)
        for pid in found:  # grows meanwhile
            for child in self._children.get(pid, ()):
                if child not in seen:
                    seen.add(child)
                    found.append(child)
        uses = [self._uses[pid] for pid in found]
        return ProcessUse(sum(use.cpu_ms for use in uses), sum(use.memory_kib for use in uses))


def machine_cpu_ms() -> int | None:
    """CPU time of the whole machine since it started, over all CPUs, without idle time."""
    try:
        with open("/proc/stat", "rb") as file:
            ticks = [int(each) for each in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    return (sum(ticks) - sum(ticks[3:5])) * _TICK_MS  # idle, and waiting for disks


def machine_memory_mib() -> int | None:
    """Memory of the whole machine that is in use, without caches."""
    found: dict[bytes, int] = {}
    try:
        with open("/proc/meminfo", "rb") as file:
            for line in file:
                name, _, rest = line.partition(b":")
                if name in (b"MemTotal", b"MemAvailable"):
                    found[name] = int(rest.split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return (found[b"MemTotal"] - found[b"MemAvailable"]) // 1024 if len(found) == 2 else None
