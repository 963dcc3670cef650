"""A test cluster on one machine: a server and agents as processes, each connected over a link that can be cut.

For tests, and for operators who want to see what a failure does. Knows processes and their names; ends only processes
that it started. GPUs are simulated; tasks are real processes of this machine.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from corral.agent.agent_dir import AgentCredential, AgentDir
from corral.agent.join_servers import JoinServers
from corral.agent.server_connection import NoAnswer
from corral.cli.fleet.links import NamespaceLink, NetworkLink, Proxies, ProxyLink
from corral.client.blocking import Client
from corral.client.credentials import Credentials, read_credentials
from corral.client.errors import ClientError
from corral.remote.messages import JoinAnswer, JoinBody

SERVER = "server"
GATEWAY, PLANNER = "corral.server.gateway.process", "corral.server.planner.process"
_READY_S = 60.0
_MUCH_CPU, _MUCH_MIB = "1000", "4000000"


class BedFailed(Exception):
    """The test cluster did not start; the message names the log with the reason."""


class Testbed:
    """Nodes are called n1, n2, ...; each has a folder of that name, with the log of its agent in ``agent.log``."""

    __test__ = False  # pytest would collect a class of this name

    def __init__(
        self, folder: Path, nodes: int = 4, gpus: str = "8xH100", lease_ms: int = 8_000, has_namespaces: bool = False
    ) -> None:
        self.folder = folder.absolute()
        self.gpus = gpus
        self.lease_ms = lease_ms
        self.has_namespaces = has_namespaces
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.port, self.agent_port = _free_ports()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment: dict[str, str] = {}  # added to the environment of the processes
        self.links: dict[str, NetworkLink] = {}
        self._proxies: Proxies | None = None

    # --- starting and stopping ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Return when every node takes jobs."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self.start_server()
            self._proxies = Proxies()
            for number, node in enumerate(self.nodes, start=1):
                self.links[node] = self._link(node, number)
                self._join(node)
                self.start_agent(node)
            self.until_up(self.nodes)
        except BaseException:
            self.stop()
            raise

    def _link(self, node: str, number: int) -> NetworkLink:
        if self.has_namespaces:
            return NamespaceLink(node, number, self.port, self.agent_port)
        assert self._proxies is not None
        return ProxyLink(self._proxies, self.port, self.agent_port)

    def stop(self) -> None:
        """Stop all processes except the tasks, which end by themselves within a lease."""
        for name in [*self.nodes, SERVER]:
            self.send(name, signal.SIGCONT)
            self.send(name, signal.SIGTERM)
        for name, process in self.processes.items():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                self.send(name, signal.SIGKILL)
                process.wait(20)
        for link in self.links.values():
            link.close()
        if self._proxies is not None:
            self._proxies.close()
        self.processes = {}
        self.links = {}
        self._proxies = None

    def start_server(self) -> None:
        host = "0.0.0.0" if self.has_namespaces else "127.0.0.1"
        words = ["up", "--data", str(self.folder / SERVER), "--listen", f"{host}:{self.port}", "--cluster"]
        words += ["--agent-port", str(self.agent_port), "--lease", f"{self.lease_ms}ms"]
        words += ["--allow-plain-http"] if self.has_namespaces else []
        self._begin(SERVER, [], words)
        end = time.monotonic() + _READY_S
        while not self._is_serving():
            self._check_alive(SERVER, end)
            time.sleep(0.02)

    def start_agent(self, node: str) -> None:
        words = ["agent", "--data", str(self.folder / node), "--fake-gpus", self.gpus, "--cpus", _MUCH_CPU]
        self._begin(node, self.links[node].words(), [*words, "--memory-mib", _MUCH_MIB])

    def _begin(self, name: str, before: Sequence[str], words: Sequence[str]) -> None:
        folder = self.folder / name
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [*before, sys.executable, "-m", "corral", *words],
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        package = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH", "")])])
        return {**os.environ, "PYTHONPATH": path, "XDG_CONFIG_HOME": str(self.folder / "config"), **self.environment}

    def _log(self, name: str) -> Path:
        return self.folder / name / ("server.log" if name == SERVER else "agent.log")

    def _check_alive(self, name: str, end: float) -> None:
        if self.processes[name].poll() is not None or time.monotonic() > end:
            tail = self._log(name).read_text(errors="replace")[-2000:]
            raise BedFailed(f"{name} did not start; {self._log(name)} ends with:\n{tail}")

    # --- requests ---------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def credentials_file(self) -> Path:
        return self.folder / "config" / "corral" / "credentials.json"

    def credentials(self) -> Credentials:
        found = read_credentials(self.credentials_file)
        assert found is not None
        return found

    def client(self, patience_s: float = 30.0) -> Client:
        return Client(self.url, self.credentials().token, patience_s=patience_s)

    def _is_serving(self) -> bool:
        if not self.credentials_file.exists():
            return False
        try:
            with self.client(patience_s=0) as client:
                return client.health().status == "ok"
        except ClientError:
            return False

    def _join(self, node: str) -> None:
        if AgentDir(self.folder / node).has_credential():
            return
        with self.client() as client:
            token = client.make_join_token(node).token
        link = self.links[node]
        try:
            answer = JoinServers((self.url,), token).join(JoinBody(node), JoinAnswer)
        except NoAnswer as lost:
            raise BedFailed(f"{node} could not join: {lost}") from None
        credential = AgentCredential(node, (link.url,), answer.token, gateways=(link.gateway,))
        AgentDir(self.folder / node).keep_credential(credential)

    def until_up(self, nodes: Sequence[str], within_s: float = _READY_S) -> None:
        """Wait until these nodes take jobs."""
        end = time.monotonic() + within_s
        while True:
            with self.client() as client:
                there = {node.name for node in client.nodes().nodes if node.open and not node.lost}
            missing = [node for node in nodes if node not in there]
            if not missing:
                return
            self._check_alive(missing[0], end)
            time.sleep(0.05)

    # --- faults --------------------------------------------------------------------------------------------------

    def partition(self, node: str) -> None:
        self.links[node].cut()

    def heal(self, node: str) -> None:
        self.links[node].mend()

    def slow(self, node: str, ms: int) -> None:
        self.links[node].slow(ms)

    def kill(self, name: str) -> None:
        """The agent or the server; tasks are not touched."""
        self.send(name, signal.SIGKILL)
        if name in self.processes:
            self.processes[name].wait(20)

    def freeze(self, name: str) -> None:
        self.send(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        self.send(name, signal.SIGCONT)

    def child(self, module: str) -> int:
        """The process of the server that runs this module."""
        server = self.processes[SERVER].pid
        for each in Path(f"/proc/{server}/task").glob("*/children"):
            for pid in each.read_text().split():
                if module.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
                    return int(pid)
        raise BedFailed(f"the server has no process of {module}")

    def restart(self, name: str) -> None:
        self.kill(name)
        if name == SERVER:
            self.start_server()
        else:
            self.start_agent(name)

    def send(self, name: str, number: signal.Signals) -> None:
        process = self.processes.get(name)
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                process.send_signal(number)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]
