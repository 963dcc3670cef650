"""The server's end of the spawner: started, fed without waiting, started again when it is gone.

Knows bytes in and names out. Runs in the watcher's thread only; what is sent is kept until the spawner has answered, so
that a new spawner can be given it again: doing so twice is harmless, because a state directory is made once.
"""

from __future__ import annotations

import fcntl
import marshal
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from corral.backends.local.task.request import Request
from corral.backends.local.task.spawner import GIVE_WAY, LOCK

_CORRAL = Path(__file__).resolve().parents[2]
#: The package is entered without running its own __init__, which may load what a spawner does not need.
LIGHT_IMPORT = """\
import sys
corral = sys.modules["corral"] = type(sys)("corral")
corral.__path__ = [sys.argv[1]]
"""
_CODE = f"""\
{LIGHT_IMPORT}
from corral.backends.local.task.spawner import main
main(int(sys.argv[2]), sys.argv[3])
"""
_READY_S = 30
_END_S = 2


class SpawnerLink:
    """``may_start``: whether another spawner may be started; not, once a later server has the tasks."""

    def __init__(self, run: str, may_start: Callable[[], bool] = lambda: True) -> None:
        self._run, self._may_start = run, may_start
        self._unanswered: dict[str, bytes] = {}
        self._outgoing = bytearray()
        self._incoming = b""
        self._nobody: socket.socket | None = None
        _ask_to_give_way(f"{run}/{GIVE_WAY}")
        self.socket = self._start()

    @property
    def wants_to_write(self) -> bool:
        return bool(self._outgoing)

    def send(self, request: Request, blank: str, worker_parents: dict[str, str]) -> None:
        """``blank``: a directory to become that of its state; empty: a new one. ``worker_parents``: by limit, the
        cgroups in which supervisors make their own."""
        inner = marshal.dumps(dict(request))
        body = marshal.dumps((request["name"], request["state"], blank, request["record"], worker_parents, inner))
        message = len(body).to_bytes(4, "big") + body
        self._unanswered[request["name"]] = message
        self._outgoing += message
        self.flush()

    def flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: self.socket.send(self._outgoing)]
        except BlockingIOError:
            pass  # it is busy; the watcher comes back
        except OSError:
            self._outgoing.clear()  # gone: `answers` finds out and everything is sent again

    def answers(self) -> list[str]:
        """Names whose requests were dealt with. Starts a new spawner when this one is gone."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self._start_again()
            return []
        *lines, self._incoming = (self._incoming + data).split(b"\n")
        names = [line.decode() for line in lines if line]
        for name in names:
            self._unanswered.pop(name, None)
        return names

    def close(self) -> None:
        """And wait a moment for the spawner to be gone, with the supervisors that have no task."""
        self.socket.close()
        if self._nobody is not None:
            self._nobody.close()
            return
        until = time.monotonic() + _END_S
        with open(f"{self._run}/{LOCK}", "rb") as lock:
            while time.monotonic() < until:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except BlockingIOError:
                    time.sleep(0.002)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-I", "-S", "-c", _CODE, str(_CORRAL), str(theirs.fileno()), self._run]
        try:
            with theirs:
                subprocess.run(
                    command, pass_fds=[theirs.fileno()], check=True, stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=_READY_S,
                )  # fmt: skip
            ours.settimeout(_READY_S)
            if ours.recv(1) != b"\n":
                raise OSError("the spawner of tasks did not start: it ended at once")
        except TimeoutError:
            ours.close()
            raise OSError(
                f"another server still starts tasks here: its spawner holds {self._run}/{LOCK}. Stop that server first."
            ) from None
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return ours

    def _start_again(self) -> None:
        self.socket.close()
        if not self._may_start():
            self.socket, self._nobody = socket.socketpair()  # what is still sent is heard by nobody
            self.socket.setblocking(False)
            return
        self.socket = self._start()
        self._incoming = b""
        self._outgoing = bytearray(b"".join(self._unanswered.values()))
        self.flush()


def _ask_to_give_way(path: str) -> None:
    """A spawner ends with its server. Should that be frozen instead of dead, its spawner has to be told: whoever opens
    the backend has the right to, by the epoch."""
    try:
        end = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return  # there is none
    with os.fdopen(end, "wb", buffering=0) as fifo:
        fifo.write(b".")
