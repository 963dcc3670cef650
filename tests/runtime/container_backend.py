"""A local backend with containers, on a Podman of the tests."""

from pathlib import Path
from typing import Any

from corral.runtime.base import TaskKey, TaskOrder
from corral.runtime.container.container_host import ContainerHost
from corral.runtime.container.settings import ContainerSettings
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings
from tests.accounts import OWN
from tests.runtime.local_backend import NODE, Harness
from tests.runtime.podman import IMAGE, Podman
from tests.runtime.reports import Collector, order


class ContainerHarness(Harness):
    """As `Harness`; every order is in the image of the tests unless it says otherwise. ``nodes``: of GPUs."""

    def __init__(
        self,
        data: Path,
        podman: Podman,
        nodes: dict[str, str] | None = None,
        quota: bool = False,
        **settings: Any,
    ) -> None:
        self.podman, self.nodes = podman, nodes or {}
        self.containers = ContainerSettings(**{"pull": "never", "sweep_s": 0.2, **settings})
        self._limits = LocalSettings(account=OWN, scan_ms=50, peer_grace_ms=300, pids_max=100, has_cpu_quota=quota)
        super().__init__(data)

    def open(self) -> None:
        self.collector = Collector()
        self.host = ContainerHost(self.containers, self._limits, lambda: self.nodes, self.podman.facts)
        self.backend = LocalBackend(self.data, NODE, self._limits, self.host)
        self._epoch += 1
        self.backend.open(self.collector, self._epoch)

    def order(self, key: TaskKey, *command: str, **rest: object) -> TaskOrder:
        return order(key, *command, epoch=self._epoch, **{"image": IMAGE, **rest})

    def names(self) -> list[str]:
        """Of all containers of this installation."""
        mine = self.host.label()
        return [
            each["Labels"]["corral.gang"] for each in self.podman.containers() if each["Labels"].items() >= mine.items()
        ]

    def pid(self, key: TaskKey) -> int:
        """Of the first process of its container."""
        container = next(c for c in self.podman.containers() if c["Labels"].get("corral.gang") == key.gang)
        return int(self.inspect(container["Id"])["State"]["Pid"])

    def inspect(self, container: str) -> dict[str, Any]:
        found: dict[str, Any] = self.podman.engine.call("GET", f"/containers/{container}/json")
        return found
