"""What an agent's watch finds out reaches the server: sick GPUs with their reasons, what the machine is made of."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from corral.agent.startup import begin
from corral.core.cluster.topology import NodeSpec
from corral.core.model import Health
from corral.core.work import Work
from corral.health.fault_injection import InjectedFault, InjectedXid, health_folder, write_drills
from corral.runtime.base import DetailsReport, HealthReport, PaceReport, Process, TaskKey
from corral.runtime.container.settings import ContainerSettings
from corral.runtime.gpus import simulated
from corral.runtime.local.settings import LocalSettings
from corral.wire.health import HealthSettings
from tests.accounts import OWN
from tests.agent.connections import DirectLine
from tests.agent.one_agent import FleetServer, until_heard
from tests.runtime.reports import Collector, now_ms, order, until
from tests.runtime.test_container_runtime import LIMITS, Played

NODE = NodeSpec("n1", simulated("8xH100"))
SETTINGS = HealthSettings(interval_ms=10_000, clock_jump_ms_max=0)


def failed(collector: Collector) -> list[HealthReport]:
    return [each for each in collector.heard if isinstance(each, HealthReport) and each.health is Health.FAILED]


def test_a_sick_gpu_of_a_node_is_reported_at_once_and_again_to_every_new_server(tmp_path: Path) -> None:
    line, collector = DirectLine(), Collector()
    agent = begin(tmp_path / "agent", NODE, line, SETTINGS)
    server = FleetServer(tmp_path / "server", line)
    try:
        server.open(collector, 1)
        until_heard(server, ["n1"])
        until(lambda: any(isinstance(each, DetailsReport) and each.node == "n1" for each in collector.heard))
        began = time.monotonic()
        write_drills(health_folder(tmp_path / "agent"), {3: InjectedFault(xids=(InjectedXid(79, now_ms() + 1),))})
        until(lambda: bool(failed(collector)))
        assert time.monotonic() - began < 5, "long before the next look"
        assert [(each.node, each.gpu) for each in failed(collector)] == [("n1", 3)]
        assert failed(collector)[0].why.startswith("Xid 79: the GPU has fallen off the bus")
        server.close()

        server, collector = FleetServer(tmp_path / "server", line), Collector()
        server.open(collector, 2)
        until(lambda: bool(failed(collector)) and any(isinstance(each, DetailsReport) for each in collector.heard))
    finally:
        server.close()
        agent.stop()


def test_what_a_node_lacks_is_reported_when_it_changes(tmp_path: Path) -> None:
    """An engine that is not there, named in the agent's configuration; and then is."""
    line, collector = DirectLine(), Collector()
    socket = tmp_path / "engine.sock"
    containers = ContainerSettings(socket=str(socket), sweep_s=0.05)
    agent = begin(tmp_path / "agent", NODE, line, HealthSettings(is_on=False), None, containers)
    server = FleetServer(tmp_path / "server", line)
    work = Work(command=("true",), image="busybox")
    try:
        server.open(collector, 1)
        until(lambda: "no container runtime answers" in server.cannot_run(work))
        assert "no container runtime answers" in server.lacks("n1")["images"]
        assert server.separation("n1")["signals"].split(":")[0] in ("account", "Landlock", "nothing")
        assert "containers" not in server.separation("n1")
        engine = Played(socket, "Libpod/5.0.0 (linux)", {"/info": LIMITS})
        until(lambda: server.cannot_run(work) == "")
        until(lambda: server.separation("n1").get("containers") == "container runtime (podman 5.0.0)")
        assert server.separation("nowhere") == {}
        engine.close()
    finally:
        server.close()
        agent.stop()


def test_how_long_ranks_are_busy_reaches_the_server(tmp_path: Path) -> None:
    """Reported by a script with the SDK, read by the backend, sent with a heartbeat."""
    line, collector, key = DirectLine(), Collector(), TaskKey("1/main", 1, 0)
    settings = LocalSettings(account=OWN, scan_ms=50, pace_ms=50)
    agent = begin(tmp_path / "agent", NODE, line, HealthSettings(is_on=False), settings)
    server = FleetServer(tmp_path / "server", line)
    script = "import time; from corral import training; training.step_done(0.25); time.sleep(60)"
    try:
        server.open(collector, 1)
        until_heard(server, ["n1"])
        path = str(Path(__file__).resolve().parents[2] / "src")
        ranks = tuple(Process((("RANK", str(rank)),)) for rank in (4, 5))
        server.launch([order(key, sys.executable, "-c", script, env=(("PYTHONPATH", path),), processes=ranks)])
        until(lambda: PaceReport(key, "n1", ((4, 250), (5, 250))) in collector.heard)
        server.kill(key)
        collector.down(key)
    finally:
        server.close()
        agent.stop()
