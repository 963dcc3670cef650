"""A signal to the processes of a container, so that whoever wants to save can do so.

A container ends with the first process of its command. Often that is a shell, which waits for nobody when it is told
to end, and the program that it runs would go with it. So a shell that would die of the signal, and runs somebody who
listens to it, is stopped, and hears it when nobody below it listens any more. Being stopped it has not asked what
became of them either: that can be read, and speaks for it. Knows /proc.
"""

from __future__ import annotations

import signal

from corral.backends.local.task.ending import descendants, kill
from corral.backends.local.task.hearing import DIES, LISTENS, Audience, fate_of

_STATE, _STARTED, _EXIT = 0, 19, 49  # in /proc/<pid>/stat, behind the name


class Telling:
    """``end``: how those ended who have run under one that was stopped, as wait would tell it: the first that failed, 0
    if none did; None: it is not known."""

    def __init__(self) -> None:
        self.end: int | None = None
        self._number = 0
        self._audiences: dict[int, Audience] = {}  # by signal
        self._stopped: dict[int, dict[int, bytes]] = {}  # and who below it listens, with the time of its start

    def tell_listeners(self, members: list[int], number: int) -> None:
        """Those that listen. PermissionError: they are not ours to signal."""
        hearers, shells = self._audience(members, number).listeners()
        if not hearers:
            return
        self._number = number
        for pid in shells:
            self._stop(pid, hearers)
        for pid in hearers:
            kill(pid, number)

    def tell(self, members: list[int], number: int) -> None:
        """All that have not heard it. PermissionError: they are not ours to signal."""
        fates = {pid: fate_of(pid, number) for pid in members}
        listeners = [pid for pid, fate in fates.items() if fate == LISTENS]
        audience = self._audience(members, number)
        self._number = number
        for pid, fate in fates.items():
            if fate == DIES:
                self._stop(pid, listeners)
        for pid in audience.rest([pid for pid in members if pid not in self._stopped]):
            kill(pid, number)

    def _audience(self, members: list[int], number: int) -> Audience:
        return self._audiences.setdefault(number, Audience(members, number))

    def _stop(self, pid: int, listeners: list[int]) -> None:
        below = set(listeners).intersection(descendants(pid))
        if below:
            kill(pid, signal.SIGSTOP)
            known = self._stopped.setdefault(pid, {})
            known.update({listener: fields[_STARTED] for listener in below if (fields := _stat(listener))})

    def look(self) -> None:
        for pid, below in list(self._stopped.items()):
            found = [fields for listener, started in below.items() if (fields := _stat(listener, started))]
            if all(fields[_STATE] == b"Z" for fields in found):
                for fields in found:
                    self.end = self.end or int(fields[_EXIT])
                del self._stopped[pid]
                kill(pid, self._number)
                kill(pid, signal.SIGCONT)


def _stat(pid: int, started: bytes = b"") -> list[bytes]:
    """Empty: there is no such process, or no longer the one that started then."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return []
    return fields if started in (b"", fields[_STARTED]) else []
