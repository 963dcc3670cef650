"""A local backend in a directory of its own, and short words for what tests do with it."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from corral.core.cluster.topology import NodeSpec
from corral.runtime.base import Process, TaskKey, TaskOrder, TaskReport
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings
from corral.runtime.local.state_dir import OrderRecord, StartRecord, TaskRecord, TaskState
from tests.accounts import OWN
from tests.runtime.reports import Collector, order, until

NODE = NodeSpec("n1")


class Harness:
    """``open`` again after ``close`` is a restart of the server."""

    def __init__(self, data: Path, **settings: object) -> None:
        self.data = data
        self._settings = LocalSettings(**{"scan_ms": 50, "account": OWN, "peer_grace_ms": 300, **settings})  # type: ignore[arg-type]
        self._count = 0
        self._epoch = 0
        self.open()

    def open(self) -> None:
        self.collector = Collector()
        self.backend = LocalBackend(self.data, NODE, self._settings)
        self._epoch += 1
        self.backend.open(self.collector, self._epoch)

    def key(self) -> TaskKey:
        self._count += 1
        return TaskKey(f"{self._count}/main", 1, 0)

    def launch(self, *command: str, **rest: object) -> TaskKey:
        key = self.key()
        self.backend.launch([self.order(key, *command, **rest)])
        return key

    def order(self, key: TaskKey, *command: str, **rest: object) -> TaskOrder:
        return order(key, *command, epoch=self._epoch, **rest)

    def sh(self, script: str, **rest: object) -> TaskKey:
        return self.launch("sh", "-c", script, **rest)

    def python(self, script: str, **rest: object) -> TaskKey:
        return self.launch(sys.executable, "-I", "-S", "-c", script, **rest)

    def ran(self, script: str, **rest: object) -> tuple[TaskReport, str]:
        """How a shell script ended and what it said."""
        key = self.sh(script, **rest)
        down = self.collector.down(key)
        return down, self.log(key)

    def log(self, key: TaskKey, stream: str = "stdout") -> str:
        part = self.backend.read_log(key, stream, 0, 1 << 22)
        return part.data.decode("utf-8", "replace") if part is not None else ""

    def says(self, key: TaskKey, text: str, stream: str = "stdout") -> None:
        until(lambda: text in self.log(key, stream))

    def state(self, key: TaskKey) -> Path:
        return self.data / "tasks" / "state" / f"{key.gang.replace('/', '%2F')}@{key.attempt}.{key.task}"

    def record(self, key: TaskKey) -> TaskRecord:
        return TaskState(str(self.state(key))).record()

    def started(self, key: TaskKey) -> StartRecord:
        record = self.record(key).started()
        assert record is not None
        return record

    def ordered(self, key: TaskKey) -> OrderRecord:
        record = self.record(key).order()
        assert record is not None
        return record

    def close(self) -> None:
        for key in self.backend.known():
            self.backend.kill(key)
        for key in self.backend.known():
            self.collector.down(key)
        self.backend.close()


def processes(*envs: dict[str, str]) -> Sequence[Process]:
    return tuple(Process(tuple(env.items())) for env in envs)


def is_alive(pid: int) -> bool:
    """A zombie is not: its parent is only slow to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


IS_ROOT = os.geteuid() == 0
