"""A suspended Job as a job of Corral that holds its seats: the document, and which pod gets which seat. Pure.

What runs on the seats are the pods that the Job controller creates. The job of Corral is a small program on the first
seat that waits: it is the one that is queued, placed, warned and preempted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

from corral.kubernetes.held_pods import HELD_BY, PLACEHOLDER, SEAT
from corral.kubernetes.pod_names import ATTEMPT
from corral.wire.api.jobs import SeatView

LABEL = "corral.dev/queue"
#: Annotations that a user sets, and those that tell the user.
PATH = "corral.dev/queue-path"
OPTIONS = "corral.dev/options"
JOB = "corral.dev/job"
STATE = "corral.dev/state"
REASON = "corral.dev/reason"
SUBMITTED = "corral.dev/submitted"
GATE = SEAT  # a pod waits at it for its seat
GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
#: Keys of a job file that an annotation of the Job may set.
OPTION_KEYS = ("name", "priority", "within", "prefer", "spread", "time_limit", "estimate", "min_runtime", "preemptible",
               "labels", "hold", "deadline", "begin")  # fmt: skip
_MARGIN_S = 5
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?(?:[eE][+-]?\d{1,2})?)([a-zA-Z]*)")
_DIGITS_MAX, _QUANTITY_MAX = 25, 10**27
_SUFFIXES = {
    "m": 1, "": 1000, "k": 10**6, "M": 10**9, "G": 10**12, "T": 10**15, "P": 10**18,
    "Ki": 1000 << 10, "Mi": 1000 << 20, "Gi": 1000 << 30, "Ti": 1000 << 40, "Pi": 1000 << 50,
}  # fmt: skip

# It waits for the end of its grace, because the pods of the Job need the seats until then; unless it is to be
# requeued, which the controller asks for when the Job has completed. An exit with 0 is a success then.
_WAIT = """
end() {
    case "$(cat "$CORRAL_WARNING_FILE" 2>/dev/null)" in
    *'"requeue"'*) exit 0 ;;
    esac
}
trap end TERM
while :; do sleep 3600 & wait $!; done
"""

Document = dict[str, Any]


class BadJob(Exception):
    """What of a Job cannot be held. Says why, and what to do."""


def held_document(job: Document, queue: str, image: str = "") -> Document:
    """The job that holds the seats of a Job. Raises `BadJob`."""
    meta, spec = job["metadata"], job["spec"]
    pod = (spec.get("template") or {}).get("spec") or {}
    document = _options(meta.get("annotations") or {})
    document.setdefault("name", meta["name"])
    if "estimate" not in document and spec.get("activeDeadlineSeconds"):
        document["estimate"] = f"{int(spec['activeDeadlineSeconds'])}s"
    tasks = int(spec.get("parallelism", 1))
    if spec.get("completions") is not None:
        tasks = min(tasks, int(spec["completions"]))
    if tasks < 1:
        raise BadJob("parallelism is 0: there is nothing to run")
    grace_s = int(pod.get("terminationGracePeriodSeconds") or 30) + _MARGIN_S
    document |= {"queue": queue, "command": ["/bin/sh", "-c", _WAIT], "tasks": tasks, "grace": f"{grace_s}s"}
    document |= {"rerun_after_exit_0": False, "env": {PLACEHOLDER: "1"}, "directory": "/"}
    document |= {"launch": "first"} if tasks > 1 else {}
    document |= {"image": image} if image else {}
    return document | _amounts(pod)


def _options(annotations: Mapping[str, str]) -> Document:
    try:
        found = json.loads(annotations.get(OPTIONS) or "{}")
    except (ValueError, RecursionError):
        raise BadJob(f"the annotation {OPTIONS} is not JSON") from None
    if not isinstance(found, dict):
        raise BadJob(f"the annotation {OPTIONS} is not a mapping")
    unknown = sorted(found.keys() - set(OPTION_KEYS))
    if unknown:
        raise BadJob(f"the annotation {OPTIONS} may not set {unknown[0]}; it may set {', '.join(OPTION_KEYS)}")
    return found


def _amounts(pod: Document) -> Document:
    """What one pod requests: GPUs, CPUs and memory of all its containers together."""
    gpus = cpu_milli = memory = 0
    for container in pod.get("containers") or ():
        resources = container.get("resources") or {}
        limits = resources.get("limits") or {}
        asked = limits | (resources.get("requests") or {})
        gpus += sum(quantity_milli(asked.get(name, 0)) // 1000 for name in GPU_RESOURCES)
        cpu_milli += quantity_milli(asked.get("cpu", 0))
        memory += quantity_milli(asked.get("memory", 0)) // 1000
    found: Document = {"gpus": gpus} if gpus else {}
    if cpu_milli:
        found["cpus"] = -(-cpu_milli // 1000)
    if memory:
        found["memory"] = f"{-(-memory // (1 << 20))}MiB"
    return found


def quantity_milli(stated: object) -> int:
    """A quantity of Kubernetes in thousandths, rounded up: `500m`, `2`, `64Gi`, `1.5`, `1e3`. Raises `BadJob`."""
    found = _QUANTITY.fullmatch(str(stated).strip())
    if found is None or len(found[1]) > _DIGITS_MAX or found[2] not in _SUFFIXES:
        raise BadJob(f"{str(stated)[:40]!r} is not an amount that can be read")
    milli = Decimal(found[1]) * _SUFFIXES[found[2]]
    if milli >= _QUANTITY_MAX:
        raise BadJob(f"{str(stated)[:40]!r} is not an amount that can be read: it is too large")
    return int(milli.to_integral_value(ROUND_CEILING))


def free_seats(seats: Sequence[SeatView], pods: Iterable[Document]) -> list[SeatView]:
    """Seats that no pod has; ``pods``: those of the attempt that have not ended."""
    taken = {((pod["metadata"].get("labels") or {}).get(SEAT)) for pod in pods}
    return [seat for seat in sorted(seats, key=lambda seat: seat.task) if str(seat.task) not in taken]


def is_gated(pod: Document) -> bool:
    return any(each.get("name") == GATE for each in (pod.get("spec") or {}).get("schedulingGates") or ())


def has_ended(pod: Document) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def seat_patch(pod: Document, seat: SeatView, node_label: str) -> list[Document]:
    """Bind a pod that waits at the gate to a seat. A JSON patch, so that it fails if the gate is not where it was."""
    spec, meta = pod["spec"], pod["metadata"]
    at = next(n for n, each in enumerate(spec["schedulingGates"]) if each.get("name") == GATE)
    selector = (spec.get("nodeSelector") or {}) | {node_label: seat.node}
    labels = (meta.get("labels") or {}) | {SEAT: str(seat.task)}
    return [
        {"op": "test", "path": "/metadata/uid", "value": meta["uid"]},
        {"op": "test", "path": f"/spec/schedulingGates/{at}/name", "value": GATE},
        {"op": "add", "path": "/spec/nodeSelector", "value": selector},
        {"op": "add", "path": "/metadata/labels", "value": labels},
        {"op": "remove", "path": f"/spec/schedulingGates/{at}"},
    ]


def admit_patch(job: Document, held_by: str, attempt: int) -> Document:
    """Un-suspend a Job; its pods wait at a gate until each has its seat. A merge patch."""
    template = job["spec"].get("template") or {}
    gates = [each for each in (template.get("spec") or {}).get("schedulingGates") or () if each.get("name") != GATE]
    labels = {HELD_BY: held_by, ATTEMPT: str(attempt)}
    patched = {"metadata": {"labels": labels}, "spec": {"schedulingGates": [*gates, {"name": GATE}]}}
    version = job["metadata"].get("resourceVersion")
    return {"metadata": {"resourceVersion": version}, "spec": {"suspend": False, "template": patched}}
