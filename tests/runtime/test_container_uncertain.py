"""An engine that is asked to start a container and says nothing: the task is over once nothing of it can run."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral.core.cluster.topology import NodeSpec
from corral.core.work import EarlySignal
from corral.runtime.base import Phase, TaskKey, TaskReport
from corral.runtime.container.container_host import ContainerHost
from corral.runtime.container.discovery import RuntimeFacts
from corral.runtime.container.settings import ContainerSettings
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings
from tests.accounts import OWN
from tests.runtime.reports import Collector, now_ms, order, until

KEY = TaskKey("1/main", 1, 0)


class Hanging:
    """Makes containers, and never answers a start. ``runs``: what it says of the container when it is asked later."""

    def __init__(self, path: Path) -> None:
        self.runs, self.asked = True, list[str]()
        self._held: list[socket.socket] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(32)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            request = connection.recv(1 << 16).decode().split("\r\n")[0]
            if not request:  # a client only tested the connection
                connection.close()
                continue
            self.asked.append(request)
            if "/start" in request or "/attach" in request:
                if "/attach" in request:
                    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                self._held.append(connection)
                continue
            state = {"Running": self.runs, "Pid": 0, "ExitCode": 137, "Status": "x", "OOMKilled": False}
            body = json.dumps({"Id": "c1", "State": state}).encode()
            connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n" + body)
            connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        for each in (self._socket, *self._held):
            each.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Hanging]:
    engine = Hanging(tmp_path / "engine.sock")
    yield engine
    engine.close()


def kill(backend: LocalBackend) -> None:
    backend.kill(KEY)


def warn(backend: LocalBackend) -> None:
    backend.warn(KEY, now_ms() + 600_000, "preempted")


@pytest.mark.parametrize("early", [None, EarlySignal("SIGUSR1", 60_000)], ids=["no-signal", "early-signal"])
@pytest.mark.parametrize("end", [kill, warn])
def test_a_task_is_not_reported_over_while_its_container_may_run(
    tmp_path: Path, engine: Hanging, end: Callable[[LocalBackend], None], early: EarlySignal | None
):
    """A warning ends it as well: before the start there is nothing to save."""
    facts = RuntimeFacts(
        socket=str(tmp_path / "engine.sock"), kind="docker", version="1", is_rootless=False, cgroup_version=2,
        has_device_requests=True, unenforced={},
    )  # fmt: skip
    collector = Collector()
    host = ContainerHost(ContainerSettings(sweep_s=600), facts=facts)
    backend = LocalBackend(tmp_path / "data", NodeSpec("n1"), LocalSettings(account=OWN, scan_ms=50), host)
    backend.open(collector, 1)
    backend.launch([order(KEY, "true", image="busybox", early_signal=early)])
    until(lambda: any("/start" in each for each in engine.asked))
    end(backend)
    until(lambda: sum("/kill" in each for each in engine.asked) >= 2)
    assert not [r for r in collector.of(KEY) if isinstance(r, TaskReport) and r.phase is Phase.DOWN]
    engine.runs = False
    begun = time.monotonic()
    assert collector.down(KEY).signal == 9
    assert time.monotonic() - begun < 10
    until(lambda: any(each.startswith("DELETE") for each in engine.asked))
    backend.close()
