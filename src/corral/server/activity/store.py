"""The last report of each node about what it and its tasks do. In memory only: one report per node.

Knows when a report came, so that old figures are not shown as new ones.
"""

from __future__ import annotations

from msgspec import Struct

from corral.runtime.base import ActivityReport, TaskActivity, TaskKey
from corral.wire.details import GpuActivity

#: Agents report every few seconds while tasks run, and about once a minute otherwise.
STALE_MS = 3 * 60_000


class NodeReading(Struct, frozen=True):
    """A report, by task and by slot of GPUs."""

    at_ms: int
    cpu_milli: int | None
    memory_mib: int | None
    gpus: dict[int, GpuActivity]
    tasks: dict[TaskKey, TaskActivity]


class Activities:
    """``take`` gets every report of a node that was checked."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeReading] = {}

    def take(self, report: ActivityReport, now_ms: int) -> None:
        self._nodes[report.node] = NodeReading(
            now_ms,
            report.cpu_milli,
            report.memory_mib,
            {gpu.slot: gpu for gpu in report.gpus},
            {task.key: task for task in report.tasks},
        )

    def forget(self, node: str) -> None:
        self._nodes.pop(node, None)

    def of(self, node: str, now_ms: int) -> NodeReading | None:
        """None: it has not reported, or not for long."""
        reading = self._nodes.get(node)
        return reading if reading is not None and now_ms - reading.at_ms <= STALE_MS else None
