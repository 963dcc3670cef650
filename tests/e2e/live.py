"""A whole server under test: started, asked, killed and started again by its process id.

Knows processes and HTTP, and nothing of how the server works inside.
"""

from __future__ import annotations

import http.client
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from corral.runtime.local.state_dir import TaskState

ROOT = Path(__file__).resolve().parents[2]
READY_S = 60.0


class Refused(Exception):
    """An answer that is not of the 200s."""

    def __init__(self, status: int, problem: Any) -> None:
        super().__init__(f"{status}: {problem}")
        self.status, self.problem = status, problem


class Unanswered(Exception):
    """The server was gone before it had answered; it is unknown whether the request was executed."""


class Live:
    """One data directory and the server on it, if one runs."""

    def __init__(self, data: Path, *, gpus: int = 8, port: int = 0, ahead_s: int = 0, health: str = "") -> None:
        self.data, self.gpus, self.port, self.ahead_s = data, gpus, port or free_port(), ahead_s
        self.health = health  # settings of the watch over the machine, in JSON; empty: none watches
        self.account: int | None = None  # account to run as; None: as the tests
        self.python, self.env = sys.executable, dict[str, str]()  # what runs it; beside the variables of the tests
        self.more: list[str] = []  # further words for the server
        self.process: subprocess.Popen[bytes] | None = None
        self.ready_ms = 0.0
        self._token = ""

    # ---- its life ----------------------------------------------------------------------------------------------

    def begin(self) -> subprocess.Popen[bytes]:
        """Start the process, and return at once."""
        self.data.mkdir(parents=True, exist_ok=True)
        words = [self.python, "-m", "tests.e2e.serving", str(self.data), str(self.port)]
        words += ["--gpus", str(self.gpus), "--ahead-s", str(self.ahead_s), "--health", self.health]
        words += self.more
        with (self.data / "server.log").open("ab") as errors:
            self.process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=environment() | self.env,
                stderr=errors,
                start_new_session=True,
                user=self.account,
                group=None if self.account is None else pwd.getpwuid(self.account).pw_gid,
                extra_groups=None if self.account is None else [],
            )
        return self.process

    def start(self) -> None:
        """Start it; returns when it serves. ``ready_ms``: how long that took."""
        began = time.monotonic()
        process = self.begin()
        while not self.is_serving():
            if process.poll() is not None:
                raise AssertionError(f"the server ended with {process.returncode}:\n{self.errors()}")
            if time.monotonic() - began > READY_S:
                self.kill()
                raise AssertionError(f"the server does not serve after {READY_S:g} s:\n{self.errors()}")
            time.sleep(0.005)
        self.ready_ms = (time.monotonic() - began) * 1000

    def kill(self) -> None:
        """SIGKILL to the server alone; whatever it has started is not touched."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Ask it to end, as an operator would. Its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        code = self.process.wait(60)
        self.process = None
        return code

    def end_tasks(self, within_s: float = 30) -> None:
        """End what a killed server has left running. Its spawner may still be starting a task that was ordered just
        before, whose supervisor does not listen yet: asks again until none is left."""
        assert self.process is None, "the server could start others"
        end = time.monotonic() + within_s
        while (left := self._unfinished()) and time.monotonic() < end:
            for state in left:
                state.control(b"kill the test is over\n")
            time.sleep(0.05)

    def _unfinished(self) -> list[TaskState]:
        """Tasks with a supervisor or with a spawner that may give them one."""
        is_spawning = self.spawner() is not None
        states = [TaskState(str(folder)) for folder in (self.data / "tasks" / "state").glob("*")]
        return [state for state in states if state.record().exit() is None and (is_spawning or state.is_supervised())]

    def errors(self) -> str:
        return (self.data / "server.log").read_text()[-3000:]

    # ---- asking ------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def token(self) -> str:
        if not self._token:
            self._token = json.loads((self.data / "credentials.json").read_bytes())["token"]
        return self._token

    def is_serving(self) -> bool:
        try:
            return bool(self.ask("GET", "/v1/health", timeout=2)["status"] == "ok")
        except (Unanswered, Refused):
            return False

    def ask(self, method: str, path: str, body: Any = None, *, timeout: float = 30, **headers: str) -> Any:
        """One request on a connection of its own."""
        with self.connection(timeout) as connection:
            return self.ask_on(connection, method, path, body, **headers)

    @contextmanager
    def connection(self, timeout: float = 30) -> Iterator[http.client.HTTPConnection]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            yield connection
        finally:
            connection.close()

    def ask_on(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str
    ) -> Any:
        said = {name.replace("_", "-"): value for name, value in headers.items() if value}
        if path != "/v1/health":
            said["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request(method, path, None if body is None else json.dumps(body), said)
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException) as gone:
            connection.close()
            raise Unanswered(repr(gone)) from None
        found = json.loads(text) if text else None
        if answer.status >= 300:
            raise Refused(answer.status, found)
        return found

    def submit(self, document: Any, key: str = "") -> str:
        return str(self.ask("POST", "/v1/jobs", document, Idempotency_Key=key)["id"])

    def job(self, id: str) -> Any:
        return self.ask("GET", f"/v1/jobs/{id}")

    def jobs(self, **query: str) -> list[Any]:
        """All of them, newest first."""
        said = "".join(f"&{name}={value}" for name, value in query.items())
        found, cursor = [], ""
        while True:
            page = self.ask("GET", f"/v1/jobs?limit=500{said}{cursor}")
            found += page["jobs"]
            if not page.get("cursor"):
                return found
            cursor = f"&cursor={page['cursor']}"

    def until_over(self, ids: list[str], within_s: float = 60) -> dict[str, Any]:
        """Wait until these are over."""
        end, found = time.monotonic() + within_s, dict[str, Any]()
        while len(found) < len(ids):
            for id in ids:
                if id not in found and (view := self.job(id))["state"] in ("succeeded", "failed", "cancelled"):
                    found[id] = view
            assert time.monotonic() < end, f"not over after {within_s:g} s: {sorted(set(ids) - set(found))[:10]}"
            time.sleep(0.02)
        return found

    # ---- the processes around it -------------------------------------------------------------------------------

    def planner(self) -> int | None:
        """The process id of the planner that the server has now."""
        assert self.process is not None
        module = b"corral.server.planner.process"
        return next((pid for pid in children(self.process.pid) if module in command(pid)), None)

    def spawner(self) -> int | None:
        """The spawner leaves the server's tree, and supervisors look like it: it is the one that holds the lock."""
        with suppress(OSError):
            file = os.stat(self.data / "run" / "spawner.lock").st_ino
            for line in Path("/proc/locks").read_text().splitlines():
                words = line.split()
                if words[1] == "FLOCK" and words[5].endswith(f":{file}"):
                    return int(words[4])
        return None

    def supervisors(self) -> dict[int, str]:
        """Of tasks that run: process id to gang."""
        found = {}
        for folder in (self.data / "tasks" / "state").glob("*"):
            record = TaskState(str(folder)).record()
            order, started = record.order(), record.started()
            if order is not None and started is not None and record.exit() is None:
                found[started.supervisor] = order.order.key.gang
        return found


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def is_alive(pid: int) -> bool:
    """It runs; one that has ended and was not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False
