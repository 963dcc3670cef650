"""The small warm process that makes supervisors: a fork of it is ready in a fraction of what a new interpreter takes.

Started once by the backend, leaves the server's process tree and session at once, reads requests from a socket and ends
with it. It makes the state directory of a task before anything else: whoever comes second with the same name finds it
and does nothing.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import fcntl
import gc
import marshal
import os
import select
import socket
import time

from corral.backends.local.task import records, system
from corral.backends.local.task.request import Request
from corral.backends.local.task.supervisor import supervise

LOCK = "spawner.lock"
_REAP_MS = 500
_MANY_FILES = 1 << 20


def main(fd: int, run: str) -> None:
    """``fd``: the socket to the server. Returns in the first process as soon as the second is on its own."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    system.unblock_signals()
    system.default_signals(tuple(number for number in range(1, 32) if number not in (9, 13, 19)))
    lock = os.open(f"{run}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # the one before is finishing its last fork
    gc.disable()
    gc.freeze()
    with socket.socket(fileno=fd) as server:
        _serve(server)


def _serve(server: socket.socket) -> None:
    poll = select.poll()
    poll.register(server, select.POLLIN)
    children: dict[int, tuple[str, str]] = {}
    server.sendall(b"\n")  # ready
    while True:
        for _, event in poll.poll(_REAP_MS if children else None):
            if event & (select.POLLHUP | select.POLLERR):
                return  # the server is gone; what it had not been told is started is not started
            request = _receive(server)
            if request is None:
                return
            pid = _launch(request)
            if pid:
                children[pid] = (request["run"], request["name"])
            server.sendall(request["name"].encode() + b"\n")
        _reap(children)


def _receive(server: socket.socket) -> Request | None:
    head = _exactly(server, 4)
    body = _exactly(server, int.from_bytes(head, "big")) if head else b""
    return marshal.loads(body) if body else None


def _exactly(server: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = server.recv(count - len(parts))
        if not part:
            return b""
        parts += part
    return bytes(parts)


def _launch(request: Request) -> int:
    """The pid of its supervisor; 0 when there is none to make or none could be made."""
    state = request["state"]
    try:
        os.mkdir(state, 0o700)
    except FileExistsError:
        return 0  # it runs or ran already
    try:
        records.write_whole(f"{state}/{records.ORDER}", request["record"])
        os.mkfifo(f"{state}/{records.CONTROL}", 0o600)
        control = os.open(f"{state}/{records.CONTROL}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        pid = os.fork()
    except OSError as fault:
        _record_failure(state, f"no supervisor could be made: {fault}")
        return 0
    if pid == 0:
        _supervise(request, control)
    os.close(control)
    return pid


def _supervise(request: Request, control: int) -> None:
    try:
        if control != 3:
            os.dup2(control, 3, inheritable=False)
        os.closerange(4, _MANY_FILES)
        supervise(request, 3)
    except BaseException as fault:
        _record_failure(request["state"], f"the supervisor of the task failed: {fault!r}")
        records.say_news(request["run"], request["name"])
        os._exit(1)
    os._exit(0)


def _record_failure(state: str, why: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    record: records.Record = {"at_ms": now_ms, "exit_code": 126, "signal": 0, "failure": "start_failed", "why": why}
    try:
        records.write_whole(f"{state}/{records.EXIT}", records.to_json(record))
    except OSError:
        pass  # the server will find a task without a supervisor


def _reap(children: dict[int, tuple[str, str]]) -> None:
    """A supervisor that ended badly has left no word: the server is told to look."""
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        run, name = children.pop(pid, ("", ""))
        if status and run:
            records.say_news(run, name)
