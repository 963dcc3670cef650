"""Hides files and processes from a task that runs as the server's own account, by a user and a mount namespace.

If Corral is not root, all tasks run as one account and could read the server's data and credential, the lease, and the
environments and private directories of other tasks. In its own namespaces a task sees empty directories instead, and
no processes outside. This needs no privileges, but a kernel may forbid it. Signals to other processes are forbidden if
the kernel has Landlock for that. Knows the kernel's interface, not tasks.
"""

from __future__ import annotations

import os
import stat

from corral.runtime.local.task import system

_CGROUPS = "/sys/fs/cgroup"


class Namespaces:
    """Namespaces for all processes of one task, so that these can work together. Created by a short-lived child."""

    def __init__(self, hidden: list[str], scratch: str) -> None:
        """``hidden``: directories and files that are empty in the namespaces. ``scratch``: a directory that stays
        visible, while its siblings are hidden; empty: none. Raises OSError if the kernel does not allow it."""
        ready, report = os.pipe()
        done, leave = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(leave)
            os.write(report, _set_up(hidden, scratch))
            os.read(done, 1)
            os._exit(0)
        os.close(report)
        os.close(done)
        try:
            answer = os.read(ready, 1000)
            if answer != _READY:
                raise OSError(answer.decode("utf-8", "replace") or "the child that creates the namespaces has died")
            paths = (f"/proc/{pid}/ns/user", f"/proc/{pid}/ns/mnt")
            self.namespaces = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
        finally:
            os.close(ready)
            os.close(leave)
            os.waitpid(pid, 0)

    def enter(self) -> None:
        """Enter for good. Called by a process that is about to exec."""
        for namespace in self.namespaces:
            system.enter(namespace)
        system.scope_signals()

    def close(self) -> None:
        for namespace in self.namespaces:
            os.close(namespace)


def works() -> str:
    """Why this is not possible on this machine. Empty: it is."""
    try:
        Namespaces(["/tmp"], "").close()
    except OSError as fault:
        return f"this kernel does not allow user namespaces ({fault.strerror or fault})"
    return ""


_READY = b"ready"


def _set_up(hidden: list[str], scratch: str) -> bytes:
    try:
        uid, gid = os.geteuid(), os.getegid()
        system.unshare_user_and_mounts()
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            fd = os.open(f"/proc/self/{name}", os.O_WRONLY)
            os.write(fd, text.encode())
            os.close(fd)
        system.make_private()
        if scratch:
            _keep_alone(scratch)
        for path in hidden:
            _hide(path)
        _freeze(_CGROUPS)
    except BaseException as fault:
        return f"{fault}"[:500].encode() or b"?"
    return _READY


def _keep_alone(scratch: str) -> None:
    held = os.open(scratch, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    system.mount_empty(os.path.dirname(scratch), 0o711)
    os.mkdir(scratch, 0o700)
    system.bind(f"/proc/self/fd/{held}", scratch)
    os.close(held)


def _hide(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # there is nothing to see
    if stat.S_ISDIR(mode):
        system.mount_empty(path, 0o500)
    else:
        system.bind("/dev/null", path)


def _freeze(path: str) -> None:
    """The server's account may be able to change cgroups, and a task that leaves its own has no limits."""
    try:
        if os.access(path, os.W_OK) or any(os.access(entry.path, os.W_OK) for entry in os.scandir(path)):
            system.bind(path, path)
            system.make_read_only(path)
    except OSError:
        pass  # it is not there, or already read-only


def touches(real: str, places: list[str]) -> bool:
    """Whether a path without links is one of these, below one or above one."""
    for place in {each for path in places for each in (os.path.normpath(path), os.path.realpath(path))}:
        if f"{place}/".startswith(f"{real.rstrip('/')}/") or real.startswith(f"{place.rstrip('/')}/"):
            return True
    return False
