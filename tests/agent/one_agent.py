"""A fleet of one agent with real processes, for tests: the agent stays, servers come and go."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path

from corral.agent.agent import Agent
from corral.agent.agent_dir import AgentDir
from corral.agent.server_connection import ServerConnection
from corral.core.cluster.topology import NodeSpec
from corral.remote.backend import RemoteBackend
from corral.remote.settings import RemoteSettings
from corral.runtime.base import NodeReport, Report, TaskOrder, Tell
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings
from corral.runtime.local.task.lease import LEASE, now_ms
from tests.accounts import OWN
from tests.agent.connections import DirectLine
from tests.agent.lease_table import InProcessKeeper

SETTINGS = RemoteSettings(lease_ms=20_000, heartbeat_ms=500, margin_ms=1_000)
NODE = NodeSpec("n1")


def make_agent(data: Path, line: ServerConnection, node: NodeSpec = NODE, poll_ms: int = 2_000) -> Agent:
    place = AgentDir(data)
    local = LocalBackend(data, node, LocalSettings(account=OWN, scan_ms=100, has_lease=True))
    (data / "run").mkdir(parents=True, exist_ok=True)
    lease_file = data / "run" / LEASE
    return Agent(node.name, local, line, place.fence(), lease_file, place.next_session(), poll_ms=poll_ms)


class FleetServer(RemoteBackend):
    """As a server has it: swept while it is open, and reached by the line."""

    def __init__(self, data: Path, line: DirectLine, settings: RemoteSettings = SETTINGS, hears_nodes: bool = False):
        super().__init__(data, settings)
        self._line, self._hears_nodes = line, hears_nodes

    def open(self, tell: Tell, epoch: int) -> None:
        def only_tasks(report: Report) -> None:
            if self._hears_nodes or not isinstance(report, NodeReport):
                tell(report)

        self.expect(NODE, False, maybe=list(self._line.ordered))  # a real server knows that from its journal
        super().open(only_tasks, epoch)
        self._keeping = InProcessKeeper(self, epoch, now_ms)
        self._ending = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, daemon=True)
        self._sweeper.start()
        self._line.keeper, self._line.fleet = self._keeping, self

    def launch(self, orders: Sequence[TaskOrder]) -> None:
        self._line.ordered |= {order.key: None for order in orders}
        super().launch(orders)

    def _sweep(self) -> None:
        while not self._ending.wait(0.05):
            self._keeping.sweep()

    def close(self) -> None:
        """What was asked for has arrived: a real server, started again, would ask for it again."""
        end = time.monotonic() + 5
        while any(member.wanted and member.version > member.has_version for member in self._members.values()):
            if time.monotonic() > end:
                break
            time.sleep(0.005)
        self._line.fleet = None
        self._ending.set()
        self._sweeper.join()
        super().close()


def until_heard(fleet: RemoteBackend, nodes: Sequence[str], patience_s: float = 20.0) -> None:
    end = time.monotonic() + patience_s
    while not all(fleet.is_heard(node) for node in nodes):
        assert time.monotonic() < end, "no message from an agent"
        time.sleep(0.005)
