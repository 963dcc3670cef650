"""Who makes room: the cheapest set of gangs whose leaving lets another one sit down.

Least disruptive first: elastic gangs give up what they do not need; then borrowers give back; then lower priorities
leave; then, where a queue shares time, who has had more yields. Victims are found by placement, not by sums, and the
set is legal as a whole: nobody is taken below its guarantee by an equal. Decides about one gang at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from corral.core.cluster.resources import GPU_MILLI, Demand, SizeClass, TaskDemand
from corral.core.cluster.slots import could_take
from corral.core.model import NEVER_MS, Cause, Gang, GangState
from corral.core.plan import MakeRoom, Victim
from corral.core.snapshot import ROOM_MS, Draft
from corral.core.state import State, seated
from corral.policy.placement import FREE, Bounds, Seating, find_seats
from corral.policy.rights import Group, Rights
from corral.policy.vacancy import Candidate, by_node
from corral.policy.victims import Ledger, cheapest

#: Whoever shares time is looked at again no more often than this.
LOOK_AGAIN_MS = 60_000

STAGES = (Cause.SHRINK, Cause.RECLAIM, Cause.PRIORITY, Cause.TIME_SHARE)


class Preemption(Struct, frozen=True):
    """Which ways of making room a policy uses."""

    causes: tuple[Cause, ...] = STAGES
    #: searches without result in one cycle, after which only owners and smaller demands are searched for
    failures_max: int = 8


class Room:
    """Makes room within one draft. Remembers who could be asked, and what was tried in vain."""

    def __init__(self, draft: Draft, rules: Preemption) -> None:
        self._draft, self._rules = draft, rules
        self._snapshot, self._state = draft.snapshot, draft.state
        self._failed: set[tuple[object, ...]] = set()
        self._searches_failed = 0
        self._least_failed = (NEVER_MS, NEVER_MS)  # smallest task, fewest tasks, that were searched for in vain
        self._may_have: dict[tuple[str, int], bool] = {}
        self._known: dict[tuple[Group, Cause, bool], tuple[list[Candidate], list[Candidate]]] = {}
        self._keys: dict[Group, list[tuple[Group, Cause, bool]]] = {}  # under which a group is known
        self._nobody: dict[tuple[str, int], int] = {}  # (queue, priority) -> who wants so much may ask nobody
        self._usable: dict[int, bool] = {}
        self._bounds = FREE
        self._is_over, self._looked_at = False, (-1, -1)

    @cached_property
    def _rights(self) -> Rights:
        return Rights(self._draft)

    def may_have_rights(self, queue: str, priority: int) -> bool:
        """False if it is not worth asking whether someone leaves for the sake of this queue and priority."""
        if not self._rules.causes:
            return False
        known = self._may_have.get((queue, priority))
        if known is None:
            known = self._may_have[queue, priority] = self._rights.may_exist(queue, priority)
        return known

    def could_take(self, classes: Mapping[SizeClass, Iterable[Demand]]) -> dict[SizeClass, bool]:
        """Of each class, whether its demands may fit once everyone who is leaving has left; no: certainly not."""
        capacity = self._draft.capacity
        mark = capacity.mark()
        self._forget_leaving()
        firsts = {kind: next(iter(demands)) for kind, demands in classes.items()}
        found = {kind: could_take(capacity, demand, demand.smallest) for kind, demand in firsts.items()}
        capacity.undo(mark)
        return found

    def made(self, evicted: Iterable[Gang]) -> None:
        """The draft has evicted these; whom else one may ask has changed."""
        self._rights.refresh()
        self._may_have.clear()
        leaving, served = self._draft.leaving, self._draft.served
        for group in {(gang.queue, gang.priority) for gang in evicted}:
            for candidates in (each for key in self._keys.get(group, ()) for each in self._known[key]):
                candidates[:] = [c for c in candidates if (name := c.gang.id) not in leaving and name not in served]

    def make(self, gang: Gang, size: int, bounds: Bounds = FREE) -> MakeRoom | None:
        """How to make room for a gang of this size, or None. The draft is left as it was."""
        key = self._question(gang)
        if key is None:
            return None
        self._bounds = bounds
        found = self._make(gang, size, len(key) > 2)
        if found is None:
            self._failed.add(key)
        return found

    def is_worth_asking(self, gang: Gang) -> bool:
        """False if no room will be made for a gang, whatever its size: there is nobody to ask, or it was in vain."""
        return self._question(gang) is not None

    def nobody_to_ask(self, gang: Gang) -> bool:
        """Whether there is nobody to ask for any gang of the same queue, priority and class of demand."""
        return not self._state.stopping and not self._draft.leaving and not self._has_rights(gang)

    def _has_rights(self, gang: Gang) -> bool:
        """False if asking somebody to leave would be in vain; it was, for one that wanted no more."""
        key = (gang.queue, gang.priority)
        if not self.may_have_rights(*key) or self._is_given_up(gang):
            return False
        nobody = self._nobody.get(key)
        return nobody is None or gang.demand.charge(gang.demand.smallest).get(GPU_MILLI, 0) < nobody

    def _question(self, gang: Gang) -> tuple[object, ...] | None:
        """Under what a failure is remembered: with what rights it is asked for what. None: not worth asking."""
        has_rights = self._has_rights(gang)
        key: tuple[object, ...] = (gang.demand, (*gang.profile.avoid, *self._snapshot.too_short(gang, ROOM_MS)))
        if has_rights:
            key = (*key, gang.queue, gang.priority, gang.user)
        elif not self._state.stopping and not self._draft.leaving:
            return None
        return None if key in self._failed else key

    def _make(self, gang: Gang, size: int, has_rights: bool) -> MakeRoom | None:
        capacity = self._draft.capacity
        mark = capacity.mark()
        try:
            self._forget_leaving()
            if self._leaving() and self._is_allowed(gang, size, ()):
                seating = self._seats(gang, size)
                if seating is not None:
                    return MakeRoom(gang.id, gang.attempt + 1, seating.everything, ())
            return self._ask(gang, size) if has_rights else None
        finally:
            capacity.undo(mark)

    def _ask(self, gang: Gang, size: int) -> MakeRoom | None:
        """Ask more and more disruptively until it is enough."""
        wanted, key = gang.demand.charge(size).get(GPU_MILLI, 0), (gang.queue, gang.priority)
        if wanted >= self._nobody.get(key, NEVER_MS):
            return None
        by_stage = self._candidates(gang, size)
        if not by_stage:
            self._nobody[key] = wanted  # the more it wants, the less it is entitled to
            if not self._rights.is_owed(gang.queue):
                self._may_have[key] = False
            return None
        candidates: list[Candidate] = []
        for cause in STAGES:
            if by_stage.get(cause):
                candidates += by_stage[cause]
                picked = self._search(gang, size, candidates)
                if picked is not None:
                    return picked
        self._searches_failed += 1
        task, tasks = self._least_failed
        self._least_failed = (min(task, gang.demand.task.gpus), min(tasks, size))
        return None

    def _is_given_up(self, gang: Gang) -> bool:
        """After many searches in vain in one plan, whoever wants as much as those did is not searched for."""
        if self._searches_failed < self._rules.failures_max or self._rights.is_owed(gang.queue):
            return False
        task, tasks = self._least_failed
        return gang.demand.task.gpus >= task and gang.demand.smallest >= tasks

    def is_over(self) -> bool:
        """Whether certainly nobody else will be asked to leave in this plan: too much was searched for in vain, nobody
        wants less than that, and no queue where somebody waits is owed anything. Once it is over it stays so."""
        as_of = (self._searches_failed, len(self._draft.served))
        if not self._is_over and self._searches_failed >= self._rules.failures_max and as_of != self._looked_at:
            self._looked_at, backlog = as_of, self._state.backlog
            task, tasks = self._least_failed
            self._is_over = all(
                demand.task.wants_gpu and demand.task.gpus >= task and demand.smallest >= tasks
                for demand in (next(iter(demands)) for demands in backlog.classes.values())
            ) and not any(self._rights.is_owed(queue) for _, queue in backlog.desks)
        return self._is_over

    def _leaving(self) -> list[Gang]:
        gangs = self._state.gangs
        return [*self._state.stopping.values(), *(gangs[name] for name in self._draft.leaving)]

    def _forget_leaving(self) -> None:
        """Whoever is already on the way out is no obstacle: what it holds and nobody claims is as good as free."""
        capacity = self._draft.capacity
        for gang in self._leaving():
            for n, seat in seated(capacity.topology, gang.all_seats):
                capacity.pledge(n, gang.amounts, 1)
                capacity.give_back(n, seat.gpus, seat.slice_mib, gang.amounts)

    def _seats(self, gang: Gang, size: int) -> Seating | None:
        demand, avoid = claimed_as(gang.demand), self._snapshot.avoid(gang, ROOM_MS)
        return find_seats(self._draft.capacity, demand, size, avoid, self._bounds)

    # ---- who could be asked ------------------------------------------------------------------------------------

    def _candidates(self, gang: Gang, size: int) -> dict[Cause, list[Candidate]]:
        """Everyone who could be asked, by the stage at which to ask."""
        found: dict[Cause, list[Candidate]] = {}
        for right, may_go_below, group in self._rights.of(gang, gang.demand.charge(size)):
            if right in self._rules.causes:
                wholes, parts = self._group(gang, right, may_go_below, group)
                if wholes:
                    found.setdefault(right, []).extend(wholes)
                if parts:
                    found.setdefault(Cause.SHRINK, []).extend(parts)
        return found

    def _group(
        self, gang: Gang, right: Cause, may_go_below: bool, group: Group
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Those of a group who could be asked by this right: to leave, or to shrink. For whom they leave matters only
        where time is shared, so otherwise they are remembered."""
        key = (group, right, may_go_below)
        known = self._known.get(key)
        if known is None:
            wholes = [self._whole(victim, right, may_go_below) for victim in self._asked(gang, right, group)]
            elastic = [whole for whole in wholes if whole.gang.demand.tasks_min and right is not Cause.TIME_SHARE]
            known = wholes, [part for whole in elastic for part in self._partly(whole)]
            if right is not Cause.TIME_SHARE:
                self._known[key] = known
                self._keys.setdefault(group, []).append(key)
        return known

    def _whole(self, victim: Gang, right: Cause, may_go_below: bool) -> Candidate:
        price, seats = self._snapshot.price_gpu_ms(victim), victim.all_seats
        on = by_node(self._draft.capacity, seats)
        return Candidate(victim, right, price, seats, (), on, may_go_below, right is Cause.RECLAIM)

    def _partly(self, whole: Candidate) -> Iterator[Candidate]:
        """An elastic gang may go on with as few tasks as it can."""
        gang, keep = whole.gang, whole.gang.demand.smallest
        if Cause.SHRINK in self._rules.causes and gang.state is GangState.RUNNING and len(gang.seats) > keep:
            freed, rest = gang.seats[keep:], gang.seats[:keep]
            yield replace(whole, cause=Cause.SHRINK, frees=freed, keep=rest, on=by_node(self._draft.capacity, freed))

    def _asked(self, gang: Gang, right: Cause, group: Group) -> list[Gang]:
        """Those of a group who may be asked by this right. An owner need not ask whether they mind."""
        askable = self._rights.askable(group)
        if right is Cause.RECLAIM:
            return list(askable)
        jobs, run_ms = self._state.jobs, self._snapshot.run_ms
        willing = [
            each
            for each in askable
            if (spec := jobs[each.job].spec).preemptible
            and not (spec.min_runtime_ms and run_ms(each) < spec.min_runtime_ms)
        ]
        return [each for each in willing if self._has_had_more(each, gang)] if right is Cause.TIME_SHARE else willing

    def _has_had_more(self, victim: Gang, gang: Gang) -> bool:
        """Whether a gang has run long enough, saves its work, and has received more than the one that waits.

        One that holds more than it wants, and more than all who wait could use, is not asked: the rest would lie idle.
        """
        spec = self._snapshot.job(victim).spec
        saves = spec.checkpoints or victim.saved_step >= 0
        wanted = gang.demand.charge(gang.demand.smallest).get(GPU_MILLI, 0)
        return (
            saves
            and (victim.gpu_milli <= wanted or self._could_be_used(victim.gpu_milli))
            and self._snapshot.run_ms(victim) >= quantum_ms(self._state, victim)
            and (self._snapshot.served_gpu_ms(victim) > self._snapshot.served_gpu_ms(gang) or self._would_fill_up(gang))
        )

    def _would_fill_up(self, gang: Gang) -> bool:
        """Whether at least half of what a gang wants lies idle anyway: rather than that, others make up the rest."""
        capacity, accepted = self._draft.capacity, self._state.topology.accepted(gang.demand.task)
        kinds = [by_size for mask, by_size in zip(accepted, capacity.rooms, strict=True) if mask]
        idle = sum(size * nodes.bit_count() for by_size in kinds for size, nodes in enumerate(by_size))
        return 2000 * idle >= gang.demand.charge(gang.demand.smallest).get(GPU_MILLI, 0) > 0

    def _could_be_used(self, gpu_milli: int) -> bool:
        """Whether those in line who could sit down on so much want as much, all together."""
        known = self._usable.get(gpu_milli)
        if known is None:
            total = 0
            for demand, lengths in self._state.backlog.demands.items():
                wanted = demand.charge(demand.smallest).get(GPU_MILLI, 0)
                if wanted <= gpu_milli:
                    total += wanted * sum(lengths.values())
            known = self._usable[gpu_milli] = total >= gpu_milli
        return known

    # ---- who is asked ------------------------------------------------------------------------------------------

    def _search(self, gang: Gang, size: int, candidates: Sequence[Candidate]) -> MakeRoom | None:
        def is_enough(chosen: Sequence[Candidate]) -> bool:
            return is_allowed or self._is_allowed(gang, size, chosen)

        is_allowed = self._is_allowed(gang, size, ())  # then it is so whoever leaves
        if not is_allowed:
            candidates = [candidate for candidate in candidates if self._helps(gang, size, candidate)]
        demand, avoid = claimed_as(gang.demand), self._snapshot.avoid(gang, ROOM_MS)
        capacity, bounds = self._draft.capacity, self._bounds
        picked = cheapest(capacity, demand, size, avoid, bounds, candidates, lambda: self._ledger(gang), is_enough)
        if picked is None:
            return None
        mark = capacity.mark()
        picked = [self._least_shrunk(gang, size, candidate, picked) for candidate in picked]
        for candidate in picked:
            candidate.leave(capacity)
        seating = self._seats(gang, size)
        capacity.undo(mark)
        if seating is None:
            return None
        victims = tuple(
            Victim(c.gang.id, c.gang.attempt, c.cause, c.price, c.keep)
            for c in sorted(picked, key=lambda c: (c.price, c.gang.rank))
        )
        return MakeRoom(gang.id, gang.attempt + 1, seating.everything, victims)

    def _least_shrunk(self, gang: Gang, size: int, part: Candidate, picked: Sequence[Candidate]) -> Candidate:
        """The same candidate giving up no more seats than are needed, the others leaving as picked."""
        victim, capacity = part.gang, self._draft.capacity
        for keep in (
            [count for count in victim.demand.sizes() if len(part.keep) < count < len(victim.seats)]
            if part.keep
            else ()
        ):
            freed = victim.seats[keep:]
            less = replace(part, frees=freed, keep=victim.seats[:keep], on=by_node(capacity, freed))
            mark = capacity.mark()
            for candidate in picked:
                (less if candidate is part else candidate).leave(capacity)
            is_enough = self._seats(gang, size) is not None
            capacity.undo(mark)
            if is_enough and self._is_allowed(gang, size, [less if c is part else c for c in picked]):
                return less
        return part

    def _ledger(self, gang: Gang) -> Ledger:
        """Whether one more may be asked.

        An owner takes back while a queue has more than its guarantee: without all of its gangs but the largest it is
        still above, so the order does not matter. A borrower that is merely more important leaves every queue at least
        its guarantee; otherwise the two would take turns for ever.
        """
        tree, now = self._draft.queues, self._draft.now_ms
        given: dict[str, tuple[int, int]] = {}  # queue -> sum and largest of what its gangs give up
        above: dict[str, int] = {}  # queue -> what it has more than its guarantee

        def may_add(candidate: Candidate) -> bool:
            if candidate.may_go_below or not candidate.gpu_milli:
                return True
            after: dict[str, tuple[int, int]] = {}
            for queue in tree.below(candidate.gang.queue, gang.queue):
                total, largest = given.get(queue, (0, 0))
                total, largest = total + candidate.gpu_milli, max(largest, candidate.gpu_milli)
                if queue not in above:
                    used = tree.queues[queue].used.get(GPU_MILLI, 0)
                    above[queue] = used - (tree.guarantee(queue, GPU_MILLI, now) or 0)
                left = above[queue] - total
                if left + largest <= 0 if candidate.is_reclaimed else left < 0:
                    return False
                after[queue] = (total, largest)
            given.update(after)
            return True

        return may_add

    def _helps(self, gang: Gang, size: int, candidate: Candidate) -> bool:
        """Whether a candidate's leaving gives back what the gang's queue has too little of."""
        tree = self._draft.queues
        charge = gang.demand.charge(size)
        for short in tree.shortfalls(gang.queue, gang.user, charge, 0, self._draft.now_ms):
            victim = candidate.gang
            is_user = short.kind != "user_limit" or (victim.user == gang.user and victim.queue == gang.queue)
            if is_user and short.queue in tree.path(victim.queue):
                return True
        return False

    def _is_allowed(self, gang: Gang, size: int, chosen: Iterable[Candidate]) -> bool:
        """Whether the gang's queue may be charged for it once these have left."""
        tree = self._draft.queues
        charge = gang.demand.charge(size)
        freed = [(c.gang, c.uncharged(self._state)) for c in chosen]
        for victim, amounts in freed:
            tree.charge(victim.queue, victim.user, amounts, -1)
        gpu_ms = charge.get(GPU_MILLI, 0) * self._snapshot.expected_ms(gang) // 1000
        is_allowed = next(tree.shortfalls(gang.queue, gang.user, charge, gpu_ms, self._draft.now_ms), None) is None
        for victim, amounts in freed:
            tree.charge(victim.queue, victim.user, amounts, 1)
        return is_allowed


def quantum_ms(state: State, gang: Gang) -> int:
    """How long a gang of a queue that shares time runs at least before it is asked to yield."""
    return state.queues.queues[gang.queue].spec.time_share * max(1, state.jobs[gang.job].spec.restart_cost_ms)


def next_beat_ms(state: State, now_ms: int) -> int | None:
    """When to look again at who shares time: on a common beat, not once for each who runs. None: nobody does."""
    sharing = [
        next(iter(gangs.values()))
        for (queue, _), gangs in state.held_by.items()
        if gangs and state.queues.queues[queue].spec.time_share
    ]
    if not sharing:
        return None
    often_ms = max(LOOK_AGAIN_MS, min(quantum_ms(state, gang) for gang in sharing))
    return (now_ms // often_ms + 1) * often_ms


def claimed_as(demand: Demand) -> Demand:
    """Room is made by whole GPUs: a slice claims a GPU until it sits down, and then takes only its part."""
    task = demand.task
    if not task.slice_mib:
        return demand
    vram = max(task.vram_mib_min, task.slice_mib)
    return replace(demand, task=TaskDemand(1, 0, task.models, vram, task.vram_mib_max, task.amounts))
