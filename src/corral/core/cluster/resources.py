"""Resources of tasks and nodes: GPUs as devices, everything else as named integer amounts.

Knows units and arithmetic. Knows nothing about nodes in use, queues or time. A name that is absent is *unknown*,
never zero: an unknown capacity satisfies no demand, an unknown quota is no limit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

#: Named integer amounts, sorted by name. Units are part of the name: ``cpu_milli``, ``memory_mib``, ``disk_mib``.
Amounts = tuple[tuple[str, int], ...]

GPU_MILLI = "gpu_milli"
CPU_MILLI = "cpu_milli"
MEMORY_MIB = "memory_mib"

#: The dimensions in which a share of the cluster is measured; the largest of them is the dominant one.
SHARE_DIMENSIONS = (GPU_MILLI, CPU_MILLI, MEMORY_MIB)


def amounts(named: Mapping[str, int] | Iterable[tuple[str, int]] = ()) -> Amounts:
    """The canonical form of named amounts: sorted, so that equal amounts are equal values."""
    return tuple(sorted(dict(named).items()))


def amount_of(stated: Amounts, name: str) -> int | None:
    """The stated amount; None if it is not stated (unknown)."""
    for key, value in stated:
        if key == name:
            return value
    return None


class Gpu(Struct, frozen=True, gc=False):
    """One device. ``island`` numbers the NVLink island within its node."""

    uuid: str
    model: str
    vram_mib: int
    island: int = 0


class TaskDemand(Struct, frozen=True, gc=False, cache_hash=True):
    """The resources of one task: whole GPUs, or a VRAM slice of one GPU, and named amounts."""

    gpus: int = 0
    slice_mib: int = 0
    models: tuple[str, ...] = ()
    vram_mib_min: int = 0
    vram_mib_max: int | None = None
    amounts: Amounts = ()

    @property
    def wants_gpu(self) -> bool:
        return self.gpus > 0 or self.slice_mib > 0

    def accepts(self, gpu: Gpu) -> bool:
        """Whether the task may run on this type of device (current use is not considered)."""
        return (
            (not self.models or gpu.model in self.models)
            and gpu.vram_mib >= max(self.vram_mib_min, self.slice_mib)
            and (self.vram_mib_max is None or gpu.vram_mib <= self.vram_mib_max)
        )


class Demand(Struct, frozen=True, gc=False, cache_hash=True, kw_only=True):
    """What a gang requests: the number of tasks, the resources of each, and their placement in the topology.

    Two gangs with equal demands are interchangeable for placement; this is the key by which the engine
    remembers what does not fit.
    """

    task: TaskDemand
    tasks: int = 1
    tasks_min: int = 0  # 0: not elastic
    step: int = 1
    spares: int = 0
    tp: int = 1
    within: str = ""
    prefer: str = ""
    prefer_wait_ms: int = 0
    spread: str = ""
    spread_max: int = 1

    @property
    def is_elastic(self) -> bool:
        return 0 < self.tasks_min < self.tasks

    @property
    def smallest(self) -> int:
        return self.tasks_min or self.tasks

    def sizes(self) -> Iterable[int]:
        """The possible numbers of tasks, largest first."""
        return range(self.tasks, self.smallest - 1, -self.step)

    @property
    def chunk(self) -> int:
        """The number of consecutive tasks in one tensor-parallel group (1: a group is inside a task)."""
        return max(1, self.tp // max(1, self.task.gpus))

    def charge(self, size: int) -> dict[str, int]:
        """The charge of a queue for this many tasks and the spares, as far as the demand determines it;
        ``Topology.least_charge`` adds what depends on the cluster."""
        task, count = self.task, size + self.spares
        charge = {name: amount * count for name, amount in task.amounts}
        if task.gpus:
            charge[GPU_MILLI] = task.gpus * 1000 * count
            if len(task.models) == 1:
                charge[f"{GPU_MILLI}:{task.models[0]}"] = charge[GPU_MILLI]
        elif task.slice_mib:
            charge[GPU_MILLI] = task.slice_mib * 1000 * count // max(task.vram_mib_min, task.slice_mib)
        return charge


def least_gpu_milli(demand: Demand) -> int:
    """The least GPU charge of a queue for a demand, in thousandths; the GPU part of ``charge``."""
    task, count = demand.task, demand.smallest + demand.spares
    if task.gpus:
        return task.gpus * 1000 * count
    return task.slice_mib * 1000 * count // max(task.vram_mib_min, task.slice_mib) if task.slice_mib else 0


#: The part of a demand that decides whether there are enough GPUs: models, GPUs per task, tasks, spares.
SizeClass = tuple[int, int, tuple[str, ...], int, int | None, int, int]


def size_class(demand: Demand) -> SizeClass:
    """The size class of a demand. Demands of one class differ only in named amounts or placement: there are enough GPUs
    for all of them or for none. There are few classes, even if many different shapes wait."""
    task = demand.task
    return (
        task.gpus,
        task.slice_mib,
        task.models,
        task.vram_mib_min,
        task.vram_mib_max,
        demand.smallest,
        demand.spares,
    )


class Seat(Struct, frozen=True, gc=False):
    """The place of one task: a node, its GPUs there as a bit mask, and the slice if the GPU is shared."""

    node: str
    gpus: int = 0
    slice_mib: int = 0
