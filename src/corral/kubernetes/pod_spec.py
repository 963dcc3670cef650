"""Turns the order of a task into a pod, and the orders of a gang into what their supervisors read.

Three layers, each over the one before: defaults that pass Pod Security "restricted", the site's template, and what
Corral must determine itself. Knows documents of Kubernetes; asks and creates nothing.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from corral.kubernetes.cluster_api import Document
from corral.kubernetes.held_pods import HOLDS, held_by_order, holds_text
from corral.kubernetes.pod.pod_start import ORDER, WORK
from corral.kubernetes.pod_names import ATTEMPT, CONTAINER, EPOCH, GANG, GPUS, INIT, TASK, gang_name, labels, pod_name
from corral.runtime.base import TaskOrder
from corral.runtime.local.orders import Site, request_of
from corral.runtime.local.settings import LocalSettings
from corral.runtime.local.task.cgroups import Layout
from corral.wire.pods.pod_settings import BINDING, EXACT, PodSettings

TokenOf = Callable[[str, str], str]  # of a namespace and a pod
GRACE_MARGIN_S = 4  # the kubelet kills later than the supervisor
_RUNTIME = "runtime"
_CHUNK_TASKS = 64
_LOGS_MIB = 64  # kept in the pod until the kubelet has them
#: Of a placeholder: it requests nothing of a node, or the pods that it holds a full node for would not fit beside it.
_NOTHING = {"cpu": "0", "memory": "0"}
_PLACEHOLDER_MEMORY = "256Mi"


def refusal_of(order: TaskOrder, settings: PodSettings) -> str:
    """Why this order can never be a pod here; empty: it can."""
    held = held_by_order(order)
    if held is not None and held.gpus and settings.gpus == EXACT:
        return (
            "kubernetes.gpus is exact: Kubernetes could give the pods of a Job GPUs that Corral gives to other tasks; "
            "suspended Jobs with GPUs need gpus: device-plugin"
        )
    if not _image(order, settings):
        return "this cluster runs pods: give the job an image, or the site a default (kubernetes: {image: ...})"
    if order.vram_mib and settings.gpus != EXACT:
        return "slices of a GPU are not possible here: the device plugin gives whole GPUs"
    for mount in order.mounts:
        if settings.claim_of(mount.source) is None:
            known = ", ".join(source for source, _ in settings.volumes) or "none"
            return f"{mount.source!r} is no volume of this cluster; kubernetes.volumes has: {known}"
    return ""


def pod_of(order: TaskOrder, settings: PodSettings, namespace: str, owner: Document) -> Document:
    """The pod of a task. ``owner``: the object of its gang, by which Kubernetes removes it when that is removed."""
    name = pod_name(settings.name, order.key)
    base = f"{settings.files}/{name}"
    pod = merged(_defaults(settings), dict(settings.template))
    pod = merged(pod, _essentials(order, settings, base))
    held = held_by_order(order)
    notes = {GANG: order.key.gang, GPUS: ",".join(order.gpus)}
    metadata = {
        "name": name,
        "namespace": namespace,
        "labels": labels(settings.name, order.key.gang, order.key.attempt)
        | {TASK: str(order.key.task), EPOCH: str(order.epoch)},
        "annotations": notes if held is None else notes | {HOLDS: holds_text(held)},
        "ownerReferences": [owner],
    }
    whole: Document = merged(pod, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    return whole


def merged(under: Any, over: Any) -> Any:
    """Mappings are merged; lists of named items by name, others are joined; of two values the upper one holds."""
    if isinstance(under, dict) and isinstance(over, dict):
        return {**under, **{key: merged(under[key], over[key]) if key in under else over[key] for key in over}}
    if isinstance(under, list) and isinstance(over, list):
        named = all(isinstance(item, dict) and "name" in item for item in (*under, *over))
        if not named:
            return under + [item for item in over if item not in under]
        found = {_identity(item): item for item in under}
        for item in over:
            here = _identity(item)
            found[here] = merged(found[here], item) if here in found else item
        return list(found.values())
    return over


def _identity(item: Document) -> tuple[str, str]:
    """One volume may be mounted in several places."""
    return item["name"], item.get("mountPath", "")


def _defaults(settings: PodSettings) -> Document:
    own: Document = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    whole: Document = {"seccompProfile": {"type": "RuntimeDefault"}}
    if settings.user:
        whole |= {"runAsNonRoot": True, "runAsUser": settings.user, "runAsGroup": settings.user,
                  "fsGroup": settings.user, "fsGroupChangePolicy": "OnRootMismatch"}  # fmt: skip
    spec: Document = {
        "securityContext": whole,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "initContainers": [{"name": INIT, "securityContext": own}],
        "containers": [{"name": CONTAINER, "securityContext": own}],
    }
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    return {"spec": spec}


def _essentials(order: TaskOrder, settings: PodSettings, base: str) -> Document:
    runtime, task = f"{base}/{_RUNTIME}", str(order.key.task)
    python = [f"{runtime}/runtime/loader", "--library-path", f"{runtime}/runtime/lib", f"{runtime}/runtime/bin/python3"]
    program = (
        f"import sys; sys.path.insert(0, {runtime + '/runtime/site'!r}); from corral.kubernetes.pod import pod_start"
    )
    work_mount = {"name": "corral-work", "mountPath": f"{base}/{WORK}"}
    runtime_mount = {"name": "corral-runtime", "mountPath": runtime}
    order_mount = {"name": "corral-order", "mountPath": f"{base}/{ORDER}", "readOnly": True}
    container: Document = {
        "name": CONTAINER,
        "image": _image(order, settings),
        "command": [*python, "-I", "-S", "-B", "-c", f"{program}; sys.exit(pod_start.main(sys.argv[1:]))", base, task],
        "env": _env(order, settings),
        "resources": _resources(order, settings),
        "volumeMounts": [
            {**runtime_mount, "readOnly": True},
            work_mount,
            order_mount,
            {"name": "corral-shm", "mountPath": "/dev/shm"},
            *_mounts(order),
        ],
        "terminationMessagePolicy": "File",
    }
    shm: Document = {"medium": "Memory"} | (
        {"sizeLimit": f"{settings.shm_mib}Mi"} if settings.shm_mib is not None else {}
    )
    small = {"cpu": "50m", "memory": "64Mi"} if held_by_order(order) is None else _NOTHING
    spec: Document = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": -(-order.grace_ms // 1000) + GRACE_MARGIN_S,
        "initContainers": [
            {
                "name": INIT,
                "image": settings.supervisor_image,
                "command": [*settings.deliver, runtime],
                "resources": {"requests": small},
                "volumeMounts": [runtime_mount],
            }
        ],
        "containers": [container],
        "volumes": [
            {"name": "corral-runtime", "emptyDir": {}},
            {"name": "corral-work", "emptyDir": {}},
            {"name": "corral-order", "secret": {"secretName": secret_name(settings, order), "defaultMode": 0o440}},
            {"name": "corral-shm", "emptyDir": shm},
            *_claims(order, settings),
        ],
    }
    if settings.bind == BINDING:
        spec["schedulerName"] = settings.scheduler
    else:
        spec["nodeName"] = order.node
    return {"spec": spec}


def _image(order: TaskOrder, settings: PodSettings) -> str:
    """Corral's own image has what a placeholder needs."""
    own = settings.supervisor_image if held_by_order(order) is not None else ""
    return order.image or own or settings.image


def _env(order: TaskOrder, settings: PodSettings) -> list[Document]:
    """The variables that the container runtime itself reads."""
    if held_by_order(order) is not None:  # or an image may ask for all GPUs
        return [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    if settings.gpus == EXACT:
        return [{"name": "NVIDIA_VISIBLE_DEVICES", "value": ",".join(order.gpus) or "void"}]
    return []


def _resources(order: TaskOrder, settings: PodSettings) -> Document:
    if held_by_order(order) is not None:
        return {"requests": _NOTHING, "limits": {"memory": _PLACEHOLDER_MEMORY}}
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if order.cpu_milli is not None:
        requests["cpu"] = f"{order.cpu_milli}m"
    if order.memory_mib is not None:
        requests["memory"] = limits["memory"] = f"{order.memory_mib}Mi"
    if order.gpus and settings.gpus != EXACT:
        requests[settings.gpu_resource] = limits[settings.gpu_resource] = str(len(order.gpus))
    return {"requests": requests, "limits": limits}


def _mounts(order: TaskOrder) -> Iterator[Document]:
    for number, mount in enumerate(order.mounts):
        yield {"name": f"mount-{number}", "mountPath": mount.target, "readOnly": mount.read_only}


def _claims(order: TaskOrder, settings: PodSettings) -> Iterator[Document]:
    for number, mount in enumerate(order.mounts):
        claim = {"claimName": settings.claim_of(mount.source), "readOnly": mount.read_only}
        yield {"name": f"mount-{number}", "persistentVolumeClaim": claim}


# --- what supervisors read --------------------------------------------------------------------------------------------


def secret_name(settings: PodSettings, order: TaskOrder) -> str:
    gang = gang_name(settings.name, order.key.gang, order.key.attempt)
    return f"{gang}-orders-{order.key.task // _CHUNK_TASKS}"


def secrets_of(
    orders: Sequence[TaskOrder], settings: PodSettings, namespace: str, owner: Document, link: Mapping[str, str],
    token_of: TokenOf,
) -> list[Document]:  # fmt: skip
    """Objects with the orders of one gang, several tasks in each: values of secrets are in them and nowhere else."""
    chunks: dict[str, list[TaskOrder]] = {}
    for order in orders:
        chunks.setdefault(secret_name(settings, order), []).append(order)
    found = []
    for name, chunk in chunks.items():
        key = chunk[0].key
        metadata = {
            "name": name,
            "namespace": namespace,
            "labels": labels(settings.name, key.gang, key.attempt),
            "annotations": {GANG: key.gang, ATTEMPT: str(key.attempt)},
            "ownerReferences": [owner],
        }
        packed = _packed(chunk, settings, namespace, link, token_of)
        content = gzip.compress(msgspec.json.encode(packed), mtime=0)
        data = {"orders.json.gz": base64.b64encode(content).decode()}
        found.append({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": True, "data": data})
    return found


def _packed(
    chunk: Sequence[TaskOrder], settings: PodSettings, namespace: str, link: Mapping[str, str], token_of: TokenOf
) -> Document:
    requests = {str(order.key.task): _request(order, settings) for order in chunk}
    envs = {task: request.pop("env") for task, request in requests.items()}
    common_request, own_requests = _split(requests)
    common_env, own_envs = _split(envs)
    tasks = {}
    for order in chunk:
        task, pod = str(order.key.task), pod_name(settings.name, order.key)
        own = {"pod": f"{namespace}/{pod}", "token": token_of(namespace, pod), "gpus": list(order.gpus)}
        tasks[task] = {"request": own_requests[task], "env": own_envs[task], "order": own}
    shared = {
        "grace_s": chunk[0].grace_ms / 1000 + GRACE_MARGIN_S,
        "exact_gpus": settings.gpus == EXACT,
        "link": dict(link),
    }
    return {"request": common_request, "env": common_env, "order": shared, "tasks": tasks}


def _split(each: Mapping[str, dict[str, Any]]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """What all of them have in common, and what each has beside that."""
    first = next(iter(each.values()))
    common = {
        name: value for name, value in first.items() if all(name in own and own[name] == value for own in each.values())
    }
    return common, {task: {k: v for k, v in own.items() if k not in common} for task, own in each.items()}


def _request(order: TaskOrder, settings: PodSettings) -> dict[str, Any]:
    """The request to the supervisor, as on a machine of Corral's own, without what the cluster does instead."""
    plain = structs.replace(order, image="", mounts=(), account="", log_mib_max=min(order.log_mib_max, _LOGS_MIB))
    site = Site("/", "/", "/", "", Layout(), LocalSettings())
    request: dict[str, Any] = dict(request_of(plain, site, ""))
    for name in ("record", "state", "logs", "scratch", "run"):
        del request[name]  # the supervisor knows where it is
    request |= {"account": "", "user": "", "failure": "", "unenforced": _unenforced(order, settings)}
    if settings.gpus != EXACT:  # the container has only its own GPUs, which the device plugin has chosen
        for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
            request["env"].pop(name, None)
    return request


def _unenforced(order: TaskOrder, settings: PodSettings) -> list[str]:
    if order.gpus and settings.gpus != EXACT and held_by_order(order) is None:
        return ["gpus: as many as requested; Kubernetes chooses which GPUs of the node (device plugin)"]
    return []
