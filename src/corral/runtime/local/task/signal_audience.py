"""The processes below another, and which of them get a signal at once: those that handle it, and none that would just
die of it.

A program that does not handle the signal can still read the warning file, so it does not get the signal yet. The
helpers of a program (a forked data loader) belong to it and get nothing. A shell with a handler runs it only after its
child has ended, so the child gets the signal too. A shell without one would continue its script once its program has
ended, so it is signalled as well. What starts after the warning is part of the saving. Knows /proc.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os

from corral.runtime.local.task.system import SIGKILL

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container

LISTENS = "listens"
DIES = "dies"
STAYS = "stays"
_SHELLS = frozenset(("sh", "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "mksh", "rbash", "tcsh", "zsh"))
_HELPER = b"--multiprocessing-fork"  # how Python marks a helper that is spawned instead of forked
_LAUNCHER = b"CORRAL_FAILED_FILE"  # in the script of the shells that start several processes in a container
#: Fields of /proc/<pid>/stat, behind the name.
STATE = 0
_PARENT = 1
STARTED = 19
EXIT = 49


def descendants(pid: int) -> list[int]:
    found, pending = [], [pid]
    while pending:
        for child in _children(pending.pop()):
            found.append(child)
            pending.append(child)
    return found


def in_group(pids: list[int], leaders: Container[int], more: Container[int] = ()) -> list[int]:
    """Those in the process groups of the leaders, and ``more``, which may not have joined one yet."""
    return [pid for pid in pids if pid in more or group_of(pid) in leaders]


def group_of(pid: int) -> int:
    """0: it has ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def kill(pid: int, signal: int = SIGKILL) -> None:
    try:
        os.kill(pid, signal)
    except ProcessLookupError:
        pass


class Audience:
    """The processes of a task, for each signal: those that existed when it was first sent, and those that have got it.
    Each process gets each signal once."""

    def __init__(self) -> None:
        self.has_listener = False  # a process that handles a signal has got one
        self._calls: dict[int, tuple[dict[int, bytes], set[int]]] = {}

    def listeners(self, members: list[int], number: int) -> tuple[list[int], list[int]]:
        """The processes to signal now, and the shells above them that would die of it. Call it repeatedly: a program
        may install a handler at any time."""
        known, sent = self._call(members, number)
        there = [pid for pid, started in known.items() if stat_of(pid, started)]
        found = _Receivers(there, number, sent)
        shells = [pid for pid in found.shells if pid not in sent]
        self.has_listener |= bool(found.receivers)
        return _note(found.receivers, sent), shells

    def named(self, pids: list[int], number: int) -> list[int]:
        """These and no others, whether or not they handle the signal; each once."""
        _, sent = self._call(pids, number)
        found = _note(pids, sent)
        self.has_listener |= any(fate_of(pid, number) == LISTENS for pid in found)
        return found

    def rest(self, members: list[int], number: int, held: Container[int] = ()) -> list[int]:
        """All others, except those that are held back."""
        _, sent = self._call(members, number)
        found = _note([pid for pid in members if pid not in held], sent)
        self.has_listener |= any(fate_of(pid, number) == LISTENS for pid in found)
        return found

    def _call(self, members: list[int], number: int) -> tuple[dict[int, bytes], set[int]]:
        if number not in self._calls:
            started = {pid: fields[STARTED] for pid in members if (fields := stat_of(pid))}
            self._calls[number] = started, set()
        return self._calls[number]


def _note(pids: list[int], sent: set[int]) -> list[int]:
    found = [pid for pid in dict.fromkeys(pids) if pid not in sent]
    sent.update(found)
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
    fields = stat_of(pid)
    return int(fields[_PARENT]) if fields else 0


def stat_of(pid: int, started: bytes = b"") -> list[bytes]:
    """The fields of its /proc/<pid>/stat. Empty: there is no such process, or another one than that which ``started``
    at this time has its id now."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return []
    return fields if started in (b"", fields[STARTED]) else []


def _children(pid: int) -> list[int]:
    """The children of all threads of a process. Without CONFIG_PROC_CHILDREN: by a walk over /proc."""
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as listing:
                found += map(int, listing.read().split())
        except FileNotFoundError:
            if os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
                continue  # the thread is gone
            return [int(each) for each in os.listdir("/proc") if each.isdecimal() and _parent(int(each)) == pid]
        except OSError:
            continue
    return found
