"""What a task cannot see although it runs as the server's own account: by a user and a mount namespace of its own.

Where Corral is not root, all tasks are of one account, and would find the server's data and credential, the lease, and
the environments and private directories of other tasks. In namespaces of its own a task sees empty folders in their
place, and the kernel shows it nothing of processes outside. Needs no rights; kernels may forbid it. Signals to
others are forbidden where the kernel has Landlock for that. Knows the kernel's interface; nothing of tasks.
"""

from __future__ import annotations

import os
import stat

from corral.backends.local.task import system

_CGROUPS = "/sys/fs/cgroup"


class Room:
    """Namespaces for all processes of one task, so that these can still work together. Made by a child that leaves."""

    def __init__(self, hidden: list[str], scratch: str) -> None:
        """``hidden``: folders and files that are empty in there. ``scratch``: a folder that stays although all beside
        it is gone; empty: there is none. Raises OSError where the kernel does not allow it."""
        ready, told = os.pipe()
        done, leave = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(leave)
            os.write(told, _furnish(hidden, scratch))
            os.read(done, 1)
            os._exit(0)
        os.close(told)
        os.close(done)
        try:
            said = os.read(ready, 1000)
            if said != _READY:
                raise OSError(said.decode("utf-8", "replace") or "the child that makes namespaces has died")
            paths = (f"/proc/{pid}/ns/user", f"/proc/{pid}/ns/mnt")
            self.namespaces = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
        finally:
            os.close(ready)
            os.close(leave)
            os.waitpid(pid, 0)

    def enter(self) -> None:
        """For good; by a process that is about to become a program."""
        for namespace in self.namespaces:
            system.enter(namespace)
        system.scope_signals()

    def close(self) -> None:
        for namespace in self.namespaces:
            os.close(namespace)


def works() -> str:
    """Why it cannot be done here; empty: it can."""
    try:
        Room(["/tmp"], "").close()
    except OSError as fault:
        return f"this kernel lets nobody make user namespaces ({fault.strerror or fault})"
    return ""


_READY = b"ready"


def _furnish(hidden: list[str], scratch: str) -> bytes:
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
            _cover(path)
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


def _cover(path: str) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # there is nothing to see
    if stat.S_ISDIR(mode):
        system.mount_empty(path, 0o500)
    else:
        system.bind("/dev/null", path)


def _freeze(path: str) -> None:
    """Groups may be the server's account's to change, and a task that leaves its own has no limits."""
    try:
        if os.access(path, os.W_OK) or any(os.access(entry.path, os.W_OK) for entry in os.scandir(path)):
            system.bind(path, path)
            system.make_read_only(path)
    except OSError:
        pass  # it is not there, or already read-only
