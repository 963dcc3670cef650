"""Free resources: columns indexed by node number, and bit sets of nodes by number of free GPUs.

The same columns serve the state (which changes them by events) and a draft (a copy with an undo log, for trying
decisions). Knows seats and masks; knows nothing about gangs, queues, policies or time.

A GPU is free when it is up, not used and not claimed. A claim may be on a GPU whose holder is stopping: when the holder
has stopped, the GPU is free only for the claimant.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from corral.core.cluster.resources import Amounts, Seat, TaskDemand
from corral.core.cluster.topology import Topology
from corral.core.undo import ABSENT, Log, Undoable


class Capacity(Undoable):
    """Columns over one topology."""

    def __init__(self, topology: Topology) -> None:
        nodes = len(topology.nodes)
        kinds = len(topology.layouts)
        sizes = topology.gpus_max + 1
        self.topology = topology
        self.open: list[bool] = [False] * nodes  # whether the node accepts new tasks
        self.up: list[int] = [0] * nodes  # masks: GPUs that are healthy on a node that takes new tasks
        self.used: list[int] = [0] * nodes
        self.claimed: list[int] = [0] * nodes
        self.free: list[int] = [0] * nodes  # up & ~used & ~claimed
        #: vram[(node, gpu)]: MiB left on a GPU that is shared by slices; absent for all others
        self.vram: dict[tuple[int, int], int] = {}
        #: left[name][node]: amount not used; None if the node does not state its amount
        self.left: dict[str, list[int | None]] = _amount_columns(topology)
        #: pledged[(name, node)]: amount claimed minus amount held by gangs that are stopping
        self.pledged: dict[tuple[str, int], int] = {}
        #: rooms[kind][g]: the nodes of a kind with exactly g free GPUs, as a bit set
        self.rooms: list[list[int]] = [[0] * sizes for _ in range(kinds)]
        #: sizes[kind]: the numbers g for which there are such nodes, as a bit set
        self.sizes: list[int] = [0] * kinds
        #: increases whenever there may be more room than before: what did not fit at this value still does not fit
        self.grown = 0
        for n, kind in enumerate(topology.kind):
            self.rooms[kind][0] |= 1 << n
            self.sizes[kind] = 1

    # ---- reading -----------------------------------------------------------------------------------------------

    def amount_left(self, node: int, name: str) -> int | None:
        """The amount a new gang may take: unused, less what is claimed beyond what stopping gangs will release."""
        column = self.left.get(name)
        left = None if column is None else column[node]
        if left is None or not self.pledged:
            return left
        return left - max(0, self.pledged.get((name, node), 0))

    def tasks_by_amounts(self, node: int, wanted: Amounts, most: int) -> int:
        """The number of tasks that the amounts of a node allow, up to ``most``; an unknown capacity allows none."""
        for name, each in wanted:
            left = self.amount_left(node, name)
            if left is None or left < each:
                return 0
            if each and left // each < most:
                most = left // each
        return most

    def sizes_from(self, kind: int, least: int) -> Iterator[int]:
        """The numbers of free GPUs that nodes of a kind have, from ``least`` up, smallest first."""
        sizes = self.sizes[kind] >> least << least
        while sizes:
            low = sizes & -sizes
            yield low.bit_length() - 1
            sizes ^= low

    def shared_slots(self, task: TaskDemand) -> Iterator[tuple[int, int, int]]:
        """(MiB left, node, GPU) of every shared GPU with room for the slice."""
        accepted = self.topology.accepted(task)
        for (n, gpu), left in self.vram.items():
            bit = 1 << gpu
            if left >= task.slice_mib and bit & accepted[self.topology.kind[n]] & self.up[n] & ~self.claimed[n]:
                yield left, n, gpu

    # ---- changing ----------------------------------------------------------------------------------------------

    def take(self, node: int, gpus: int, slice_mib: int, wanted: Amounts) -> None:
        if slice_mib:
            self._take_slice(node, gpus, slice_mib)
            gpus = 0
        self._set_used(node, self.used[node] | gpus, wanted, 1)

    def take_all(self, seats: Sequence[tuple[int, Seat]], wanted: Amounts) -> None:
        """Equivalent to ``take`` for each seat."""
        if len(seats) < 4 or seats[0][1].slice_mib:
            for n, seat in seats:
                self.take(n, seat.gpus, seat.slice_mib, wanted)
        else:
            self._shift(seats, wanted, 1)

    def give_back_all(self, seats: Sequence[tuple[int, Seat]], wanted: Amounts) -> None:
        """Equivalent to ``give_back`` for each seat."""
        if len(seats) < 4 or seats[0][1].slice_mib:
            for n, seat in seats:
                self.give_back(n, seat.gpus, seat.slice_mib, wanted)
        else:
            self._shift(seats, wanted, -1)

    def give_back(self, node: int, gpus: int, slice_mib: int, wanted: Amounts) -> None:
        if slice_mib:
            self._return_slice(node, gpus, slice_mib)
            gpus = 0
        self.grown += 1
        self._set_used(node, self.used[node] & ~gpus, wanted, -1)

    def claim(self, node: int, gpus: int, wanted: Amounts) -> None:
        self._put(self.claimed, node, self.claimed[node] | gpus)
        self.pledge(node, wanted, 1)
        self._refresh(node)

    def unclaim(self, node: int, gpus: int, wanted: Amounts) -> None:
        self._put(self.claimed, node, self.claimed[node] & ~gpus)
        self.pledge(node, wanted, -1)
        self._refresh(node)

    def pledge(self, node: int, wanted: Amounts, sign: int) -> None:
        """+1: claimed, or the holder has stopped; -1: the claim was dropped, or the holder is stopping now."""
        self.grown += 1
        log, pledged = self._log, self.pledged
        for name, each in wanted:
            key = (name, node)
            old = pledged.get(key)
            if log is not None:
                log.append((pledged, key, ABSENT if old is None else old))
            pledged[key] = (old or 0) + sign * each

    def set_up(self, node: int, is_open: bool, healthy: int) -> None:
        """Set whether the node accepts new tasks, and which of its GPUs are healthy."""
        self.grown += 1
        self._put(self.open, node, is_open)
        self._put(self.up, node, healthy if is_open else 0)
        self._refresh(node)

    def copy(self, log: Log | None = None) -> Capacity:
        """An independent copy with an undo log: this one, or one of its own."""
        twin = object.__new__(Capacity)
        twin.topology, twin.grown = self.topology, self.grown
        twin.open = self.open.copy()
        twin.up = self.up.copy()
        twin.used = self.used.copy()
        twin.claimed, twin.free = self.claimed.copy(), self.free.copy()
        twin.vram, twin.pledged = self.vram.copy(), self.pledged.copy()
        twin.left = {name: column.copy() for name, column in self.left.items()}
        twin.rooms = [by_size.copy() for by_size in self.rooms]
        twin.sizes = self.sizes.copy()
        twin._log = [] if log is None else log
        return twin

    # ---- writing -----------------------------------------------------------------------------------------------

    def _set_used(self, node: int, used: int, wanted: Amounts, sign: int) -> None:
        """Set the GPUs in use, and add (or subtract) the amounts. Equivalent to ``_put`` for each."""
        log = self._log
        if log is not None:
            log.append((self.used, node, self.used[node]))
        self.used[node] = used
        for name, each in wanted:
            column = self.left[name]
            left = column[node]
            assert left is not None, "a demand was placed on an unknown capacity"
            if log is not None:
                log.append((column, node, left))
            column[node] = left - sign * each
        self._refresh(node)

    def _take_slice(self, node: int, gpus: int, slice_mib: int) -> None:
        key = (node, gpus.bit_length() - 1)
        whole = self.topology.nodes[node].gpus[key[1]].vram_mib
        self._put(self.vram, key, self.vram.get(key, whole) - slice_mib)
        self._put(self.used, node, self.used[node] | gpus)

    def _return_slice(self, node: int, gpus: int, slice_mib: int) -> None:
        key = (node, gpus.bit_length() - 1)
        left = self.vram[key] + slice_mib
        is_whole = left == self.topology.nodes[node].gpus[key[1]].vram_mib
        if is_whole:
            self._drop(self.vram, key)
            self._put(self.used, node, self.used[node] & ~gpus)
        else:
            self._put(self.vram, key, left)

    def _refresh(self, node: int) -> None:
        free = self.up[node] & ~self.used[node] & ~self.claimed[node]
        old = self.free[node]
        if free == old:
            return
        self._put(self.free, node, free)
        was, now = old.bit_count(), free.bit_count()
        if was != now:
            self._move(self.topology.kind[node], was, now, 1 << node)

    def _move(self, kind: int, was: int, now: int, nodes: int) -> None:
        """These nodes of a kind had ``was`` free GPUs and now have ``now``. Equivalent to ``_put`` for each change."""
        rooms = self.rooms[kind]
        sizes = self.sizes
        log = self._log
        if log is not None:
            log += ((rooms, was, rooms[was]), (rooms, now, rooms[now]), (sizes, kind, sizes[kind]))
        rooms[was] ^= nodes
        rooms[now] ^= nodes
        sizes[kind] = sizes[kind] & ~((not rooms[was]) << was) | 1 << now

    def _shift(self, seats: Sequence[tuple[int, Seat]], wanted: Amounts, sign: int) -> None:
        """Equivalent to ``_set_used`` for each seat, with one change of each bit set."""
        self.grown += sign < 0
        used = self.used
        free = self.free
        log = self._log
        before: dict[int, int] = {}
        for n, seat in seats:
            if n not in before:
                before[n] = free[n]
                if log is not None:
                    log += ((used, n, used[n]), (free, n, free[n]))
            used[n] = used[n] | seat.gpus if sign > 0 else used[n] & ~seat.gpus
        for name, each in wanted:
            column: list[Any] = self.left[name]
            for n, _ in seats:
                if log is not None:
                    log.append((column, n, column[n]))
                column[n] -= sign * each
        grouped: dict[tuple[int, int, int], list[int]] = {}
        for n, old in before.items():
            free[n] = self.up[n] & ~used[n] & ~self.claimed[n]
            if (was := old.bit_count()) != (now := free[n].bit_count()):
                grouped.setdefault((self.topology.kind[n], was, now), []).append(n)
        for (kind, was, now), nodes in grouped.items():
            bits = bytearray(len(self.topology.nodes) // 8 + 1)
            for n in nodes:
                bits[n >> 3] |= 1 << (n & 7)
            self._move(kind, was, now, int.from_bytes(bits, "little"))


def _amount_columns(topology: Topology) -> dict[str, list[int | None]]:
    names = sorted({name for node in topology.nodes for name, _ in node.amounts})
    stated = [dict(node.amounts) for node in topology.nodes]
    return {name: [have.get(name) for have in stated] for name in names}
