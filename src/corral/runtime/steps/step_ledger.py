"""What the steps of a gang hold of its seats, and what is left for another one.

Pure. A step gets its whole share or waits; one that the gang could not hold even alone is refused. A step that may
overlap holds nothing and never waits.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

TASKS_MAX = 4096  # processes of one step
STEPS_MAX = 4096  # that run or wait at one time


class CannotFit(Exception):
    """Why a step can never run in this gang."""


class StepSeat:
    """A seat of the gang as steps see it."""

    def __init__(self, node: str, gpus: list[str], cpus: int, memory_mib: int) -> None:
        self.node = node
        self.gpus = gpus
        self.cpus = cpus
        self.memory_mib = memory_mib  # 0: no limit


class Wanted:
    """A request for a step. ``tasks`` processes on ``nodes`` seats; 0: as many as the other implies. ``is_whole``: all
    CPUs and memory of each seat that it uses. ``gpus``: for each seat, or for each process with ``by_task``; None: all
    of a seat; ``total``: for all seats together. ``names``: nodes that it must use."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.tasks = _count(said, "tasks", TASKS_MAX)
        self.nodes = _count(said, "nodes", TASKS_MAX)
        self.per_node = _count(said, "per_node", TASKS_MAX)
        self.cpus = _count(said, "cpus", 1 << 20) or 1
        self.memory_mib = _count(said, "memory_mib", 1 << 40)
        self.gpus = None if said.get("gpus") is None else _count(said, "gpus", 1 << 16)
        self.unit = str(said.get("unit", "node"))
        self.names = _names(said, "names")
        self.excluded = _names(said, "excluded")
        self.overlaps = bool(said.get("overlaps"))
        self.overcommits = bool(said.get("overcommits"))  # more processes than CPUs
        self.is_whole = bool(said.get("is_whole"))


class StepShare:
    """What a step holds of one seat."""

    def __init__(self, seat: int, tasks: int, gpus: list[str], cpus: int, memory_mib: int) -> None:
        self.seat = seat
        self.tasks = tasks
        self.gpus = gpus
        self.cpus = cpus
        self.memory_mib = memory_mib


class StepLedger:
    def __init__(self, seats: list[StepSeat]) -> None:
        self.seats = seats
        self._held: dict[str, list[StepShare]] = {}

    def allocate(self, step: str, wanted: Wanted) -> list[StepShare] | None:
        """The shares of a step, or None: it must wait for others to end. Raises `CannotFit`."""
        whole = self._place(wanted, {})
        if isinstance(whole, str):
            raise CannotFit(whole)
        found = whole if wanted.overlaps else self._place(wanted, self._held)
        if isinstance(found, str):
            return None
        self._held[step] = [] if wanted.overlaps else found
        return found

    def release(self, step: str) -> None:
        self._held.pop(step, None)

    def _place(self, wanted: Wanted, held: dict[str, list[StepShare]]) -> list[StepShare] | str:
        """The shares beside what others hold, or why there are none."""
        allowed = [n for n, seat in enumerate(self.seats) if seat.node not in wanted.excluded]
        unknown = [name for name in wanted.names if name not in {seat.node for seat in self.seats}]
        if unknown:
            return f"node {unknown[0]} is not part of this job"
        must = [n for n in allowed if self.seats[n].node in wanted.names]
        tasks, nodes = _shape(wanted, len(allowed), len(must))
        if nodes > len(allowed):
            return f"{nodes} nodes are requested, and the job has {len(allowed)}"
        counts = _spread(tasks, nodes)
        if wanted.per_node and counts[0] > wanted.per_node:
            return f"{tasks} tasks on {nodes} nodes are more than {wanted.per_node} on each"
        found: list[StepShare] = []
        why = ""
        others = [n for n in allowed if n not in must]
        for seat in [*must, *others]:
            if len(found) == nodes:
                break
            share = self._share(seat, counts[len(found)], nodes, wanted, held)
            if isinstance(share, str):
                why = share
                if seat in must:
                    return why
            else:
                found.append(share)
        return sorted(found, key=lambda share: share.seat) if len(found) == nodes else why

    def _share(
        self, number: int, tasks: int, nodes: int, wanted: Wanted, held: dict[str, list[StepShare]]
    ) -> StepShare | str:
        seat = self.seats[number]
        used = [share for shares in held.values() for share in shares if share.seat == number]
        cpus = seat.cpus if wanted.is_whole else tasks * wanted.cpus
        memory = seat.memory_mib if wanted.is_whole and not wanted.memory_mib else wanted.memory_mib
        is_full = tasks * wanted.cpus > seat.cpus - sum(share.cpus for share in used) and not wanted.overcommits
        if is_full or (wanted.is_whole and used):
            return f"{tasks} tasks with {wanted.cpus} CPUs each need more than the {seat.cpus} CPUs on {seat.node}"
        if seat.memory_mib and memory > seat.memory_mib - sum(share.memory_mib for share in used):
            return f"{memory} MiB of memory are more than the job has on {seat.node} ({seat.memory_mib} MiB)"
        count = _gpu_count(wanted, tasks, nodes, len(seat.gpus))
        taken = {gpu for share in used for gpu in share.gpus}
        free = [gpu for gpu in seat.gpus if gpu not in taken]
        if count > len(free):
            return f"{count} GPUs on {seat.node} are requested, and the job has {len(seat.gpus)} there"
        return StepShare(number, tasks, free[:count], cpus, memory)


def _shape(wanted: Wanted, seats: int, must: int) -> tuple[int, int]:
    """The numbers of processes and of seats."""
    nodes = wanted.nodes or must or (seats if not wanted.tasks else min(seats, wanted.tasks))
    nodes = max(nodes, must)
    tasks = wanted.tasks or nodes * (wanted.per_node or 1)
    return tasks, min(nodes, tasks)


def _spread(tasks: int, nodes: int) -> list[int]:
    """Consecutive ranks on each seat, the first ones with one more."""
    each, rest = divmod(tasks, nodes)
    return [each + (n < rest) for n in range(nodes)]


def _gpu_count(wanted: Wanted, tasks: int, nodes: int, there: int) -> int:
    if wanted.gpus is None:
        return there
    if wanted.unit == "task":
        return wanted.gpus * tasks
    return -(-wanted.gpus // nodes) if wanted.unit == "total" else wanted.gpus


def _count(said: dict[str, Any], name: str, most: int) -> int:
    value = said.get(name) or 0
    if type(value) is not int or not 0 <= value <= most:
        raise CannotFit(f"{name} must be a number from 0 to {most}")
    return value


def _names(said: dict[str, Any], name: str) -> list[str]:
    value = said.get(name) or []
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise CannotFit(f"{name} must be a list of nodes")
    return value
