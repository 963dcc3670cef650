"""How a placement affects speed: ranks that are further apart wait longer for each other.

A documented, replaceable model (docs/simulator.md has the sources of its figures): a job within the reach of NVLink
runs at full speed; one that spans nodes loses a part of it, a larger part with every level of the topology it has to
cross, and most if one of its tensor-parallel groups is split. Knows seats and the tree, not time or work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from corral.core.cluster.resources import Seat
from corral.core.state import State


class Slowdown(Struct, frozen=True):
    """The speed, in thousandths, of a job that crosses a level: the outermost one that it crosses counts."""

    across_nodes: int = 930  # all nodes under one leaf switch
    across: tuple[tuple[str, int], ...] = (("rack", 880), ("spine", 820), ("zone", 700))  # by name of the level
    scattered: int = 800  # for a job that would fit on one node, and is on several
    torn: int = 500  # for a job with a tensor-parallel group that is split between NVLink domains


DEFAULT_SLOWDOWN = Slowdown()


class ByDistance:
    """A speed model: by the distance between the seats of a job."""

    def __init__(
        self, state: State, slowdown: Slowdown = DEFAULT_SLOWDOWN, talks: Mapping[str, int] | None = None
    ) -> None:
        self._state = state
        self._slowdown = slowdown
        self._talks = talks or {}
        self._across = dict(slowdown.across)

    def __call__(self, job: str, seats: Sequence[Seat]) -> int:
        """``talks``: communication of the job: the part of the usual loss, in thousandths; 0: no loss."""
        return 1000 - (1000 - self._usual(job, seats)) * self._talks.get(job, 1000) // 1000

    def _usual(self, job: str, seats: Sequence[Seat]) -> int:
        topology = self._state.topology
        numbers = [topology.number.get(seat.node) for seat in seats]
        nodes = {n for n in numbers if n is not None}
        reach = topology.nvlink_level  # GPUs in one domain of this level are as close as those of one node
        if len(nodes) < 2 or (reach is not None and len({topology.above[n][reach] for n in nodes}) == 1):
            return 1000
        speed = self._slowdown.across_nodes
        for level in range(len(topology.levels) - 1, 0, -1):
            if len({topology.above[n][level] for n in nodes}) == 1:
                break
            speed = self._across.get(topology.levels[level], speed)
        if sum(seat.gpus.bit_count() for seat in seats) <= topology.gpus_max:
            speed = speed * self._slowdown.scattered // 1000
        if self._is_torn(job, [n if n is None or reach is None else topology.above[n][reach] for n in numbers]):
            speed = speed * self._slowdown.torn // 1000
        return speed

    def _is_torn(self, job: str, places: Sequence[int | None]) -> bool:
        """Whether consecutive ranks of one tensor-parallel group are in different domains."""
        known = self._state.jobs.get(job)
        size = 1 if known is None else known.spec.gangs[0].demand.chunk
        return any(len(set(places[at : at + size])) > 1 for at in range(0, len(places), size))
