"""Containers of one installation on this machine: orders turned into requests, and what nobody knows removed.

The part that a local backend asks about orders with an image (`local.containers.Containers`). Knows the engine; what
happens to a container while it runs is its supervisor's matter.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from corral.backends.base import TaskOrder
from corral.backends.container import orders
from corral.backends.container.devices import device_nodes
from corral.backends.container.engine import EngineFacts, find
from corral.backends.container.settings import ContainerSettings
from corral.backends.container.task.api import Engine, EngineFault, quoted
from corral.backends.local.orders import NO_ENGINE
from corral.backends.local.settings import LocalSettings
from corral.core.work import Work

_log = logging.getLogger(__name__)
_CLEAN_S = 20.0
_CLOSE_S = 5.0


class ContainerHost:
    """``nodes``: the device nodes of GPUs by UUID; asked once, when the first order with GPUs comes. ``facts``:
    the engine, where it was looked for before."""

    def __init__(
        self,
        settings: ContainerSettings | None = None,
        limits: LocalSettings | None = None,
        nodes: Callable[[], Mapping[str, str]] = device_nodes,
        facts: EngineFacts | None = None,
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
    def facts(self) -> EngineFacts | None:
        """The engine; looked for again as long as there is none."""
        with self._looking:
            if self._facts is None:
                self._facts = find(self._settings.socket)
                self._has_looked = True
            return self._facts

    # --- asked by the backend -----------------------------------------------------------------------------------------

    def open(self, data: str) -> None:
        """``data`` names the installation."""
        self._data = data

    def keep_clean(self, is_live: Callable[[str], bool]) -> None:
        """Remove containers of this installation that are of no live task, now and from time to time."""
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
        """Also that there is no engine, once it was looked for."""
        is_missing = bool(work.image) and self._facts is None and self._has_looked
        return orders.refusal(work.image, work.mounts, self._settings) or (NO_ENGINE if is_missing else "")

    def unenforced(self, order: TaskOrder) -> list[str]:
        return orders.unenforced(order, self._facts) if self._facts is not None else []

    def told(self, order: TaskOrder) -> dict[str, Any] | None:
        """For the supervisor; None: there is no engine here now."""
        facts = self.facts
        if facts is None:
            return None
        if self._known_nodes is None and order.gpus:
            self._known_nodes = self._nodes()
        nodes = self._known_nodes or {}
        return orders.told(order, orders.Ground(facts, self._settings, self._limits, self._data, nodes))

    def end(self, name: str) -> None:
        """The container of a task whose supervisor is no more. Raises OSError when it may still be there."""
        facts = self.facts
        if facts is None:
            raise OSError(f"no container engine answers, so that the container of {name} cannot be ended")
        try:
            _remove(Engine(facts.socket), orders.container_name(self._data, name))
        except EngineFault as fault:
            raise OSError(fault.why) from fault

    def label(self) -> dict[str, str]:
        """What all containers of this installation carry."""
        return {orders.LABEL_DATA: self._data}

    # --- leftovers ----------------------------------------------------------------------------------------------------

    def sweep(self, is_live: Callable[[str], bool]) -> list[str]:
        """Remove containers of this installation that are of no live task; their names."""
        facts = self.facts
        if facts is None:
            return []
        engine = Engine(facts.socket)
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
                    _log.warning("a container that no task owns was removed: %s", name)
            except EngineFault as fault:
                _log.info("containers could not be looked through: %s", fault.why)
            except Exception:
                _log.exception("the sweep of containers met a fault and goes on")
            stop.wait(self._settings.sweep_s)


def _remove(engine: Engine, container: str) -> None:
    """Kill, then remove: to remove what runs would ask it to stop first. Both may be too late, which is as good."""
    for method, path in (("POST", "kill?signal=9"), ("DELETE", "?force=1&v=1")):
        try:
            joint = "" if path.startswith("?") else "/"
            engine.call(method, f"/containers/{quoted(container)}{joint}{path}", timeout_s=_CLEAN_S)
        except EngineFault as fault:
            if fault.status not in (404, 409) and not (method == "POST" and fault.status == 500):
                raise
