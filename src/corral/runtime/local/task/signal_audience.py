"""Which processes of a task get a signal at once: those that handle it, and none that would just die of it.

A program that does not handle the signal can still read the warning file, so it does not get the signal yet. The
helpers of a program (a forked data loader) belong to it and get nothing. A shell with a handler runs it only after its
child has ended, so the child gets the signal too. A shell without one would continue its script once its program has
ended, so it is signalled as well. What starts after the warning is part of the saving. Knows /proc.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os

from corral.runtime.local.task.kill_tree import kill

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

LISTENS = "listens"
DIES = "dies"
STAYS = "stays"
_SHELLS = frozenset(("sh", "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "mksh", "rbash", "tcsh", "zsh"))
_HELPER = b"--multiprocessing-fork"  # how Python marks a helper that is spawned instead of forked
_LAUNCHER = b"CORRAL_FAILED_FILE"  # in the script of the shells that start several processes in a container


_LATE_S_MIN, _LATE_S_MAX = 2.0, 10.0


def late_s(grace_s: float) -> float:
    """How long before the deadline processes without a handler get SIGTERM: a tenth of the grace time."""
    return min(max(grace_s / 10, _LATE_S_MIN), _LATE_S_MAX, grace_s / 2)


def in_group(pids: list[int], leader: int, more: Container[int]) -> list[int]:
    """Those in the process group of the leader, and ``more``, which may not have joined it yet."""
    return [pid for pid in pids if pid in more or _group_of(pid) == leader]


class SignalCall:
    """Signals to a task of plain processes. Each process gets each signal once."""

    def __init__(self) -> None:
        self._audiences: dict[int, Audience] = {}  # by signal

    def to_listeners(self, members: list[int], number: int) -> None:
        receivers, shells = self._audience(members, number).listeners()
        for pid in (*shells, *receivers) if receivers else ():
            _send(pid, number)

    def to_rest(self, members: list[int], number: int) -> None:
        for pid in self._audience(members, number).rest(members):
            _send(pid, number)

    def _audience(self, members: list[int], number: int) -> Audience:
        return self._audiences.setdefault(number, Audience(members, number))


def _send(pid: int, number: int) -> None:
    try:
        kill(pid, number)
    except PermissionError:
        pass  # it runs as another user now


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


class Audience:
    """The processes that existed when a signal was first sent, and which of them have got it."""

    def __init__(self, members: list[int], number: int) -> None:
        self._number = number
        self._members = {pid: started(pid) for pid in members}
        self._sent: set[int] = set()

    def listeners(self) -> tuple[list[int], list[int]]:
        """The processes to signal now, and the shells above them that would die of it. Call it repeatedly: a program
        may install a handler at any time."""
        there = [pid for pid, since in self._members.items() if since and started(pid) == since]
        found = _Receivers(there, self._number, self._sent)
        shells = [pid for pid in found.shells if pid not in self._sent]
        return self._note(found.receivers), shells

    def rest(self, members: list[int]) -> list[int]:
        """All others."""
        return self._note(members)

    def _note(self, pids: list[int]) -> list[int]:
        found = [pid for pid in dict.fromkeys(pids) if pid not in self._sent]
        self._sent.update(found)
        return found


class _Receivers:
    """One look at some processes. ``sent``: those that have already got the signal."""

    def __init__(self, members: list[int], number: int, sent: set[int]) -> None:
        self.receivers: list[int] = []
        self.shells: list[int] = []
        self._number, self._sent = number, sent
        parents = {pid: _parent(pid) for pid in members}
        self._below: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            self._below.setdefault(parent, []).append(pid)
        for pid, parent in parents.items():
            if parent not in parents:
                self._has_receiver(pid, b"")

    def _has_receiver(self, pid: int, above: bytes) -> bool:
        """Whether this process or one below it handles the signal. ``above``: the command line of its parent."""
        own, is_shell = _command(pid), _is_shell(pid)
        if above and (own == above or _HELPER in own):
            return False
        below = self._below.get(pid, [])
        if is_shell and _LAUNCHER in own:
            return self._have_receivers(below, b"")
        fate = fate_of(pid, self._number)
        if pid in self._sent or fate == LISTENS:
            self.receivers.append(pid)
            if is_shell and pid not in self._sent:
                self._run_by_listening_shell(below)
            return True
        has_receiver = self._have_receivers(below, b"" if is_shell else own)
        if is_shell and fate == DIES and has_receiver:
            self.shells.append(pid)
        return has_receiver

    def _have_receivers(self, pids: list[int], above: bytes) -> bool:
        heard = [pid for pid in pids if self._has_receiver(pid, above)]
        return bool(heard)

    def _run_by_listening_shell(self, below: list[int]) -> None:
        for pid in below:
            if not self._has_receiver(pid, b""):
                self.receivers.append(pid)
                self._run_by_listening_shell(self._below.get(pid, []))


def fate_of(pid: int, number: int) -> str:
    """What the signal would do to a process. One that waits for it (sigwait, signalfd) looks like one that would die:
    shells and others block all signals briefly whenever they start a process."""
    masks = {"SigIgn": 0, "SigCgt": 0}
    try:
        with open(f"/proc/{pid}/status") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name in masks:
                    masks[name] = int(value, 16)
    except OSError:
        return STAYS  # it has ended
    bit = 1 << (number - 1)
    if masks["SigIgn"] & bit:
        return STAYS
    return LISTENS if masks["SigCgt"] & bit else DIES


def started(pid: int) -> bytes:
    """When a process started, to distinguish it from a later one with the same id. Empty: there is none."""
    fields = _stat(pid)
    return fields[19] if fields else b""


def _is_shell(pid: int) -> bool:
    """By the executable: a script with a shell in its first line shows its own name."""
    try:
        name = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        try:
            with open(f"/proc/{pid}/comm") as file:
                name = file.read().strip()
        except OSError:
            return False
    return os.path.basename(name.removesuffix(" (deleted)")) in _SHELLS


def _command(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _stat(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []
