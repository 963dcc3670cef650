"""The nodes of the cluster as they change: what the watches show, turned into reports to the server.

Keeps Node objects, quotas, ResourceSlices and what pods of others request; `review` compares with what was reported
and returns the difference. Has no lock: the backend calls it with its own held, except for the views of watches, which
replace whole entries.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from corral.core.cluster.topology import NodeSpec
from corral.core.model import Health
from corral.kubernetes.cluster_api import Document
from corral.kubernetes.held_pods import HeldSeat, OtherPod, beyond_seats, seat_of
from corral.kubernetes.node_inventory import (
    Condition,
    PodRequest,
    gpu_conditions,
    is_fenced,
    is_ready,
    node_condition,
    node_spec,
    quota_gpus,
    request_of_pod,
)
from corral.runtime.base import HealthReport, NodePhase, NodeReport, Report, TaskKey
from corral.wire.pods.pod_settings import PodSettings

_AGAIN_S = 10.0  # conditions are repeated: a node may not have been admitted when they were reported first
_GONE_S = 5.0  # after which a missing node counts as removed: a kubelet that lives registers again


class KeptObjects:
    """Listens to a watch and keeps the objects by name."""

    def __init__(self, objects: dict[str, Document], on_change: Callable[[], None]) -> None:
        self._objects, self._on_change = objects, on_change

    def listed(self, objects: Sequence[Document]) -> None:
        found = {str(each["metadata"]["name"]): each for each in objects}
        for name in [name for name in list(self._objects) if name not in found]:
            del self._objects[name]
        self._objects.update(found)
        self._on_change()

    def changed(self, found: Document) -> None:
        self._objects[str(found["metadata"]["name"])] = found
        self._on_change()

    def removed(self, last: Document) -> None:
        self._objects.pop(str(last["metadata"]["name"]), None)
        self._on_change()


class NodeKeeper:
    def __init__(self, settings: PodSettings) -> None:
        self._settings = settings
        self.nodes: dict[str, Document] = {}
        self.quotas: dict[str, Document] = {}
        self.slices: dict[str, Document] = {}
        self.others: dict[str, OtherPod] = {}  # by uid
        self.seats: Mapping[TaskKey, HeldSeat] = {}  # that live placeholders hold for some of those
        self._reported: dict[str, NodeSpec] = {}
        self._conditions: dict[tuple[str, int | None], Condition] = {}
        self._gone: set[str] = set()
        self._missing_since: dict[str, float] = {}
        self._ready_since: dict[str, float] = {}
        self._is_dirty = True
        self._again_at = 0.0

    def clear(self) -> None:
        """As it was before: the next `open` lists everything."""
        self.__init__(self._settings)  # type: ignore[misc]

    def changed(self) -> None:
        self._is_dirty = True

    def note_other(self, pod: Document) -> None:
        """A pod that is not Corral's: what it requests is taken while it has not ended, beyond what is held for it."""
        meta, node = pod["metadata"], (pod.get("spec") or {}).get("nodeName")
        uid = str(meta["uid"])
        if not node or (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded"):
            self.forget_other(uid)
            return
        request = request_of_pod(pod, self._settings.gpu_resource)
        entry = OtherPod(str(node), str(meta.get("namespace")), request, seat_of(pod))
        if self.others.get(uid) != entry:
            self.others[uid] = entry
            self._is_dirty = True

    def forget_other(self, uid: str) -> None:
        if self.others.pop(uid, None) is not None:
            self._is_dirty = True

    # --- questions of the backend -------------------------------------------------------------------------------------

    def specs(self) -> list[NodeSpec]:
        return list(self._specs().values())

    def is_ready(self, node: str) -> bool:
        found = self.nodes.get(node)
        return found is not None and is_ready(found)

    def ready_for_s(self, node: str) -> float:
        """How long it has been ready without a break, as far as is known."""
        since = self._ready_since.get(node)
        return time.monotonic() - since if since is not None else 0.0

    def is_fenced(self, node: str) -> bool:
        """By the operator's word, nothing runs there: the taint out-of-service."""
        found = self.nodes.get(node)
        return found is not None and is_fenced(found)

    def is_removed(self, node: str) -> bool:
        """The node is no part of the cluster any more."""
        missing = self._missing_since.get(node)
        return node not in self.nodes and missing is not None and time.monotonic() - missing > _GONE_S

    # --- reports ------------------------------------------------------------------------------------------------------

    def review(self, held: Mapping[str, tuple[set[str], bool]], expected: dict[str, bool]) -> list[Report]:
        """What has changed since the last call. ``held``: GPUs of tasks, by node. ``expected``: nodes that an earlier
        server knew, and whether they were lost."""
        now = time.monotonic()
        self._note_times(now, expected)
        if not self._is_dirty and now < self._again_at and not self._missing_since:
            return []
        is_repeat = now >= self._again_at
        self._is_dirty = False
        if is_repeat:
            self._again_at = now + _AGAIN_S
        specs = self._specs()
        reports: list[Report] = []
        for name, spec in specs.items():
            if name in self._gone or expected.pop(name, False):
                self._gone.discard(name)
                reports.append(NodeReport(name, NodePhase.BACK))
            if self._reported.get(name) != spec:
                self._reported[name] = spec
                reports.append(NodeReport(name, NodePhase.JOINED, spec))
        reports += self._changes(self._now(specs, held), is_repeat)
        for name in list(self._missing_since):
            if name not in held and self.is_removed(name):
                del self._missing_since[name]
                self._reported.pop(name, None)
                if not expected.pop(name, False):
                    self._gone.add(name)
                    reports.append(NodeReport(name, NodePhase.GONE))
        return reports

    def _note_times(self, now: float, expected: Mapping[str, bool]) -> None:
        for name in [*self._reported, *expected]:
            if name in self.nodes:
                self._missing_since.pop(name, None)
            elif name not in self._gone:
                self._missing_since.setdefault(name, now)
        for name, node in list(self.nodes.items()):
            if not is_ready(node):
                self._ready_since.pop(name, None)
            else:
                self._ready_since.setdefault(name, now)

    def _specs(self) -> dict[str, NodeSpec]:
        others: dict[str, list[PodRequest]] = {}
        for pod in self._beyond_seats():
            others.setdefault(pod.node, []).append(pod.request)
        slices = list(self.slices.values())
        return {
            name: node_spec(node, others.get(name, ()), self._settings, slices)
            for name, node in list(self.nodes.items())
        }

    def _beyond_seats(self) -> list[OtherPod]:
        return list(beyond_seats(list(self.others.values()), self.seats))

    def _now(
        self, specs: Mapping[str, NodeSpec], held: Mapping[str, tuple[set[str], bool]]
    ) -> dict[tuple[str, int | None], Condition]:
        found: dict[tuple[str, int | None], Condition] = {}
        for name, node in list(self.nodes.items()):
            found[name, None] = node_condition(node, self._settings)
        taken: dict[str, int] = {}
        for pod in self._beyond_seats():
            taken[pod.node] = taken.get(pod.node, 0) + pod.request.gpus
        ours = {
            name: [slot for slot, gpu in enumerate(spec.gpus) if gpu.uuid in held.get(name, (set(), True))[0]]
            for name, spec in specs.items()
        }
        gpus = gpu_conditions(specs, taken, ours, self._limit())
        return found | {(name, slot): condition for (name, slot), condition in gpus.items()}

    def _limit(self) -> tuple[int, str] | None:
        """GPUs that the quota leaves for Corral; quotas are watched in one namespace."""
        limit = quota_gpus(list(self.quotas.values()), self._settings.gpu_resource)
        if limit is None:
            return None
        namespaces = {str(quota["metadata"].get("namespace")) for quota in list(self.quotas.values())}
        used = sum(pod.request.gpus for pod in self._beyond_seats() if pod.namespace in namespaces)
        return max(limit[0] - used, 0), limit[1]

    def _changes(self, now: Mapping[tuple[str, int | None], Condition], is_repeat: bool) -> list[Report]:
        reports: list[Report] = []
        for place in {**self._conditions, **now}:
            condition = now.get(place, Condition())
            is_bad = condition.health is not Health.HEALTHY
            if condition != self._conditions.get(place, Condition()) or (is_bad and is_repeat):
                reports.append(HealthReport(place[0], place[1], condition.health, condition.why))
        self._conditions = {place: each for place, each in now.items() if each != Condition()}
        return reports
