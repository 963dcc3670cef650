"""The small warm process that gives every task a supervisor: a fork of itself, or one whose task has ended.

The backend starts it once. It leaves the server's process tree and session at once, reads requests from a socket and
ends with it; workers that have a task continue without it. It creates the state directory of a task first: a second
request with the same name finds it and does nothing.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import fcntl
import gc
import marshal
import os
import resource
import select
import time

from corral.runtime.local.task import records, scratch, system, worker

LOCK, GIVE_WAY = "spawner.lock", "spawner.end"
_IDLE_MAX = 64


def main(server: int, run: str, scratch_root: str) -> None:
    """``server``: a socket. The first process ends as soon as the second one is detached."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    system.unblock_signals()
    system.default_signals(tuple(number for number in range(1, 32) if number not in (9, 13, 19)))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    lock = os.open(f"{run}/{LOCK}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # the previous spawner is finishing its last fork
    gc.disable()
    gc.freeze()
    system.take_name("corral-spawner")
    spawner = Spawner(server, _open_give_way(f"{run}/{GIVE_WAY}"))
    try:
        spawner.serve()
    finally:
        spawner.retire()
        scratch.remove_root(scratch_root)
        os._exit(0)


def _open_give_way(path: str) -> int:
    """The FIFO by which a later server ends this spawner if its own server is frozen. A new one, so that it contains
    nothing that was written for an earlier spawner."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


class Worker:
    """A supervisor as the spawner sees it. ``control``: the reading end of the FIFO of its task. It is held open here
    as well, so that the task counts as supervised as soon as its directory is visible."""

    def __init__(self, pid: int, link: int) -> None:
        self.pid, self.link = pid, link
        self.name = ""
        self.control = -1
        self.is_new = True
        self.groups: set[str] = set()


class Spawner:
    def __init__(self, server: int, give_way: int) -> None:
        self._server, self._give_way = server, give_way
        self._poll = select.poll()
        self._poll.register(server, select.POLLIN)
        self._poll.register(give_way, select.POLLIN)
        self._workers: dict[int, Worker] = {}  # by link
        self._idle: list[Worker] = []

    def serve(self) -> None:
        self._answer("")  # ready
        while True:
            for fd, event in self._poll.poll():
                if fd == self._give_way:
                    return  # a later server has taken over
                if fd != self._server:
                    self._on_worker(self._workers[fd])
                elif event & (select.POLLHUP | select.POLLERR):
                    return  # the server is gone; requests that were not answered are not executed
                else:
                    message = worker.receive(self._server)
                    if message is None:
                        return
                    name, *rest = marshal.loads(message)
                    self._launch(name, *rest)
                    self._answer(name)

    def retire(self) -> None:
        """Workers without a task end with the spawner; the others continue alone."""
        for process in self._idle:
            os.close(process.link)
            os.waitpid(process.pid, 0)
            _remove_groups(process)

    def _answer(self, line: str) -> None:
        data = line.encode() + b"\n"
        while data:
            data = data[os.write(self._server, data) :]

    def _launch(
        self, name: str, state: str, blank: str, record: bytes, parents: dict[str, str], request: bytes
    ) -> None:
        if not records.make_state(state, blank):
            return  # it runs or ran already
        control = -1
        try:
            records.begin(state, record)
            control = os.open(f"{state}/{records.CONTROL}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            chosen = self._given_to_idle(request) or self._fork(parents)
            if chosen.is_new:
                worker.send(chosen.link, request)
            chosen.name = name
            chosen.control = control
            chosen.is_new = False
        except OSError as fault:
            if control >= 0:
                os.close(control)
            _record_failure(state, f"cannot create a supervisor: {fault}")

    def _given_to_idle(self, request: bytes) -> Worker | None:
        while self._idle:
            chosen = self._idle.pop()
            try:
                worker.send(chosen.link, request)
            except OSError:
                continue  # it was killed; `_on_worker` handles that
            return chosen
        return None

    def _fork(self, parents: dict[str, str]) -> Worker:
        ours, theirs = system.socket_pair()
        pid = os.fork()
        if pid == 0:
            worker.work(theirs, parents)
        os.close(theirs)
        made = self._workers[ours] = Worker(pid, ours)
        made.groups = set(worker.groups_of(pid, parents).values())
        self._poll.register(ours, select.POLLIN)
        return made

    def _on_worker(self, process: Worker) -> None:
        """A worker is free again, or gone."""
        message = os.read(process.link, 1)
        name, process.name = process.name, ""
        if process.control >= 0:
            os.close(process.control)
            process.control = -1
        if message and len(self._idle) < _IDLE_MAX:
            self._idle.append(process)
            return
        self._poll.unregister(process.link)
        os.close(process.link)
        del self._workers[process.link]
        if process in self._idle:
            self._idle.remove(process)
        os.waitpid(process.pid, 0)
        _remove_groups(process)
        if not message and name:
            self._answer(f"!{name}")


def _remove_groups(process: Worker) -> None:
    for group in process.groups:
        try:
            os.rmdir(group)
        except OSError:
            pass  # it still contains processes: the server kills them


def _record_failure(state: str, why: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    record: records.Record = {"at_ms": now_ms, "exit_code": 126, "signal": 0, "failure": "start_failed", "why": why}
    try:
        records.add(state, records.EXIT, records.to_json(record))
    except OSError:
        pass  # the server will find a task without a supervisor
