"""A server in a process of its own, on simulated GPUs: what the tests of whole servers start.

`python -m tests.e2e.serving DATA PORT [--gpus N]`. Prints nothing; ends as `serve` does. `--ahead-s`: by how much its
wall clock is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import msgspec

from corral.core.accounts.identity import AccountRules
from corral.core.cluster.resources import Gpu, amounts
from corral.core.cluster.topology import NodeSpec
from corral.health.monitor import Monitor
from corral.health.watched import WatchedBackend
from corral.kubernetes.pod_backend import PodBackend
from corral.runtime.base import Backend
from corral.runtime.container.container_host import ContainerHost
from corral.runtime.container.settings import ContainerSettings
from corral.runtime.inventory import inventory
from corral.runtime.local.backend import LocalBackend
from corral.server.main import CannotStart, Options, serve
from corral.store.journal import JournalBroken, JournalBusy, JournalUnusable
from corral.wire.brokers.intake_rules import IntakeRules
from corral.wire.health import HealthSettings
from corral.wire.pods.pod_settings import PodSettings
from tests.accounts import VARIABLE

CPUS, MEMORY_MIB = 64, 512_000


def node(gpus: int = 8) -> NodeSpec:
    """A machine of a common size, whatever this one has."""
    uuids = tuple(Gpu(f"SIM-H100-{n}", "H100", 81_559) for n in range(gpus))
    return NodeSpec("here", uuids, amounts({"cpu_milli": CPUS * 1000, "memory_mib": MEMORY_MIB}))


def backend(data: Path, here: NodeSpec, health: str, engine: str) -> Backend:
    containers = ContainerHost(ContainerSettings(socket=engine, pull="never")) if engine else None
    local = LocalBackend(data, here, None, containers)
    if not health:
        return local
    return WatchedBackend(local, Monitor(here, data, msgspec.json.decode(health, type=HealthSettings)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("port", type=int)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--ahead-s", type=int, default=0)
    parser.add_argument("--health", default="", help="settings of the watch in JSON; without it there is none")
    parser.add_argument("--database", default="")
    parser.add_argument("--tasks", type=Path, help="where tasks are kept, if not with the other data")
    parser.add_argument("--account", default=os.environ.get(VARIABLE, ""), help="for users who have none")
    parser.add_argument("--cancel-after-ms", type=int, default=86_400_000)
    parser.add_argument("--lease-s", type=float, default=5.0)
    parser.add_argument("--engine", default="", help="the socket of a container runtime")
    parser.add_argument("--pods", type=Path, help="tasks are pods, with these settings in JSON")
    parser.add_argument("--real", action="store_true", help="the GPUs of this machine, and no simulated ones")
    parser.add_argument("--intake", default="", help="the address of a broker")
    parser.add_argument("--broker-password-file", default="")
    asked = parser.parse_args()
    if asked.ahead_s:
        right = time.time_ns
        time.time_ns = lambda: right() + asked.ahead_s * 1_000_000_000
    options = Options(
        data=asked.data,
        credentials=asked.data / "credentials.json",
        port=asked.port,
        database=asked.database,
        lease_s=asked.lease_s,
        intake=IntakeRules(broker=asked.intake, password_file=asked.broker_password_file),
        accounts=AccountRules(default=asked.account, cancel_after_ms=asked.cancel_after_ms),
    )
    try:
        if asked.pods is not None:
            return serve(
                options, PodBackend(asked.data, msgspec.json.decode(asked.pods.read_bytes(), type=PodSettings))
            )
        here = inventory() if asked.real else node(asked.gpus)
        return serve(options, backend(asked.tasks or asked.data, here, asked.health, asked.engine))
    except (CannotStart, JournalBusy, JournalBroken, JournalUnusable) as wrong:
        print(wrong, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
