"""The sources of a container's mounts, held open from the check until they are mounted, so that swapping a path in
between does not escape from what the site allows.

Each source is opened with the rights of the account, and the kernel says where the opened file is. The container
runtime gets a path of our own to which exactly that file is bound, not the path of the user. All of this happens in the
mount namespace of the runtime. A supervisor that is not root cannot bind, and passes the resolved path: there the
account is the server's own. Knows paths, descriptors and mounts.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import marshal
import os
import stat
import sys

from corral.runtime.local.task import system
from corral.runtime.local.task.isolation import touches
from corral.runtime.local.task.start import START_FAILED, USER_ERROR, Account, Acting, StartFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = "mounts"
_SO_PEERCRED_BYTES = 12


class Sources:
    """Held until the runtime has mounted them. ``run``: a directory that only we can enter; ``engine``: its socket."""

    def __init__(self, run: str, engine: str) -> None:
        self._folder, self._engine = f"{run}/{FOLDER}", engine
        self._points: list[str] = []

    def hold(self, source: str, account: Account, allowed: list[str], kept: list[str]) -> str:
        """The path for the container runtime. Raises `StartFault` if the account cannot reach it, or the site does not
        allow it. ``allowed`` empty: whatever the account can reach, except ``kept`` if it is the server's account."""
        if os.geteuid() != 0:
            return _resolved(source, account, allowed, kept)
        point = f"{self._folder}/{os.getpid()}-{len(self._points)}"
        self._points.append(point)
        return self._in_namespace(lambda: _bound(source, account, allowed, point))

    def release(self) -> None:
        """Remove the bindings. What the runtime has mounted from them stays."""
        points, self._points = self._points, []
        if points:
            self._in_namespace(lambda: _unbind_all(points))

    def clear(self) -> None:
        """Remove what killed supervisors have left, and this one with an earlier task."""
        if os.geteuid() == 0 and os.path.isdir(self._folder):
            names = os.listdir(self._folder)
            owners = {name: name.partition("-")[0] for name in names}
            left = [
                f"{self._folder}/{name}"
                for name, pid in owners.items()
                if pid == str(os.getpid()) or not os.path.exists(f"/proc/{pid}")
            ]
            if left:
                self._in_namespace(lambda: _unbind_all(left))

    def _in_namespace(self, act: Callable[[], str]) -> str:
        """Call ``act`` in a child in the mount namespace of the runtime, which usually is our own."""
        source, sink = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _enter_namespace_of(self._engine)
                answer = ("", act())
            except StartFault as fault:
                answer = (fault.failure, fault.why)
            except BaseException as fault:
                answer = (START_FAILED, f"cannot prepare the mounts of the task: {fault}")
            os.write(sink, marshal.dumps(answer))
            os._exit(0)
        os.close(sink)
        reply = os.read(source, 65536)
        os.close(source)
        os.waitpid(pid, 0)
        failure, text = marshal.loads(reply) if reply else (START_FAILED, "cannot prepare the mounts of the task")
        if failure:
            raise StartFault(failure, text)
        return str(text)


def _opened(source: str, account: Account, allowed: list[str]) -> tuple[int, str]:
    """Open the source. Returns the descriptor and its resolved path."""
    try:
        with Acting(account):
            fd = os.open(source, os.O_PATH | os.O_CLOEXEC)
    except OSError as fault:
        why = f"{source!r} cannot be mounted for {account.name}: {(fault.strerror or str(fault)).lower()}"
        raise StartFault(USER_ERROR, why) from None
    real = os.readlink(f"/proc/self/fd/{fd}")
    places = {place.rstrip("/") for each in allowed for place in (each, os.path.realpath(each))}
    if allowed and not any(real == place or real.startswith(place + "/") for place in places):
        os.close(fd)
        raise StartFault(USER_ERROR, f"{source!r} may not be mounted: it is not below {', '.join(allowed)}")
    return fd, real


def _resolved(source: str, account: Account, allowed: list[str], kept: list[str]) -> str:
    fd, real = _opened(source, account, allowed)
    os.close(fd)
    if touches(real, kept):
        raise StartFault(USER_ERROR, f"{source!r} cannot be mounted: it contains files that Corral hides from tasks")
    return real


def _bound(source: str, account: Account, allowed: list[str], point: str) -> str:
    fd, _ = _opened(source, account, allowed)
    os.makedirs(os.path.dirname(point), mode=0o700, exist_ok=True)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.mkdir(point, 0o700)
    else:
        os.close(os.open(point, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    system.bind(f"/proc/self/fd/{fd}", point)
    return point


def _unbind_all(points: list[str]) -> str:
    """Never removes what is below: if it is still mounted, that is a user's data. All are unbound before any is
    removed: a mount around our directory holds the others below it."""
    for undo in (system.unbind, os.rmdir, os.unlink):
        for point in points:
            try:
                undo(point)
            except OSError:
                pass  # it is not bound, or it is of the other kind
    return ""


def _enter_namespace_of(engine: str) -> None:
    """Enter the mount namespace of the process that listens at this socket."""
    import socket

    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(engine)
            credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _SO_PEERCRED_BYTES)
        pid = int.from_bytes(credentials[:4], sys.byteorder)
        theirs = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # the next request will find that it is gone
    if os.fstat(theirs).st_ino != os.stat("/proc/self/ns/mnt").st_ino:
        system.enter(theirs)
