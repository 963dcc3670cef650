"""What a queue may use, also if that depends on the GPUs: under limits per model, and for slices, which are a smaller
part of a larger GPU.

Knows quota and types of nodes. Does not know what is free; the search for seats is a parameter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from corral.core.cluster.resources import GPU_MILLI, Demand, Gpu, Seat, TaskDemand
from corral.core.cluster.slots import NODE_LEVEL
from corral.core.cluster.topology import Topology
from corral.core.model import Gang
from corral.core.queues.quota import Shortfall
from corral.core.snapshot import Draft
from corral.policy.placement.seating import Cut, Seating, few

#: The first limit that a charge would exceed, on top of current charges.
Test = Callable[[Mapping[str, int]], Shortfall | None]
#: Searches seats for a demand, using no more tasks per node than the cut leaves.
Search = Callable[[Demand, Cut | None], Seating | None]
#: GPUs of equal charge: the model and, for a slice, the VRAM.
Device = tuple[str, int]


class Allowances:
    """What queues may use in a draft."""

    def __init__(self, draft: Draft) -> None:
        self._draft, self._topology = draft, draft.capacity.topology
        self._depends: dict[TaskDemand, bool] = {}

    def shortfall(self, gang: Gang, size: int) -> Shortfall | None:
        """The first limit of its queue or user that a gang would exceed on any GPUs."""
        if not self._draft.queues.is_bounded(gang.queue):
            return None
        short = self.shortfall_of(gang, self._topology.least_charge(gang.demand, size))
        return self._of(gang, size).shortfall() if short is None and self.depends_on_gpus(gang) else short

    def shortfall_of(self, gang: Gang, charge: Mapping[str, int]) -> Shortfall | None:
        """The first limit of its queue or user that this charge would exceed."""
        tree, snapshot = self._draft.queues, self._draft.snapshot
        gpu_ms = charge.get(GPU_MILLI, 0) * snapshot.expected_ms(gang) // 1000
        return next(tree.shortfalls(gang.queue, gang.user, charge, gpu_ms, self._draft.now_ms), None)

    def may_have(self, gang: Gang, seats: Sequence[Seat]) -> bool:
        return self._shortfall_on(gang, seats) is None

    def _shortfall_on(self, gang: Gang, seats: Sequence[Seat]) -> Shortfall | None:
        return self.shortfall_of(gang, dict(self._draft.state.charge_for(gang.demand.task, seats)))

    def narrowed(self, gang: Gang) -> Demand | None:
        """Its demand on GPUs of which its queue may have the whole gang now; None: no restriction, or no GPUs."""
        return self._of(gang, gang.demand.smallest).narrowed if self.depends_on_gpus(gang) else None

    def find(self, gang: Gang, size: int, search: Search) -> tuple[Seating | None, Shortfall | None]:
        """Seats that its queue may be charged for: those that are found first; else on GPUs on which it may have the
        whole gang; else on several kinds of them, as many on each as it may have. If there are none, the limit that
        the seats found first would exceed."""
        found = search(gang.demand, None)
        if found is None or not self.depends_on_gpus(gang):
            return found, None
        short = self._shortfall_on(gang, found.everything)
        if short is None:
            return found, None
        allowance = self._of(gang, size)
        if allowance.narrowed is not None:
            found = search(allowance.narrowed, None)
            if found is not None and self.may_have(gang, found.everything):
                return found, None
        found = search(gang.demand, allowance.cut)
        return (found, None) if found is not None and self.may_have(gang, found.everything) else (None, short)

    def depends_on_gpus(self, gang: Gang) -> bool:
        """Whether quota depends on the placement of a gang."""
        tree, task = self._draft.queues, gang.demand.task
        if not (tree.bounds_models or task.slice_mib) or not tree.is_bounded(gang.queue):
            return False
        known = self._depends.get(task)
        if known is None:
            known = self._depends[task] = len(_devices(self._topology, gang.demand)) > 1
        return known

    def _of(self, gang: Gang, size: int) -> Allowance:
        wanted = size + gang.demand.spares
        return Allowance(self._topology, gang.demand, wanted, lambda charge: self.shortfall_of(gang, charge))


def _devices(topology: Topology, demand: Demand) -> dict[Device, int]:
    """The GPUs that a demand accepts, by what they cost -> the charge for a task there, in thousandths of a GPU."""
    task = demand.task
    found: dict[Device, int] = {}
    for layout in topology.layouts:
        for gpu in layout:
            if task.accepts(gpu):
                device, milli = _device(demand, gpu)
                found[device] = milli
    return found


def _device(demand: Demand, gpu: Gpu) -> tuple[Device, int]:
    slice_mib = demand.task.slice_mib
    if slice_mib:
        return (gpu.model, gpu.vram_mib), slice_mib * 1000 // gpu.vram_mib
    return (gpu.model, 0), demand.task.gpus * 1000


class Allowance:
    """How many tasks of a gang its queue may have on which GPUs. ``wanted``: tasks and spares."""

    def __init__(self, topology: Topology, demand: Demand, wanted: int, short: Test) -> None:
        self._topology = topology
        self._demand = demand
        self._wanted = wanted
        self._short = short
        devices = _devices(topology, demand)
        self._devices = dict(sorted(devices.items(), key=lambda item: (item[1], item[0])))  # the cheapest first

    def shortfall(self) -> Shortfall | None:
        """A bound that keeps the gang out even if all GPUs were free; None if the queue may have it on some of them."""
        if sum(self._most(dict.fromkeys(self._devices, self._wanted)).values()) >= self._wanted:
            return None
        return next(filter(None, (self._short(self._with({}, each, self._wanted)) for each in self._devices)), None)

    @cached_property
    def narrowed(self) -> Demand | None:
        """The same demand of only those GPUs on each of which the queue may have all of it; None if there are none."""
        allowed = [device for device in self._devices if self._most({device: self._wanted})[device] >= self._wanted]
        if not allowed:
            return None
        task, models = self._demand.task, tuple(sorted({model for model, _ in allowed}))
        smallest = {model: min(vram for name, vram in allowed if name == model) for model in models}
        vram_min = max(task.vram_mib_min, max(smallest.values()))
        return replace(self._demand, task=replace(task, models=models, vram_mib_min=vram_min))

    def cut(self, column: Sequence[int]) -> list[int]:
        """Of what each node could hold, as much as the queue may have: in each domain that may hold the gang, from the
        GPUs that cost least on. Nodes with GPUs of several models take part with none."""
        found, topology = [0] * len(column), self._topology
        of_kind = [self._only_device(layout) for layout in topology.layouts]
        for lo, hi in self._domains(len(column)):
            nodes: dict[Device, list[tuple[int, int]]] = {}
            for n in range(lo, hi):
                device = of_kind[topology.kind[n]] if column[n] else None
                if device is not None:
                    nodes.setdefault(device, []).append((column[n], n))
            rooms = {device: sum(room for room, _ in nodes[device]) for device in self._devices if device in nodes}
            for device, most in self._most(rooms).items():
                for room, n in few(nodes[device], most) if most else ():
                    found[n] = room
        return found

    def _domains(self, nodes: int) -> list[tuple[int, int]]:
        within, topology = self._demand.within, self._topology
        if within == NODE_LEVEL:
            return [(n, n + 1) for n in range(nodes)]
        level = topology.level_index(within) if within else None
        return [(0, nodes)] if level is None else [(each.lo, each.hi) for each in topology.by_level[level]]

    def _only_device(self, layout: Sequence[Gpu]) -> Device | None:
        devices = {_device(self._demand, gpu)[0] for gpu in layout if self._demand.task.accepts(gpu)}
        return devices.pop() if len(devices) == 1 else None

    def _most(self, rooms: Mapping[Device, int]) -> dict[Device, int]:
        """Of the tasks for which there would be room, how many the queue may have, taken in order."""
        charge: dict[str, int] = {}
        left, found = self._wanted, dict[Device, int]()
        for device, room in rooms.items():
            # how many fit is found by halving: the more there are, the less they are allowed
            counts = range(1, min(left, room) + 1)
            count = bisect_left(counts, True, key=lambda n: self._short(self._with(charge, device, n)) is not None)
            found[device], left = count, left - count
            charge = self._with(charge, device, count)
        return found

    def _with(self, charge: Mapping[str, int], device: Device, count: int) -> dict[str, int]:
        milli, total = self._devices[device] * count, dict(charge)
        of_model = f"{GPU_MILLI}:{device[0]}"
        for name, amount in (*self._demand.task.amounts, (GPU_MILLI, 0)):
            total[name] = total.get(name, 0) + amount * count
        total[GPU_MILLI] += milli
        total[of_model] = total.get(of_model, 0) + milli
        return total
