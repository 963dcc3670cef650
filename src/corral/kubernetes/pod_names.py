"""The names of a task's objects, and the task of an object: deterministic, so that an object is never made twice."""

from __future__ import annotations

import re
from hashlib import blake2s

from corral.kubernetes.cluster_api import Document
from corral.runtime.base import TaskKey

DOMAIN = "corral.dev"
INSTANCE = f"{DOMAIN}/instance"
GANG = f"{DOMAIN}/gang"
ATTEMPT = f"{DOMAIN}/attempt"
TASK = f"{DOMAIN}/task"
EPOCH = f"{DOMAIN}/epoch"
GPUS = f"{DOMAIN}/gpus"
CONTAINER, INIT = "task", "corral"
_READABLE = 24


def gang_name(instance: str, gang: str, attempt: int) -> str:
    """At most 63 characters, also with the number of a task: it becomes the name of the host."""
    readable = re.sub(r"[^a-z0-9]+", "-", gang.lower()).strip("-")[:_READABLE].strip("-") or "gang"
    return f"{instance[:12]}-{readable}-{_short(f'{instance} {gang}')}-{attempt}"


def pod_name(instance: str, key: TaskKey) -> str:
    return f"{gang_name(instance, key.gang, key.attempt)}-{key.task}"


def labels(instance: str, gang: str, attempt: int) -> dict[str, str]:
    return {INSTANCE: instance, GANG: _short(f"{instance} {gang}"), ATTEMPT: str(attempt)}


def key_of(pod: Document, instance: str) -> TaskKey | None:
    """The task of a pod; None: it is not one of ours, or its name does not follow from what it says."""
    meta = pod.get("metadata") or {}
    marks, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    attempt, task = marks.get(ATTEMPT, ""), marks.get(TASK, "")
    gang = notes.get(GANG, "")
    if marks.get(INSTANCE) != instance or not gang or not (attempt.isdecimal() and task.isdecimal()):
        return None
    key = TaskKey(gang, int(attempt), int(task))
    return key if meta.get("name") == pod_name(instance, key) else None


def epoch_of(pod: Document) -> int:
    stated = ((pod.get("metadata") or {}).get("labels") or {}).get(EPOCH, "")
    return int(stated) if stated.isdecimal() else 0


def _short(text: str) -> str:
    return blake2s(text.encode(), digest_size=5).hexdigest()
