"""Limits of tasks by cgroups: version 1, version 2, or both mounted side by side.

`detect` finds out what this server may do on this machine, and creates a parent group; `TaskGroups` are the groups of
one task, used by its supervisor. Knows the kernel's files: Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst of the
Linux sources.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os
import time

LIMITS = ("memory", "cpu", "pids")
#: Which devices may be opened: a controller in version 1, none in version 2.
DEVICES = "devices"
#: Limits that a supervisor can share with its task.
SHARED_LIMITS = ("pids", "cpu")
_PERIOD_US = 100_000
_ONE_CPU = 1000
_LEAF = "corral-server"


class Layout:
    """Where the groups of tasks are created: one directory per controller (version 1), or one for all (version 2).

    ``unenforced``: what cannot be limited here, with the reason. ``devices``: where groups are created that restrict
    devices, in version 1; ``no_devices``: why there is no such directory.
    """

    def __init__(self) -> None:
        self.version = 0
        self.parents: dict[str, str] = {}
        self.unenforced: dict[str, str] = {}
        self.devices = self.no_devices = ""

    def folders(self) -> list[str]:
        return sorted({*self.parents.values(), *((self.devices,) if self.devices else ())})

    def shared(self) -> dict[str, str]:
        """Where the groups are created that a supervisor shares with its task."""
        found = {limit: self.parents[limit] for limit in SHARED_LIMITS if limit in self.parents}
        return found | ({DEVICES: self.devices} if self.devices else {})


def detect(name: str) -> Layout:
    """``name``: of the directory for our groups, inside the group of this server."""
    layout = Layout()
    places, own = mounts(), groups_of("self")
    if any(limit in places for limit in LIMITS):
        layout.version = 1
        for limit in LIMITS:
            _use_version_1(layout, limit, places.get(limit, ""), own.get(limit, "/"), name)
        _use_version_1(layout, DEVICES, places.get(DEVICES, ""), own.get(DEVICES, "/"), name)
        layout.devices, layout.no_devices = layout.parents.pop(DEVICES, ""), layout.unenforced.pop(DEVICES, "")
    elif "v2" in places:
        layout.version = 2
        _use_version_2(layout, places["v2"], own.get("", "/"), name)
    else:
        layout.unenforced = dict.fromkeys(LIMITS, "no cgroups are mounted on this machine")
    return layout


def seen() -> Layout:
    """What `detect` would probably find. Changes nothing."""
    layout, places = Layout(), mounts()
    layout.version = 1 if any(limit in places for limit in LIMITS) else 2 if "v2" in places else 0
    for limit in (*LIMITS, DEVICES):
        place = places.get(limit if layout.version == 1 else "v2", "")
        if place and os.access(place, os.W_OK):
            layout.parents[limit] = place
        else:
            layout.unenforced[limit] = f"no permission to create cgroups in {place}" if place else "it is not mounted"
    layout.devices, layout.no_devices = layout.parents.pop(DEVICES, ""), layout.unenforced.pop(DEVICES, "")
    return layout


def mounts() -> dict[str, str]:
    """Controller to mount point; ``v2`` for the unified hierarchy."""
    found: dict[str, str] = {}
    with open("/proc/self/mounts") as lines:
        for line in lines:
            _, place, kind, options = line.split(" ")[:4]
            if kind == "cgroup2":
                found.setdefault("v2", place)
            elif kind == "cgroup":
                for option in options.split(","):
                    if option in (*LIMITS, DEVICES):
                        found.setdefault(option, place)
    return found


def groups_of(process: int | str) -> dict[str, str]:
    """The paths of its groups, by controller; that of version 2 has an empty name."""
    found = {}
    with open(f"/proc/{process}/cgroup") as groups:
        for line in groups:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            for controller in controllers.split(","):
                found[controller] = path
    return found


def _use_version_1(layout: Layout, limit: str, mount: str, own: str, name: str) -> None:
    if not mount:
        layout.unenforced[limit] = f"the {limit} controller is not mounted"
        return
    place = mount + own if os.path.isdir(mount + own) else mount
    folder = f"{place.rstrip('/')}/{name}"
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as fault:
        layout.unenforced[limit] = _not_ours(folder, fault)
    else:
        layout.parents[limit] = folder


def _use_version_2(layout: Layout, mount: str, own: str, name: str) -> None:
    """A group with processes cannot limit its child groups, except the root. So use the group of this server, if the
    server is alone in it and can move into a leaf (systemd's Delegate=yes), else the root."""
    own_folder = (mount + own).rstrip("/").removesuffix(f"/{_LEAF}")
    fault: OSError | None = None
    for folder in dict.fromkeys((own_folder, mount.rstrip("/"))):
        try:
            if folder != mount.rstrip("/") and not own.endswith(f"/{_LEAF}"):
                _step_aside(folder)
            offered = _offered(folder)
            _enable(folder, offered)
            os.makedirs(f"{folder}/{name}", exist_ok=True)
            _enable(f"{folder}/{name}", offered)
        except OSError as this:
            fault = fault or this
            continue
        for limit in LIMITS:
            if limit in offered:
                layout.parents[limit] = f"{folder}/{name}"
            else:
                layout.unenforced[limit] = f"the {limit} controller is not offered in {folder}"
        return
    reason = _not_ours(own_folder, fault) if fault else "no cgroup to use"
    layout.unenforced = dict.fromkeys(LIMITS, reason)


def _step_aside(folder: str) -> None:
    with open(f"{folder}/cgroup.procs") as members:
        if {int(pid) for pid in members} != {os.getpid()}:
            raise PermissionError(1, "it contains other processes", folder)
    leaf = f"{folder}/{_LEAF}"
    os.makedirs(leaf, exist_ok=True)
    write(f"{leaf}/cgroup.procs", "0")


def _offered(folder: str) -> set[str]:
    with open(f"{folder}/cgroup.controllers") as controllers:
        return set(controllers.read().split()) & set(LIMITS)


def _enable(folder: str, limits: set[str]) -> None:
    for limit in sorted(limits):
        write(f"{folder}/cgroup.subtree_control", f"+{limit}")


def _not_ours(folder: str, fault: OSError) -> str:
    return (
        f"no permission to create cgroups in {folder} ({fault.strerror}): run the server as root, or delegate a cgroup "
        "to it"
    )


class TaskGroups:
    """The groups of one task: created, entered by its processes, emptied, removed.

    ``is_shared``: the supervisor is in the group too, and it stays when the task has ended.
    """

    def __init__(self, version: int, folders: dict[str, str], is_shared: bool = False) -> None:
        self.version = version
        self._is_shared = is_shared
        self.folders = folders  # by limit; the same folder for all in version 2
        self.unique = sorted(set(folders.values()))

    def make(self, memory_mib: int | None, cpu_milli: int | None, has_quota: bool, pids_max: int) -> None:
        if self._is_shared:
            cpu_milli = cpu_milli or _ONE_CPU  # the task before may have had another weight
        else:
            for folder in self.unique:
                os.makedirs(folder, exist_ok=True)
        if memory_mib is not None and "memory" in self.folders:
            self._limit_memory(self.folders["memory"], memory_mib << 20)
        if cpu_milli is not None and "cpu" in self.folders:
            self._limit_cpu(self.folders["cpu"], cpu_milli, has_quota)
        if "pids" in self.folders:
            write(f"{self.folders['pids']}/pids.max", str(pids_max))

    def _limit_memory(self, folder: str, limit: int) -> None:
        if self.version == 1:
            write(f"{folder}/memory.limit_in_bytes", str(limit))
            _write_softly(f"{folder}/memory.memsw.limit_in_bytes", str(limit))
        else:
            write(f"{folder}/memory.max", str(limit))
            _write_softly(f"{folder}/memory.swap.max", "0")
            _write_softly(f"{folder}/memory.oom.group", "1")

    def _limit_cpu(self, folder: str, cpu_milli: int, has_quota: bool) -> None:
        """Shares apply when CPUs are scarce; a quota applies also when they are idle."""
        quota_us = max(cpu_milli * _PERIOD_US // 1000, 1000)
        if self.version == 1:
            write(f"{folder}/cpu.shares", str(max(cpu_milli * 1024 // 1000, 2)))
            if has_quota:
                write(f"{folder}/cpu.cfs_quota_us", str(quota_us))
        else:
            write(f"{folder}/cpu.weight", str(min(max(cpu_milli // 10, 1), 10_000)))
            if has_quota:
                write(f"{folder}/cpu.max", f"{quota_us} {_PERIOD_US}")

    def enter(self) -> None:
        """Move the calling process, and what it will start, into the groups."""
        if self._is_shared:
            return  # inherited
        for folder in self.unique:
            write(f"{folder}/cgroup.procs", "0")

    def members(self) -> set[int]:
        found: set[int] = set()
        for folder in self.unique:
            try:
                with open(f"{folder}/cgroup.procs") as members:
                    found.update(map(int, members.read().split()))
            except OSError:
                pass  # removed
        if self._is_shared:
            found.discard(os.getpid())
        return found

    def kill(self) -> None:
        for folder in self.unique:
            if self.version == 2 and not self._is_shared:
                _write_softly(f"{folder}/cgroup.kill", "1")
        for pid in self.members():
            try:
                os.kill(pid, 9)
            except ProcessLookupError:
                pass

    def oom_kills(self) -> int:
        return oom_kills(oom_counter(self.version, self.folders["memory"])) if "memory" in self.folders else 0

    def remove(self) -> None:
        """The kernel may need some time after the last process has ended; the server removes what is left."""
        for folder in () if self._is_shared else self.unique:
            for pause_s in (0.001, 0.005, 0.02, 0):
                try:
                    os.rmdir(folder)
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(pause_s)
                else:
                    break


def oom_counter(version: int, folder: str) -> str:
    """The file of a group that counts what the kernel killed there for lack of memory."""
    return f"{folder}/memory.oom_control" if version == 1 else f"{folder}/memory.events"


def oom_kills(counter: str) -> int:
    """How many processes the kernel killed because the task exceeded its memory limit. 0 if there is no such file."""
    try:
        with open(counter) as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
    except OSError:
        return 0


def memory_used(version: int, folder: str) -> int | None:
    """Memory in use by a group, in MiB, without file caches that the kernel can drop. None: unknown."""
    try:
        with open(f"{folder}/{'memory.usage_in_bytes' if version == 1 else 'memory.current'}") as file:
            used = int(file.read())
        cache = "total_inactive_file " if version == 1 else "inactive_file "
        with open(f"{folder}/memory.stat") as lines:
            droppable = next((int(line.split()[1]) for line in lines if line.startswith(cache)), 0)
    except (OSError, ValueError):
        return None
    return max(used - droppable, 0) >> 20


def write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _write_softly(path: str, text: str) -> None:
    try:
        write(path, text)
    except OSError:
        pass  # this kernel has no such file
