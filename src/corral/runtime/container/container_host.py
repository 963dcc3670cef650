"""The containers of one installation on this machine: turns orders into requests, and removes leftover containers.

The part that a local backend uses for orders with an image (`local.containers.Containers`). Knows the container
runtime. A running container is the business of its supervisor.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from corral.core.work import Work
from corral.runtime.base import TaskOrder
from corral.runtime.container import orders
from corral.runtime.container.discovery import RuntimeFacts, find, sockets
from corral.runtime.container.settings import ContainerSettings
from corral.runtime.container.task.api import ContainerRuntime, ContainerRuntimeError, quoted
from corral.runtime.device_nodes import device_nodes
from corral.runtime.local.orders import NO_ENGINE
from corral.runtime.local.settings import LocalSettings

_log = logging.getLogger(__name__)
_CLEAN_S = 20.0
_CLOSE_S = 5.0


class ContainerHost:
    """``nodes``: the device nodes of GPUs by UUID, read once, for the first order with GPUs. ``facts``: the container
    runtime, if it is already known."""

    def __init__(
        self,
        settings: ContainerSettings | None = None,
        limits: LocalSettings | None = None,
        nodes: Callable[[], Mapping[str, str]] = device_nodes,
        facts: RuntimeFacts | None = None,
    ) -> None:
        self._settings, self._limits = settings or ContainerSettings(), limits or LocalSettings()
        self._nodes = nodes
        self._known_nodes: Mapping[str, str] | None = None
        self._facts, self._looking = facts, threading.Lock()
        self._has_looked = False
        self._data = ""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def facts(self) -> RuntimeFacts | None:
        """The container runtime. While there is none, each call looks for it again."""
        with self._looking:
            if self._facts is None:
                self._facts = find(self._settings.socket)
                self._has_looked = True
            return self._facts

    # --- called by the backend ----------------------------------------------------------------------------------------

    def open(self, data: str) -> None:
        """``data`` identifies the installation."""
        self._data = data

    def keep_clean(self, is_live: Callable[[str], bool]) -> None:
        """Remove containers of this installation that belong to no live task, now and from time to time."""
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._keep_clean, args=(self._stop, is_live), name="containers", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)

    def refusal(self, order: TaskOrder) -> str:
        return orders.refusal(order.image, order.mounts, self._settings)

    def cannot_run(self, work: Work) -> str:
        """Includes that there is no container runtime, once it was looked for."""
        is_missing = bool(work.image) and self._facts is None and self._has_looked
        return orders.refusal(work.image, work.mounts, self._settings) or (NO_ENGINE if is_missing else "")

    def unenforced(self, order: TaskOrder) -> list[str]:
        return orders.unenforced(order, self._facts) if self._facts is not None else []

    def container_request(self, order: TaskOrder) -> dict[str, Any] | None:
        """The request for the supervisor. None: there is no container runtime here now."""
        facts = self.facts
        if facts is None:
            return None
        if self._known_nodes is None and order.gpus:
            self._known_nodes = self._nodes()
        nodes = self._known_nodes or {}
        return orders.container_request(
            order, orders.ContainerSite(facts, self._settings, self._limits, self._data, nodes)
        )

    def runtime(self) -> str:
        facts = self._facts
        return "" if facts is None else f"{facts.kind} {facts.version}{', rootless' if facts.is_rootless else ''}"

    def private(self) -> list[str]:
        """Looks for the runtime if nothing has yet: its directories must be hidden from the first task, too."""
        facts = self._facts if self._has_looked else self.facts
        known = () if facts is None else (facts.socket, *facts.places)
        return list(dict.fromkeys(filter(None, (*sockets(), self._settings.socket, *known))))

    def end(self, name: str) -> None:
        """Remove the container of a task whose supervisor has died. Raises OSError when it may still be there."""
        facts = self.facts
        if facts is None:
            raise OSError(f"cannot remove the container of {name}: the container runtime does not answer")
        try:
            _remove(ContainerRuntime(facts.socket), orders.container_name(self._data, name))
        except ContainerRuntimeError as fault:
            raise OSError(fault.why) from fault

    def label(self) -> dict[str, str]:
        """The label of all containers of this installation."""
        return {orders.LABEL_DATA: self._data}

    # --- leftovers ----------------------------------------------------------------------------------------------------

    def sweep(self, is_live: Callable[[str], bool]) -> list[str]:
        """Remove containers of this installation that belong to no live task. Returns their names."""
        facts = self.facts
        if facts is None:
            return []
        engine = ContainerRuntime(facts.socket)
        wanted = quoted(json.dumps({"label": [f"{name}={value}" for name, value in self.label().items()]}))
        removed = []
        for found in engine.call("GET", f"/containers/json?all=1&filters={wanted}", timeout_s=_CLEAN_S) or ():
            name = (found.get("Labels") or {}).get(orders.LABEL_NAME, "")
            if not is_live(name):
                _remove(engine, found["Id"])
                removed.append(name)
        return removed

    def _keep_clean(self, stop: threading.Event, is_live: Callable[[str], bool]) -> None:
        while not stop.is_set():
            try:
                for name in self.sweep(is_live):
                    _log.warning("removed a container without a task: %s", name)
            except ContainerRuntimeError as fault:
                _log.info("cannot list containers: %s", fault.why)
            except Exception:
                _log.exception("removing containers without a task failed; retrying")
            stop.wait(self._settings.sweep_s)


def _remove(engine: ContainerRuntime, container: str) -> None:
    """Kill, then remove: removing alone would ask a running container to stop first. Errors that say it is gone are
    ignored."""
    for method, path in (("POST", "kill?signal=9"), ("DELETE", "?force=1&v=1")):
        try:
            joint = "" if path.startswith("?") else "/"
            engine.call(method, f"/containers/{quoted(container)}{joint}{path}", timeout_s=_CLEAN_S)
        except ContainerRuntimeError as fault:
            if fault.status not in (404, 409) and not (method == "POST" and fault.status == 500):
                raise
