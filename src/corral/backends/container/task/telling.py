"""A signal to the processes of a container, so that whoever wants to save can do so.

A container ends with the first process of its command. Often that is a shell, which waits for nobody when it is told to
end, and the program that it runs would go with it. So whoever would die of the signal, and has run somebody who listens
to it, is stopped, and hears it when nobody below it listens any more. Being stopped it has not asked what became of
them either: that can be read, and speaks for it. Knows /proc.
"""

from __future__ import annotations

import signal

from corral.backends.local.task.ending import descendants, kill

_LISTENS, _DIES, _STAYS = "listens", "dies", "stays"
_STATE, _STARTED, _EXIT = 0, 19, 49  # in /proc/<pid>/stat, behind the name


class Telling:
    """``end``: how those ended who have run under one that was stopped, as wait would tell it: the first that failed, 0
    if none did; None: it is not known."""

    def __init__(self) -> None:
        self.end: int | None = None
        self._number = 0
        self._stopped: dict[int, dict[int, bytes]] = {}  # and who below it listens, with the time of its start

    def tell(self, members: list[int], number: int) -> None:
        """PermissionError: they are not ours to signal."""
        fates = {pid: _fate(pid, number) for pid in members}
        listeners = {pid for pid, fate in fates.items() if fate == _LISTENS}
        self._number = number
        for pid, fate in fates.items():
            below = listeners.intersection(descendants(pid)) if fate == _DIES else ()
            if below:
                kill(pid, signal.SIGSTOP)
                self._stopped[pid] = {listener: fields[_STARTED] for listener in below if (fields := _stat(listener))}
        for pid in members:
            if pid not in self._stopped:
                kill(pid, number)

    def look(self) -> None:
        for pid, below in list(self._stopped.items()):
            found = [fields for listener, started in below.items() if (fields := _stat(listener, started))]
            if all(fields[_STATE] == b"Z" for fields in found):
                for fields in found:
                    self.end = self.end or int(fields[_EXIT])
                del self._stopped[pid]
                kill(pid, self._number)
                kill(pid, signal.SIGCONT)


def _fate(pid: int, number: int) -> str:
    """What the signal would do to it. One that waits for it (sigwait, signalfd) cannot be told from one that dies."""
    masks = {"SigIgn": 0, "SigCgt": 0}
    try:
        with open(f"/proc/{pid}/status") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name in masks:
                    masks[name] = int(value, 16)
    except OSError:
        return _STAYS  # gone already
    bit = 1 << (number - 1)
    if masks["SigIgn"] & bit:
        return _STAYS
    return _LISTENS if masks["SigCgt"] & bit else _DIES


def _stat(pid: int, started: bytes = b"") -> list[bytes]:
    """Empty: there is no such process, or no longer the one that started then."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return []
    return fields if started in (b"", fields[_STARTED]) else []
