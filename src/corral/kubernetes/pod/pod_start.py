"""The first process in the container of a task: starts the supervisor, passes on orders and results.

The supervisor is the one of every task of Corral and does not know pods: it obeys lines in a FIFO and records what
happens in files. This process stands between it and the cluster. SIGTERM, which a pod gets when anyone deletes it,
becomes a warning with the pod's grace as deadline; orders of the server come over a connection (`link`), if the server
can be reached; output goes to the log of the container; the result is the last line of that log, the termination
message of the container, and its exit code.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import gzip
import json
import os
import select
import signal
import sys
import time

from corral.kubernetes.pod.log_lines import LineEncoder, record_line
from corral.kubernetes.pod.server_link import Link
from corral.runtime.local.task import records, system
from corral.runtime.local.task.cgroups import TaskGroups
from corral.runtime.local.task.processes import Processes
from corral.runtime.local.task.supervisor import Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ORDER, WORK = "order", "work"
TERMINATION_LOG = "/dev/termination-log"
_TURN_S = 0.1
_OPEN_LINE_S = 1.0
_ANSWER_S = 3.0
_MARGIN_S = 2.0  # between the deadline of a deleted pod and the SIGKILL of the kubelet
_MESSAGE_MAX = 4096
_OWN = ("PYTHONHOME", "PYTHONPATH")


def main(arguments: list[str]) -> int:
    base, task = arguments
    order = read_order(f"{base}/{ORDER}", task)
    place = PodFiles(f"{base}/{WORK}", order)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _supervise(place, parent)
    signal.set_wakeup_fd(place.wake_write, warn_on_full_buffer=False)
    terms: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: terms.append(1))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return Attendant(place, order, pid, terms).run()


def read_order(folder: str, task: str) -> dict[str, Any]:
    """The order of this task, out of those of the gang that share an object. Common values are stored once."""
    with open(f"{folder}/orders.json.gz", "rb") as file:
        orders = json.loads(gzip.decompress(file.read()))
    own = orders["tasks"][task]
    request = {**orders["request"], **own["request"]}
    request["env"] = {**orders["env"], **own["env"]}
    return {**orders["order"], **own["order"], "request": request}


class PodFiles:
    """The files of the task, in a volume of the pod."""

    def __init__(self, folder: str, order: dict[str, Any]) -> None:
        request = self.request = order["request"]
        self.state = f"{folder}/state"
        self.run = f"{folder}/run"
        self.logs = f"{folder}/logs"
        for path in (folder, self.state, self.run, f"{folder}/scratch"):
            os.makedirs(path, mode=0o700, exist_ok=True)
        self.scratch = f"{folder}/scratch/task"
        request.update(state=self.state, run=self.run, logs=self.logs, scratch=self.scratch, record=b"")
        request["early"] = tuple(request["early"]) if request["early"] else None
        image = {name: value for name, value in os.environ.items() if name not in _OWN}
        self.gpus = _given_gpus(order)
        request["env"] = {**image, **request["env"], **_visible(order, self.gpus)}
        for fifo in (f"{self.state}/{records.CONTROL}", f"{self.run}/{records.NEWS}"):
            os.mkfifo(fifo, 0o600)
        records.begin(self.state, b"{}")
        self.control = os.open(f"{self.state}/{records.CONTROL}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.news = os.open(f"{self.run}/{records.NEWS}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def lines(self) -> dict[str, Any]:
        """The record of the supervisor, by word."""
        found: dict[str, Any] = {}
        for line in records.read_start(f"{self.state}/{records.RECORD}", 1 << 16).splitlines():
            word, _, rest = line.partition(b" ")
            found[word.decode()] = _json(rest)
        return found

    def read(self, name: str) -> Any:
        return _json(records.read_start(f"{self.state}/{name}", 1 << 16))


def _given_gpus(order: dict[str, Any]) -> list[str] | None:
    """The GPUs of this container: those of the order, where it names them, or as the device plugin says. None: it does
    not say."""
    if order["exact_gpus"] or not order["gpus"]:
        return list(order["gpus"])
    given = os.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    return [gpu for gpu in given.split(",") if gpu] if given.startswith(("GPU-", "MIG-")) else None


def _visible(order: dict[str, Any], gpus: list[str] | None) -> dict[str, str]:
    if order["exact_gpus"]:
        return {}  # the request has them
    return {} if gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(gpus)}


def _supervise(place: PodFiles, parent: int) -> None:
    code = 1
    try:
        os.setsid()
        system.take_name("corral-task")
        system.become_subreaper()
        runner = _PodProcesses(place.request, TaskGroups(place.request["cgroup_version"], {}, True))
        _end_with_parent(runner, parent)
        Supervisor(place.request, place.control, runner).run()
        code = 0
    finally:
        os._exit(code)


def _end_with_parent(runner: Processes, parent: int) -> None:
    """In a container the kernel ends all processes with the first one. Where that is not so, this does."""

    def end(*_: object) -> None:
        runner.kill()
        os._exit(1)

    signal.signal(signal.SIGUSR2, end)
    system.signal_when_parent_ends(signal.SIGUSR2)
    if os.getppid() != parent:
        end()


class _PodProcesses(Processes):
    """The kernel counts in the cgroup of the container."""

    def __init__(self, request: Any, groups: TaskGroups) -> None:
        super().__init__(request, groups)
        self._killed_before = _oom_kills()

    def has_exceeded_memory(self) -> bool:
        return self._request["memory_mib"] is not None and _oom_kills() > self._killed_before


def _oom_kills() -> int:
    for path in ("/sys/fs/cgroup/memory.events.local", "/sys/fs/cgroup/memory/memory.oom_control"):
        for line in records.read_start(path, 4096).splitlines():
            word, _, count = line.partition(b" ")
            if word == b"oom_kill" and count.strip().isdigit():
                return int(count)
    return 0


class Attendant:
    """Watches one supervisor until it has ended."""

    def __init__(self, place: PodFiles, order: dict[str, Any], pid: int, terms: list[int]) -> None:
        self._place = place
        self._order = order
        self._pid = pid
        self._terms = terms
        self._outputs = [_Output(place.logs, "stdout", False), _Output(place.logs, "stderr", True)]
        settings = {**order["link"], "token": order["token"]}
        self._link = Link(settings, order["pod"], self._take) if settings["address"] else None
        self._sent: dict[str, Any] = {}
        self._is_ordered = False  # the server has ordered the end itself

    def run(self) -> int:
        place = self._place
        poll = select.poll()
        for fd in (place.news, place.wake_read):
            poll.register(fd, select.POLLIN)
        if self._link is not None:
            self._link.start()
        while not self._is_over():
            for fd, _ in poll.poll(_TURN_S * 1000):
                os.read(fd, 65536)
            self._turn()
        return self._end()

    def _is_over(self) -> bool:
        try:
            return os.waitpid(self._pid, os.WNOHANG)[0] == self._pid
        except ChildProcessError:
            return True

    def _turn(self) -> None:
        _reap_others(self._pid)
        if self._terms:
            self._terms.clear()
            self._warn_of_deletion()
        for output in self._outputs:
            output.forward()
        self._report()

    def _warn_of_deletion(self) -> None:
        """Someone deletes the pod. If it was the server, it has said so over the connection, with its own deadline."""
        if not self._is_ordered:
            grace_s = max(self._order["grace_s"] - _MARGIN_S, self._order["grace_s"] / 2)
            self._control(f"warn {int((time.time() + grace_s) * 1000)} drain")

    def _take(self, message: dict[str, Any]) -> None:
        """An order of the server, from the thread of the connection."""
        if "warn" in message:
            self._is_ordered = True
            self._control(f"warn {int(message['warn'])} {_one_line(message.get('why'))}")
        elif "kill" in message:
            self._is_ordered = True
            self._control(f"kill {_one_line(message['kill'])}")
        elif "stop_at" in message:
            self._control(f"stop-at {int(message['stop_at'])}")

    def _control(self, line: str) -> None:
        try:
            os.write(self._place.control, line.encode("utf-8", "replace") + b"\n")
        except OSError:
            pass  # full of orders that were not read: one more changes nothing

    def _report(self, more: dict[str, Any] | None = None) -> None:
        found = self._found() | (more or {})
        if found != self._sent:
            self._sent = found
            if self._link is not None:
                self._link.tell(found)

    def _found(self) -> dict[str, Any]:
        lines, found = self._place.lines(), {}
        started = lines.get(records.STARTED)
        if isinstance(started, dict):
            gpus = self._place.gpus
            found["up"] = {"at_ms": started["at_ms"], "unenforced": started["unenforced"], "gpus": gpus}
        for name in (records.STEP, records.STOP):
            value = self._place.read(name)
            if value is not None:
                found[name] = value
        if isinstance(lines.get(records.EXIT), dict):
            found["exit"] = lines[records.EXIT]
        return found

    def _end(self) -> int:
        for output in self._outputs:
            output.forward()
            output.flush()
        found = self._found()
        ended = found.get("exit")
        if ended is None:
            ended = found["exit"] = {
                "at_ms": int(time.time() * 1000), "exit_code": 137, "signal": 9, "failure": "killed",
                "why": "the supervisor of the task was killed",
            }  # fmt: skip
        _write_all(1, record_line(json.dumps(found).encode()))
        try:
            with open(TERMINATION_LOG, "w", encoding="utf-8") as file:
                file.write(_message(found))
        except OSError:
            pass  # the last line of the log has it too
        self._report({"exit": ended})
        if self._link is not None:
            self._link.finish(_ANSWER_S)
        code = int(ended["exit_code"])
        return code if 0 <= code <= 255 else 1


class _Output:
    """Follows one stream in the files that the supervisor stores, and writes it to the log of the container."""

    def __init__(self, folder: str, name: str, is_stderr: bool) -> None:
        self._folder, self._name = folder, name
        self._encoder = LineEncoder(is_stderr)
        self._offset = 0
        self._open_since = 0.0

    def forward(self) -> None:
        for data in self._new():
            self._open_since = time.monotonic()
            _write_all(1, self._encoder.feed(data))
        if self._open_since and time.monotonic() - self._open_since > _OPEN_LINE_S:
            self.flush()

    def flush(self) -> None:
        self._open_since = 0.0
        _write_all(1, self._encoder.flush())

    def _new(self) -> list[bytes]:
        """What was added since the last call. Parts that were deleted meanwhile are skipped."""
        prefix = f"{self._name}."
        try:
            names = [name for name in os.listdir(self._folder) if name.startswith(prefix)]
        except FileNotFoundError:
            return []
        starts = sorted(int(name[len(prefix) :]) for name in names if name[len(prefix) :].isdigit())
        found = []
        for start in starts:
            try:
                with open(f"{self._folder}/{prefix}{start:016d}", "rb") as file:
                    size = file.seek(0, os.SEEK_END)
                    if start + size <= self._offset:
                        continue
                    file.seek(max(self._offset - start, 0))
                    data = file.read()
            except FileNotFoundError:
                continue
            self._offset = max(self._offset, start) + len(data)
            found.append(data)
        return found


def _message(found: dict[str, Any]) -> str:
    text = json.dumps(found)
    if len(text.encode()) <= _MESSAGE_MAX:
        return text
    ended = {**found["exit"], "said": "", "why": str(found["exit"].get("why", ""))[:500]}
    return json.dumps({**found, "exit": ended, "up": {**found.get("up", {}), "unenforced": []}})[:_MESSAGE_MAX]


def _reap_others(pid: int) -> None:
    """As the first process of the container, it inherits what others leave behind."""
    try:
        while True:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None or found.si_pid == pid:
                return
            os.waitpid(found.si_pid, os.WNOHANG)
    except ChildProcessError:
        pass


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _one_line(text: object) -> str:
    return " ".join(str(text or "").split())[:1000]


def _json(text: bytes) -> Any:
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
