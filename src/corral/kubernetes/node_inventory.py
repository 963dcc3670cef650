"""What the nodes of a cluster offer to Corral: from Node objects, pods of others, quotas and ResourceSlices.

Pure: documents in, nodes and their health out. What others use is subtracted: CPUs and memory from the amounts of a
node, GPUs by marking as many of its free ones as unusable, because Kubernetes does not say which ones they use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Gpu, amounts
from corral.core.cluster.topology import NodeSpec
from corral.core.model import Health
from corral.kubernetes.cluster_api import Document
from corral.runtime.gpus import model_of
from corral.wire.pods.pod_settings import PodSettings

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "Ki": 1 << 10, "Mi": 1 << 20,
          "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50}  # fmt: skip
_GPUS_MAX = 64
_OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
#: Put there by the node controller itself; the condition says the same.
_BY_CONDITION = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable", "node.kubernetes.io/unschedulable")
_PRESSURE = ("MemoryPressure", "DiskPressure", "PIDPressure", "NetworkUnavailable")


class PodRequest(Struct, frozen=True):
    """What a pod has of a node."""

    gpus: int = 0
    cpu_milli: int = 0
    memory_mib: int = 0


class Condition(Struct, frozen=True):
    """The health of a node or GPU, and why."""

    health: Health = Health.HEALTHY
    why: str = ""


def quantity(text: object) -> float:
    """A quantity of Kubernetes: 500m, 16, 1.5Gi, 1e3. 0 if it is none."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?)(m|[kMGTP]|[KMGTP]i)?", str(text).strip())
    if found is None:
        return 0.0
    unit = found[2] or ""
    return float(found[1]) / 1000 if unit == "m" else float(found[1]) * _UNITS[unit]


def request_of_pod(pod: Document, gpu_resource: str) -> PodRequest:
    """As the scheduler counts: the sum of its containers, or the largest init container if that is more."""
    spec = pod.get("spec") or {}
    whole = _asked(spec.get("containers"), gpu_resource)
    first = [_asked([container], gpu_resource) for container in spec.get("initContainers") or ()]
    return PodRequest(
        max([whole.gpus, *(each.gpus for each in first)]),
        max([whole.cpu_milli, *(each.cpu_milli for each in first)]),
        max([whole.memory_mib, *(each.memory_mib for each in first)]),
    )


def _asked(containers: Any, gpu_resource: str) -> PodRequest:
    gpus = cpu = memory = 0.0
    for container in containers or ():
        resources = container.get("resources") or {}
        limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
        gpus += quantity(limits.get(gpu_resource, requests.get(gpu_resource, 0)))
        cpu += quantity(requests.get("cpu", limits.get("cpu", 0)))
        memory += quantity(requests.get("memory", limits.get("memory", 0)))
    return PodRequest(int(gpus), round(cpu * 1000), int(memory) >> 20)


def node_spec(
    node: Document, others: Iterable[PodRequest], settings: PodSettings, slices: Sequence[Document] = ()
) -> NodeSpec:
    """A node as Corral sees it. ``others``: what pods that are not Corral's have there."""
    meta, status = node.get("metadata") or {}, node.get("status") or {}
    labels, allocatable = meta.get("labels") or {}, status.get("allocatable") or {}
    name = str(meta.get("name"))
    used = list(others)
    cpu = round(quantity(allocatable.get("cpu", 0)) * 1000) - sum(each.cpu_milli for each in used)
    memory = (int(quantity(allocatable.get("memory", 0))) >> 20) - sum(each.memory_mib for each in used)
    gpus = _gpus_of_slices(slices, name) if settings.resource_slices else ()
    addresses = {each.get("type"): str(each.get("address")) for each in status.get("addresses") or ()}
    return NodeSpec(
        name,
        gpus or _gpus(name, labels, allocatable, settings),
        amounts({CPU_MILLI: max(cpu, 0), MEMORY_MIB: max(memory, 0)}),
        tuple(labels.get(label) or "unplaced" for label in settings.topology),
        addresses.get("InternalIP", ""),
    )


def _gpus(
    name: str, labels: Mapping[str, str], allocatable: Mapping[str, Any], settings: PodSettings
) -> tuple[Gpu, ...]:
    count = min(int(quantity(allocatable.get(settings.gpu_resource, 0))), _GPUS_MAX)
    vendor = settings.gpu_resource.partition("/")[0]
    product = labels.get(f"{vendor}/gpu.product", "").replace("-SHARED", "")
    model = model_of(product.replace("-", " ")) if product else "gpu"
    stated = labels.get(f"{vendor}/gpu.memory", "")
    vram_mib = int(stated) if stated.isdecimal() else 0
    return tuple(Gpu(f"{name}/{settings.gpu_resource}/{n}", model, vram_mib) for n in range(count))


def _gpus_of_slices(slices: Iterable[Document], node: str) -> tuple[Gpu, ...]:
    """Devices that drivers of Dynamic Resource Allocation publish for this node, of those pools that are complete and
    of the newest generation. Only inventory: the pod still asks by its resource."""
    newest: dict[tuple[str, str], int] = {}
    mine = [each.get("spec") or {} for each in slices if (each.get("spec") or {}).get("nodeName") == node]
    for spec in mine:
        pool = spec.get("pool") or {}
        key = (str(spec.get("driver")), str(pool.get("name")))
        newest[key] = max(newest.get(key, 0), int(pool.get("generation") or 0))
    found = []
    for spec in mine:
        pool = spec.get("pool") or {}
        key = (str(spec.get("driver")), str(pool.get("name")))
        if "gpu" not in key[0] or int(pool.get("generation") or 0) != newest[key]:
            continue
        for device in spec.get("devices") or ():
            content = device.get("basic") or device
            marks, sizes = content.get("attributes") or {}, content.get("capacity") or {}
            if (marks.get("type") or {}).get("string", "gpu") != "gpu":
                continue  # a part of a device
            uuid = (marks.get("uuid") or {}).get("string") or f"{node}/{device.get('name')}"
            model = model_of(str((marks.get("productName") or {}).get("string") or "gpu"))
            found.append(Gpu(uuid, model, int(quantity((sizes.get("memory") or {}).get("value", 0))) >> 20))
    return tuple(sorted(found, key=lambda gpu: gpu.uuid))[:_GPUS_MAX]


def node_condition(node: Document, settings: PodSettings) -> Condition:
    """Whether tasks may start on a node and stay there."""
    spec, status = node.get("spec") or {}, node.get("status") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    ready = conditions.get("Ready") or {}
    if ready.get("status") != "True":
        why = ready.get("message") or ready.get("reason") or "its kubelet has not reported"
        return Condition(Health.DRAINING, f"NotReady: {why}"[:300])
    taints = [each for each in spec.get("taints") or () if not _is_tolerated(each, settings)]
    for effect, health in (("NoExecute", Health.DRAINING), ("NoSchedule", Health.SUSPECT)):
        for taint in taints:
            if taint.get("effect") == effect and taint.get("key") not in _BY_CONDITION:
                return Condition(health, f"taint {taint.get('key')}={taint.get('value', '')}:{effect}")
    if spec.get("unschedulable"):
        return Condition(Health.SUSPECT, "cordoned")
    for name in _PRESSURE:
        if (conditions.get(name) or {}).get("status") == "True":
            return Condition(Health.SUSPECT, name)
    return Condition()


def is_fenced(node: Document) -> bool:
    """The operator's word that nothing runs on this node any more: Kubernetes' own taint for that."""
    taints = (node.get("spec") or {}).get("taints") or ()
    return any(taint.get("key") == _OUT_OF_SERVICE for taint in taints)


def is_ready(node: Document) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _is_tolerated(taint: Mapping[str, Any], settings: PodSettings) -> bool:
    tolerations = (dict(settings.template).get("spec") or {}).get("tolerations") or ()
    return any(_tolerates(each, taint) for each in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("operator") == "Exists":
        return not toleration.get("key") or toleration["key"] == taint.get("key")
    return toleration.get("key") == taint.get("key") and (toleration.get("value") or "") == (taint.get("value") or "")


def quota_gpus(quotas: Iterable[Document], gpu_resource: str) -> tuple[int, str] | None:
    """The tightest limit on GPUs among quotas of one namespace, and its name. None: there is none."""
    found = []
    for quota in quotas:
        hard = (quota.get("spec") or {}).get("hard") or {}
        keys = (f"requests.{gpu_resource}", f"limits.{gpu_resource}", gpu_resource)
        found += [(int(quantity(hard[key])), str(quota["metadata"]["name"])) for key in keys if key in hard]
    return min(found, default=None)


def gpu_conditions(
    nodes: Mapping[str, NodeSpec],
    others: Mapping[str, int],
    ours: Mapping[str, Sequence[int]],
    limit: tuple[int, str] | None,
) -> dict[tuple[str, int], Condition]:
    """GPUs that are not to be used, by node and slot. ``others``: how many others have there; ``ours``: slots that
    tasks of Corral have; ``limit``: of a quota, less what others use of it, and its name. The last free ones are
    taken out."""
    found: dict[tuple[str, int], Condition] = {}
    usable = 0
    free: list[tuple[str, int]] = []
    for name in sorted(nodes):
        slots = [slot for slot in range(len(nodes[name].gpus)) if slot not in ours.get(name, ())]
        taken = min(others.get(name, 0), len(slots))
        for slot in slots[len(slots) - taken :]:
            found[name, slot] = Condition(Health.SUSPECT, "used by pods that are not Corral's")
        kept = slots[: len(slots) - taken]
        free += [(name, slot) for slot in kept]
        usable += len(nodes[name].gpus) - taken
    if limit is not None and usable > limit[0]:
        for name, slot in free[max(len(free) - (usable - limit[0]), 0) :]:
            found[name, slot] = Condition(Health.SUSPECT, f"the ResourceQuota {limit[1]} allows no more GPUs")
    return found
