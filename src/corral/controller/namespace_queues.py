"""Which queues the jobs of a namespace may use: an annotation of the namespace lists them.

Who may create objects in a namespace may not annotate the namespace itself, so this is where an administrator of the
cluster decides. Without the annotation nothing in a namespace is submitted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

ANNOTATION = "corral.dev/queues"


class QueueRefused(Exception):
    """The namespace may not use that queue. Says why, and what to do."""


class AllowedQueues(Struct, frozen=True):
    """``queues``: each with all below it; the first is used where a job names none."""

    namespace: str
    queues: tuple[str, ...]

    def queue_for(self, stated: object) -> str:
        """The queue of a job that names this one. Raises `QueueRefused`."""
        if not self.queues:
            example = f"kubectl annotate namespace {self.namespace} {ANNOTATION}=QUEUE"
            raise QueueRefused(f"no queue may be used from the namespace {self.namespace}; to allow one: {example}")
        if stated in (None, ""):
            return self.queues[0]
        queue = str(stated)
        if not any(queue == each or queue.startswith(each + "/") for each in self.queues):
            allowed = ", ".join(self.queues)
            raise QueueRefused(
                f"queue {queue[:100]} may not be used from the namespace {self.namespace}: {allowed} may"
            )
        return queue


def allowed_queues(namespace: str, found: Mapping[str, Any] | None) -> AllowedQueues:
    """``found``: the Namespace; None: not known."""
    annotations = ((found or {}).get("metadata") or {}).get("annotations") or {}
    stated = str(annotations.get(ANNOTATION) or "")
    return AllowedQueues(namespace, tuple(filter(None, (each.strip().strip("/") for each in stated.split(",")))))
