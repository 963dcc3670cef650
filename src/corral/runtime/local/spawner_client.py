"""The server's side of the spawner: starts it, sends requests without blocking, and restarts it when it is gone.

Knows bytes and names. Runs in the watcher's thread only. A request is kept until the spawner has answered it, so that
it can be sent to a new spawner. Sending it twice does no harm, because a state directory is created only once.
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

from corral.runtime.local.task.spawner import GIVE_WAY, LOCK
from corral.runtime.local.task.task_request import Request

_CORRAL = Path(__file__).resolve().parents[2]
#: Imports the package without running its __init__, which may load what a spawner does not need.
LIGHT_IMPORT = """\
import sys
corral = sys.modules["corral"] = type(sys)("corral")
corral.__path__ = [sys.argv[1]]
"""
_CODE = f"""\
{LIGHT_IMPORT}
from corral.runtime.local.task.spawner import main
main(int(sys.argv[2]), *sys.argv[3:])
"""
_READY_S = 30
_END_S = 2


class SpawnerClient:
    """``scratch``: the parent of tasks' private directories, to be removed with the last of them. ``may_start``:
    whether another spawner may be started: not after a later server has taken over the tasks."""

    def __init__(self, run: str, scratch: str, may_start: Callable[[], bool] = lambda: True) -> None:
        self._run = run
        self._scratch = scratch
        self._may_start = may_start
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
        """``blank``: a directory to reuse as its state directory; empty: a new one. ``worker_parents``: by limit, the
        cgroups in which supervisors create their own."""
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
            pass  # it is busy; the watcher tries again
        except OSError:
            self._outgoing.clear()  # it is gone: `answers` notices, and everything is sent again

    def answers(self) -> list[str]:
        """The names of requests that were executed. Starts a new spawner when this one is gone."""
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
        """Also waits, for at most 2 s, until the spawner and the supervisors without a task have ended."""
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
        command.append(self._scratch)
        try:
            with theirs:
                subprocess.run(
                    command,
                    pass_fds=[theirs.fileno()],
                    check=True,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=_READY_S,
                )
            ours.settimeout(_READY_S)
            if ours.recv(1) != b"\n":
                raise OSError("the spawner of tasks did not start: it ended at once")
        except TimeoutError:
            ours.close()
            raise OSError(
                f"another server still runs tasks here: its spawner holds {self._run}/{LOCK}. Stop that server first."
            ) from None
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return ours

    def _start_again(self) -> None:
        self.socket.close()
        if not self._may_start():
            self.socket, self._nobody = socket.socketpair()  # what is still sent is never read
            self.socket.setblocking(False)
            return
        self.socket = self._start()
        self._incoming = b""
        self._outgoing = bytearray(b"".join(self._unanswered.values()))
        self.flush()


def _ask_to_give_way(path: str) -> None:
    """Ask the spawner of an earlier server to end. It ends with its server, but that may be frozen instead of dead. The
    epoch gives the caller the right to do so."""
    try:
        end = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return  # there is none
    with os.fdopen(end, "wb", buffering=0) as fifo:
        fifo.write(b".")
