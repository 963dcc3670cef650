"""What a container mounts, held from the look until it is mounted, so that a path which is swapped meanwhile is no way
out of what the site allows.

Each source is opened with the rights of the account; the kernel says where the opened thing is; and the engine is named
a place of our own to which exactly that is bound, not the path. All of it where the engine sees it: in its mount
namespace. Where the supervisor is not root it cannot bind, and names the path without its links: there the account is
the server's own. Knows paths, descriptors and mounts.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import marshal
import os
import stat
import sys

from corral.backends.local.task import system
from corral.backends.local.task.start import START_FAILED, USER_ERROR, Account, Acting, StartFault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

FOLDER = "mounts"
_SO_PEERCRED_BYTES = 12


class Sources:
    """Held until the engine has mounted them. ``run``: a folder that only we can enter; ``engine``: its socket."""

    def __init__(self, run: str, engine: str) -> None:
        self._folder, self._engine = f"{run}/{FOLDER}", engine
        self._points: list[str] = []

    def hold(self, source: str, account: Account, allowed: list[str]) -> str:
        """The place for the engine. Raises `StartFault` where the account cannot reach it, or the site does not allow
        it. ``allowed`` empty: whatever the account may reach."""
        if os.geteuid() != 0:
            return _looked_at(source, account, allowed)[1]
        point = f"{self._folder}/{os.getpid()}-{len(self._points)}"
        self._points.append(point)
        return self._there(lambda: _bound(source, account, allowed, point))

    def release(self) -> None:
        """What the engine has mounted from there stays."""
        points, self._points = self._points, []
        if points:
            self._there(lambda: _let_go(points))

    def clear(self) -> None:
        """What supervisors have left that were killed in between."""
        if os.geteuid() == 0 and os.path.isdir(self._folder):
            names = os.listdir(self._folder)
            left = [f"{self._folder}/{name}" for name in names if not os.path.exists(f"/proc/{name.partition('-')[0]}")]
            if left:
                self._there(lambda: _let_go(left))

    def _there(self, act: Callable[[], str]) -> str:
        """Done by a child in the engine's mount namespace, which mostly is our own."""
        source, sink = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                _enter_namespace_of(self._engine)
                answer = ("", act())
            except StartFault as fault:
                answer = (fault.failure, fault.why)
            except BaseException as fault:
                answer = (START_FAILED, f"what the task mounts could not be prepared: {fault}")
            os.write(sink, marshal.dumps(answer))
            os._exit(0)
        os.close(sink)
        said = os.read(source, 65536)
        os.close(source)
        os.waitpid(pid, 0)
        failure, text = marshal.loads(said) if said else (START_FAILED, "what the task mounts could not be prepared")
        if failure:
            raise StartFault(failure, text)
        return str(text)


def _looked_at(source: str, account: Account, allowed: list[str]) -> tuple[int, str]:
    """Opened, and where that is; no link is left in it."""
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
        raise StartFault(USER_ERROR, f"{source!r} is outside of what may be mounted here ({', '.join(allowed)})")
    return fd, real


def _bound(source: str, account: Account, allowed: list[str], point: str) -> str:
    fd, _ = _looked_at(source, account, allowed)
    os.makedirs(os.path.dirname(point), mode=0o700, exist_ok=True)
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        os.mkdir(point, 0o700)
    else:
        os.close(os.open(point, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    system.bind(f"/proc/self/fd/{fd}", point)
    return point


def _let_go(points: list[str]) -> str:
    """Never what is below one: should it still be mounted, that is somebody's data."""
    for point in points:
        for undo in (system.unbind, os.rmdir, os.unlink):
            try:
                undo(point)
            except OSError:
                pass  # it is not bound, or it is of the other kind
    return ""


def _enter_namespace_of(engine: str) -> None:
    """Of whoever listens at this socket."""
    import socket

    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(engine)
            credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _SO_PEERCRED_BYTES)
        pid = int.from_bytes(credentials[:4], sys.byteorder)
        theirs = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # whoever asks it next will find it gone
    if os.fstat(theirs).st_ino != os.stat("/proc/self/ns/mnt").st_ino:
        system.enter(theirs)
