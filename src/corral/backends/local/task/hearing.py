"""Which processes of a task hear a signal at once: those that listen to it, and none that would only die of it.

A program that does not catch the signal can still read the warning in its file, so it is left in peace. The helpers of
a program (a loader of data that it forked) belong to it and hear nothing. A shell that listens can act only when what
it runs has ended, so that hears the signal too; one that does not would go on with its script once its program has
left, so it is named as well. What begins after the warning is part of the saving. Knows /proc.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os

from corral.backends.local.task.ending import kill

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

LISTENS, DIES, STAYS = "listens", "dies", "stays"
_SHELLS = frozenset(("sh", "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "mksh", "rbash", "tcsh", "zsh"))
_HELPER = b"--multiprocessing-fork"  # how Python marks a helper that is started rather than forked
_LAUNCHER = b"CORRAL_FAILED_FILE"  # in the script of the shells that start several processes in a container


_LATE_S_MIN, _LATE_S_MAX = 2.0, 10.0


def late_s(grace_s: float) -> float:
    """How long before the deadline those who do not listen are ended by SIGTERM: a tenth of the time they had."""
    return min(max(grace_s / 10, _LATE_S_MIN), _LATE_S_MAX, grace_s / 2)


def in_group(pids: list[int], leader: int, more: Container[int]) -> list[int]:
    """Those in the process group of the leader, and ``more``, which may not have come to join it yet."""
    return [pid for pid in pids if pid in more or _group_of(pid) == leader]


class Call:
    """Signals to a task of plain processes. Each of them hears each signal once."""

    def __init__(self) -> None:
        self._audiences: dict[int, Audience] = {}  # by signal

    def to_listeners(self, members: list[int], number: int) -> None:
        hearers, shells = self._audience(members, number).listeners()
        for pid in (*shells, *hearers) if hearers else ():
            _tell(pid, number)

    def to_rest(self, members: list[int], number: int) -> None:
        for pid in self._audience(members, number).rest(members):
            _tell(pid, number)

    def _audience(self, members: list[int], number: int) -> Audience:
        return self._audiences.setdefault(number, Audience(members, number))


def _tell(pid: int, number: int) -> None:
    try:
        kill(pid, number)
    except PermissionError:
        pass  # it has become another user


def _group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return -1


class Audience:
    """The processes that were there when a signal was first called for, and which of them have heard it."""

    def __init__(self, members: list[int], number: int) -> None:
        self._number = number
        self._there = {pid: started(pid) for pid in members}
        self._told: set[int] = set()

    def listeners(self) -> tuple[list[int], list[int]]:
        """Who is to hear it now and has not yet, and the shells above them that would die of it. To be asked again: a
        program may begin to listen at any time."""
        there = [pid for pid, since in self._there.items() if since and started(pid) == since]
        hearing = _Hearing(there, self._number, self._told)
        shells = [pid for pid in hearing.shells if pid not in self._told]
        return self._note(hearing.hearers), shells

    def rest(self, members: list[int]) -> list[int]:
        """Everyone else."""
        return self._note(members)

    def _note(self, pids: list[int]) -> list[int]:
        found = [pid for pid in dict.fromkeys(pids) if pid not in self._told]
        self._told.update(found)
        return found


class _Hearing:
    """One look at some processes, ``told``: who has heard it before."""

    def __init__(self, members: list[int], number: int, told: set[int]) -> None:
        self.hearers: list[int] = []
        self.shells: list[int] = []
        self._number, self._told = number, told
        parents = {pid: _parent(pid) for pid in members}
        self._below: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            self._below.setdefault(parent, []).append(pid)
        for pid, parent in parents.items():
            if parent not in parents:
                self._is_heard(pid, b"")

    def _is_heard(self, pid: int, above: bytes) -> bool:
        """Whether somebody here or below hears it. ``above``: the command line of the program that runs this one."""
        own, is_shell = _command(pid), _is_shell(pid)
        if above and (own == above or _HELPER in own):
            return False
        below = self._below.get(pid, [])
        if is_shell and _LAUNCHER in own:
            return self._are_heard(below, b"")
        fate = fate_of(pid, self._number)
        if pid in self._told or fate == LISTENS:
            self.hearers.append(pid)
            if is_shell and pid not in self._told:
                self._run_by_listening_shell(below)
            return True
        is_heard = self._are_heard(below, b"" if is_shell else own)
        if is_shell and fate == DIES and is_heard:
            self.shells.append(pid)
        return is_heard

    def _are_heard(self, pids: list[int], above: bytes) -> bool:
        heard = [pid for pid in pids if self._is_heard(pid, above)]
        return bool(heard)

    def _run_by_listening_shell(self, below: list[int]) -> None:
        for pid in below:
            if not self._is_heard(pid, b""):
                self.hearers.append(pid)
                self._run_by_listening_shell(self._below.get(pid, []))


def fate_of(pid: int, number: int) -> str:
    """What the signal would do to a process. One that waits for it (sigwait, signalfd) cannot be told from one that
    dies: shells and others block all signals for a moment whenever they start a process."""
    masks = {"SigIgn": 0, "SigCgt": 0}
    try:
        with open(f"/proc/{pid}/status") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name in masks:
                    masks[name] = int(value, 16)
    except OSError:
        return STAYS  # gone already
    bit = 1 << (number - 1)
    if masks["SigIgn"] & bit:
        return STAYS
    return LISTENS if masks["SigCgt"] & bit else DIES


def started(pid: int) -> bytes:
    """When a process began, to tell it from a later one with the same number; empty: there is none."""
    fields = _stat(pid)
    return fields[19] if fields else b""


def _is_shell(pid: int) -> bool:
    """By the program that runs: a script that names its shell in its first line is shown by its own name."""
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
