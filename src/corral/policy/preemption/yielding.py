"""Which gangs have had their turn, and may be asked to yield to an equal that comes before them by its index.

A gang yields only if it saves its work, has run for ``time_share`` times the cost of a switch (its grace and its
restart cost) since it started, and its index is more than twice that of the other gang plus four times what the switch
costs in GPU time: so switches are few, and no two gangs take turns back and forth. Does not know rights or placement.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import cast

from corral.core.cluster.resources import least_gpu_milli
from corral.core.model import Gang, GangState
from corral.core.snapshot import Draft, Snapshot
from corral.core.state import State
from corral.policy.index import index_of

TIMES, PRICES = 2, 4
#: Turns are checked no more often than this.
LOOK_AGAIN_MS = 60_000


class Turns:
    """The gangs that may be asked to yield in one draft, by priority."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._snapshot, self._state = draft.snapshot, draft.state
        self._indexes: dict[str, int] = {}  # of waiting gangs

    @cached_property
    def _asked(self) -> dict[int, dict[str, int]]:
        """By priority: the gangs that have had their turn, and the index below which others make them yield."""
        found: dict[int, dict[str, int]] = {}
        for (queue, priority), gangs in self._state.held_by.items():
            is_on = self._snapshot.shares_time(priority) and self._state.queues.queues[queue].spec.time_share
            if is_on and self._state.backlog.ages.get(priority):
                for name, gang in gangs.items():
                    below = self._yields_below(gang)
                    if below > 0 and gang.state is GangState.RUNNING and name not in self._draft.leaving:
                        found.setdefault(priority, {})[name] = below
        return found

    @cached_property
    def _known(self) -> dict[tuple[str, int, int], int]:
        """Results for gangs and attempts as of the last full minute: a gang is not looked at in every plan."""
        as_of = (self._as_of.now_ms, self._state.predictions.version)
        before, known = self._state.memory.get("turns", (None, {}))
        if before != as_of:
            known = {}
            self._state.memory["turns"] = as_of, known
        return cast(dict[tuple[str, int, int], int], known)

    @cached_property
    def _as_of(self) -> Snapshot:
        return Snapshot(self._state, self._snapshot.now_ms // LOOK_AGAIN_MS * LOOK_AGAIN_MS)

    @cached_property
    def _most(self) -> dict[int, int]:
        return {priority: max(gangs.values(), default=0) for priority, gangs in self._asked.items()}

    def will_gather(self, gang: Gang) -> bool:
        """Whether gangs that yield in time hold what this one wants: then nothing need be kept free for it."""
        yielding, _ = self._snapshot.yielding.get(gang.priority, (0, 0))
        return self._snapshot.shares_time(gang.priority) and yielding >= least_gpu_milli(gang.demand) > 0

    def may_be_asked(self, priority: int) -> bool:
        """Whether any gang of this priority may be asked to yield."""
        return priority in self._most

    def may_ask(self, gang: Gang) -> bool:
        """Whether any gang yields to this one, if shares and seats allow."""
        most = self._most.get(gang.priority)
        return most is not None and self._index(gang) < most

    def is_before(self, gang: Gang, victim: Gang) -> bool:
        """Whether a gang that holds seats has had its turn and yields to this one by their indexes."""
        return self._index(gang) < self._asked.get(gang.priority, {}).get(victim.id, 0)

    def leave(self, gangs: Iterable[str]) -> None:
        """These are preempted in this plan."""
        for name in gangs:
            for asked in self._asked.values():
                asked.pop(name, None)
        self.__dict__.pop("_most", None)

    def _index(self, gang: Gang) -> int:
        known = self._indexes.get(gang.id)
        if known is None:
            known = self._indexes[gang.id] = index_of(self._snapshot, gang) or 0
        return known

    def _yields_below(self, gang: Gang) -> int:
        """The gang yields to others whose index is below this; 0: to none, since it has not had its turn."""
        key = (gang.id, gang.attempt, self._state.queues.queues[gang.queue].spec.time_share)
        known = self._known.get(key)
        if known is None:
            spec, switch = self._state.jobs[gang.job].spec, switch_ms(self._state, gang)
            least_ms = max(quantum_ms(self._state, gang), spec.min_runtime_ms)
            known = 0
            if spec.saves and self._as_of.run_ms(gang) >= least_ms:
                index = index_of(self._as_of, gang) or 0
                known = max(0, index - PRICES * gang.gpu_milli * switch) // TIMES
            self._known[key] = known
        return known


def switch_ms(state: State, gang: Gang) -> int:
    """What it costs to stop a gang and start it again: its grace and its restart cost."""
    spec = state.jobs[gang.job].spec
    return max(1, spec.restart_cost_ms + spec.grace_ms)


def quantum_ms(state: State, gang: Gang) -> int:
    """The least time that a gang runs before it may be asked to yield to an equal."""
    return state.queues.queues[gang.queue].spec.time_share * switch_ms(state, gang)


def next_beat_ms(snapshot: Snapshot) -> int | None:
    """When to check turns next: at a common interval, not once per running gang. None: no gang shares time."""
    state = snapshot.state
    sharing = [
        next(iter(gangs.values()))
        for (queue, priority), gangs in state.held_by.items()
        if gangs and state.queues.queues[queue].spec.time_share and snapshot.shares_time(priority)
    ]
    if not sharing:
        return None
    often_ms = max(LOOK_AGAIN_MS, min(quantum_ms(state, gang) for gang in sharing) // 2)
    return (snapshot.now_ms // often_ms + 1) * often_ms
