"""Unix sockets at paths of any length, and descriptors sent through them.

The kernel limits the path of a socket to 107 bytes, so the directory is opened and named through /proc.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import array
import os
import socket
import struct

_LISTEN = 64
_UCRED = struct.Struct("3i")
_FDS = 4


def listen(path: str, mode: int) -> socket.socket:
    """A listening socket that replaces what is at the path."""
    place = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    name = f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    try:
        try:
            os.unlink(name)
        except FileNotFoundError:
            pass
        umask = os.umask(0o777 & ~mode)
        try:
            place.bind(name)
        finally:
            os.umask(umask)
        place.listen(_LISTEN)
        place.setblocking(False)
    except OSError:
        place.close()
        raise
    finally:
        os.close(folder)
    return place


def connect(path: str, timeout_s: float | None = None) -> socket.socket:
    there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    there.settimeout(timeout_s)
    folder = -1
    try:
        folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        there.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    except OSError:
        there.close()
        raise
    finally:
        if folder >= 0:
            os.close(folder)
    return there


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end when it connected."""
    return int(_UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1])


def send_descriptor(connection: socket.socket, body: bytes, fd: int) -> None:
    connection.sendmsg([body], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])


def receive_descriptor(connection: socket.socket) -> tuple[bytes, int]:
    """Bytes, and a descriptor that came with them; -1: none."""
    room = socket.CMSG_SPACE(array.array("i").itemsize * _FDS)
    body, ancillary, _, _ = connection.recvmsg(1 << 16, room)
    found = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    for extra in found[1:]:
        os.close(extra)
    return body, found[0] if found else -1
