"""Sends a signal to the processes of a container, so that a program that handles it has time to save.

A container ends with the first process of its command. Often that is a shell, which does not wait for its children when
it gets the signal, so the program that it runs would be killed with it. Therefore a shell that would die of the signal
and has a descendant that handles it is stopped (SIGSTOP), and gets the signal when these descendants have ended. A
stopped shell does not reap them, so their exit status is read from /proc and counts as its own. Knows /proc.
"""

from __future__ import annotations

import signal

from corral.runtime.local.task.signal_audience import (
    DIES,
    EXIT,
    LISTENS,
    STARTED,
    STATE,
    Audience,
    descendants,
    fate_of,
    kill,
    stat_of,
)


class SignalRelay:
    """``end``: the wait status of the descendants of a stopped shell: that of the first that failed, 0 if none did.
    None: it is not known."""

    def __init__(self) -> None:
        self.end: int | None = None
        self._number = 0
        self.audience = Audience()
        self._stopped: dict[int, dict[int, bytes]] = {}  # shells: descendants with a handler, and when they started

    def signal_listeners(self, members: list[int], number: int) -> None:
        """Signal the processes that handle it. Raises PermissionError if we may not signal them."""
        receivers, shells = self.audience.listeners(members, number)
        if not receivers:
            return
        self._number = number
        for pid in shells:
            self._stop(pid, receivers)
        for pid in receivers:
            kill(pid, number)

    def signal_all(self, members: list[int], number: int) -> None:
        """Signal all that have not got it yet. Raises PermissionError if we may not signal them."""
        fates = {pid: fate_of(pid, number) for pid in members}
        listeners = [pid for pid, fate in fates.items() if fate == LISTENS]
        self._number = number
        for pid, fate in fates.items():
            if fate == DIES:
                self._stop(pid, listeners)
        for pid in self.audience.rest(members, number, self._stopped):
            kill(pid, number)

    def _stop(self, pid: int, listeners: list[int]) -> None:
        below = set(listeners).intersection(descendants(pid))
        if below:
            kill(pid, signal.SIGSTOP)
            known = self._stopped.setdefault(pid, {})
            known.update({listener: fields[STARTED] for listener in below if (fields := stat_of(listener))})

    def look(self) -> None:
        for pid, below in list(self._stopped.items()):
            found = [fields for listener, started in below.items() if (fields := stat_of(listener, started))]
            if all(fields[STATE] == b"Z" for fields in found):
                for fields in found:
                    self.end = self.end or int(fields[EXIT])
                del self._stopped[pid]
                kill(pid, self._number)
                kill(pid, signal.SIGCONT)
