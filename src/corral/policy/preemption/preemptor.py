"""Preemption: the cheapest set of gangs that must be preempted so that a waiting gang can start.

The least disruptive way is tried first: elastic gangs shrink; then gangs of queues that borrow are preempted; then
gangs with lower priorities; then equals that have had their turn (``yielding``). Victims are found by placement, not by
sums. The set is legal as a whole: no other queue falls below its guarantee unless the gang is entitled to reclaim.
Decides about one gang at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from corral.core.cluster.resources import GPU_MILLI, Demand, Seat, SizeClass, TaskDemand
from corral.core.cluster.slots import could_take
from corral.core.model import NEVER_MS, Cause, Gang, GangState
from corral.core.plan import MakeRoom, Victim
from corral.core.queues.budget import Run
from corral.core.queues.quota import Shortfall
from corral.core.snapshot import ROOM_MS, Draft
from corral.core.state import seated
from corral.policy.cycle.fairness import Shares
from corral.policy.placement.seating import FREE, Bounds, Seating, find_seats
from corral.policy.preemption.ledger import Ledger
from corral.policy.preemption.rights import Group, Rights
from corral.policy.preemption.search import EXACT_MAX, cheapest
from corral.policy.preemption.vacancy import Candidate, by_node
from corral.policy.preemption.yielding import Turns

EFFORT = 512  # candidates per search, on average; searches in a small cluster cost less, so more are allowed
LEAST_EFFORT = 128  # a search counts as at least this many candidates
NODES_LOOKED_AT = 4  # checking this many nodes costs as much as one candidate

STAGES = (Cause.SHRINK, Cause.RECLAIM, Cause.PRIORITY, Cause.TIME_SHARE)


#: The key under which a search without result is remembered.
Question = tuple[object, ...]


#: A group, the right to preempt its gangs, and the queues whose guarantees protect it: see ``Rights.of``.
_Asked = tuple[Group, Cause, tuple[str, ...]]


class Preemption(Struct, frozen=True):
    """Which ways of making room a policy uses."""

    causes: tuple[Cause, ...] = STAGES
    #: after this many searches without result in one cycle, of EFFORT candidates on average, room is searched for only
    #: for smaller demands and for queues below their guarantee
    failures_max: int = 8


class Preemptor:
    """Makes room within one draft. Remembers which gangs may be preempted, and which searches had no result."""

    def __init__(self, draft: Draft, rules: Preemption) -> None:
        self._draft, self._rules = draft, rules
        self._snapshot, self._state = draft.snapshot, draft.state
        self._failed: set[tuple[Question, Bounds]] = set()
        self._searches_failed = self._searched = 0  # number of searches, and of candidates in them
        self._least_failed = (NEVER_MS, NEVER_MS)  # smallest task, fewest tasks, of searches without result
        self._may_have: dict[tuple[str, int], bool] = {}
        self._known: dict[_Asked, tuple[list[Candidate], list[Candidate]]] = {}
        self._keys: dict[Group, list[_Asked]] = {}  # the keys of a group in _known
        self._nobody: dict[tuple[str, int], int] = {}  # (queue, priority) -> gangs that want this much may preempt none
        self._owed: dict[str, bool] = {}  # queue -> whether it is below its guarantee
        self._owed_as_of = 0  # the number of served gangs when _owed was computed
        self._usable: dict[int, bool] = {}
        self._shares = Shares(draft)  # as of the last search
        self._on_claims: dict[str, tuple[Gang, tuple[Seat, ...]]] = {}  # gangs that start on their claims in this draft
        self._widest = 0
        self._bounds, self._demand = FREE, Demand(task=TaskDemand())  # of the gang that needs room
        self.has_given_up = False  # room is searched for only for gangs of queues below their guarantee
        self._is_over, self._looked_at = False, (-1, -1)

    @cached_property
    def turns(self) -> Turns:
        return Turns(self._draft)

    @cached_property
    def _rights(self) -> Rights:
        return Rights(self._draft, [gang for gang, _ in self._on_claims.values()])

    def started(self, gang: Gang, seats: tuple[Seat, ...]) -> None:
        """A gang starts on the seats that it claims. Another gang may have the right to preempt it: then it does not
        start, which costs nothing. Call this before a search."""
        self._on_claims[gang.id] = gang, seats

    def forget(self) -> None:
        """Gangs that were preempted leave more than was needed: searches that had no result are made again."""
        self._failed.clear()

    def may_have_rights(self, queue: str, priority: int) -> bool:
        """False if a search for gangs to preempt is certain to fail, or not tried, for this queue and priority."""
        if not self._rules.causes:
            return False
        known = self._may_have.get((queue, priority))
        if known is None:
            is_tried = not self.has_given_up or self.is_owed(queue)
            may_exist = self._rights.may_exist(queue, priority) or self.turns.may_be_asked(priority)
            known = self._may_have[queue, priority] = is_tried and may_exist
        return known

    def may_insist(self, queue: str, priority: int, demand: Demand) -> bool:
        """The same for gangs of this queue and priority with this demand."""
        return self.may_have_rights(queue, priority) and not self._is_given_up(queue, demand)

    def could_take(self, classes: Mapping[SizeClass, Iterable[Demand]]) -> dict[SizeClass, bool]:
        """Whether the demands of each class may fit once all leaving gangs are gone. False: they certainly do not."""
        capacity = self._draft.capacity
        mark = capacity.mark()
        self._forget_leaving()
        firsts = {kind: next(iter(demands)) for kind, demands in classes.items()}
        found = {kind: could_take(capacity, demand, demand.smallest) for kind, demand in firsts.items()}
        capacity.undo(mark)
        return found

    def made(self, evicted: Iterable[Gang]) -> None:
        """The draft has evicted these gangs. Update which other gangs may be preempted."""
        self._rights.refresh()
        self.turns.leave(gang.id for gang in evicted)
        self._may_have.clear()
        self._owed.clear()
        leaving, served = self._draft.leaving, self._draft.served
        groups = {(gang.queue, gang.priority) for gang in evicted}
        for candidates in (each for group in groups for key in self._keys.get(group, ()) for each in self._known[key]):
            candidates[:] = [
                c
                for c in candidates
                if (name := c.gang.id) in self._on_claims or (name not in leaving and name not in served)
            ]
        # other gangs of the same queues may be within the guarantee now
        less = {name for queue, _ in groups for name in self._draft.queues.path(queue)}
        for key in [key for key in self._known if key[1] is Cause.PRIORITY and not less.isdisjoint(key[2])]:
            del self._known[key]
            self._keys[key[0]].remove(key)

    def make(
        self, gang: Gang, size: int, bounds: Bounds = FREE, rather: Demand | None = None, widest: int = 0
    ) -> MakeRoom | None:
        """How to make room for a gang of this size, or None. The draft is left as it was. ``widest``: the outermost
        level within which all its seats must be.

        ``rather`` is tried before the gang's own demand: it accepts only GPUs for which the queue has enough quota. On
        other GPUs the gang can start only if the victims give back the missing quota.
        """
        has_rights, self._widest = self._has_rights(gang), widest
        key = self._question(gang, has_rights, widest)
        if key is None or (key, bounds) in self._failed:
            return None
        if not has_rights and not self._is_allowed(gang, size, ()):
            return None  # not remembered as failed: quota of other queues may suffice
        found = self._make_within(gang, size, bounds, rather, has_rights)
        if found is None:
            self._failed.add((key, bounds))
            # without a right to preempt, it is cheap to check whether the bounds were the reason
            if bounds is not FREE and not has_rights and not self._make_within(gang, size, FREE, rather, has_rights):
                self._failed.add((key, FREE))
        return found

    def _make_within(
        self, gang: Gang, size: int, bounds: Bounds, rather: Demand | None, has_rights: bool
    ) -> MakeRoom | None:
        self._bounds, found = bounds, None
        for demand in (gang.demand,) if rather is None else (rather, gang.demand):
            self._demand = claimed_as(demand)
            found = found or self._make(gang, size, has_rights)
        return found

    def vacant_ms(self, decision: MakeRoom) -> int:
        """The latest time at which the seats of this decision become free: each victim may use its whole grace."""
        gangs = self._state.gangs
        tenants = self._state.tenants
        jobs = self._state.jobs
        leaving = {*self._draft.leaving, *(victim.gang for victim in decision.victims)}
        latest = now = self._draft.now_ms
        for name in {name for seat in decision.seats for name in tenants[seat.node]}:
            gang = gangs[name]
            if gang.state is GangState.STOPPING and gang.eviction is not None:
                latest = max(latest, gang.eviction.deadline_ms)
            elif name in leaving:
                latest = max(latest, now + jobs[gang.job].spec.grace_ms)
        return latest

    def is_worth_asking(self, gang: Gang) -> bool:
        """False if no room will be made for a gang of any size: no gang may be preempted, or a search had no result."""
        return self._question(gang, self._has_rights(gang)) is not None

    def nobody_to_ask(self, gang: Gang) -> bool:
        """Whether no gang is leaving or may be preempted for gangs of this queue, priority and class of demand."""
        return not self._state.stopping and not self._draft.leaving and not self._has_rights(gang)

    def _has_rights(self, gang: Gang) -> bool:
        """False if no gang may be preempted for this one, as was found for a gang that wanted no more."""
        key = (gang.queue, gang.priority)
        if not self.may_insist(*key, gang.demand):
            return False
        if self._rights.depend_on_gang(gang) and self.turns.may_ask(gang):
            return True
        if not self._rights.may_exist(*key):
            return False
        wanted = self._wanted(gang.demand)
        return not wanted or wanted < self._nobody.get(key, NEVER_MS)

    def _question(self, gang: Gang, has_rights: bool, widest: int = 0) -> Question | None:
        """Everything that decides whether room can be made, except where the gang may start (``bounds``). None: not
        worth a search. One reason is a search without bounds that had no result: bounds only leave less room."""
        if not has_rights and not self._state.stopping and not self._draft.leaving:
            return None
        key: Question = (gang.demand, widest, (*gang.profile.avoid, *self._snapshot.too_short(gang, ROOM_MS)))
        if has_rights:
            length = self._snapshot.expected_ms(gang) if self._draft.queues.has_budget(gang.queue) else 0
            name = gang.id if self._rights.depend_on_gang(gang) else ""
            key = (*key, gang.queue, gang.priority, gang.user, length, name)
        return None if (key, FREE) in self._failed else key

    def _make(self, gang: Gang, size: int, has_rights: bool) -> MakeRoom | None:
        capacity = self._draft.capacity
        mark = capacity.mark()
        try:
            self._forget_leaving()
            if self._leaving() and self._is_allowed(gang, size, ()):
                seating = self._seats(gang, size)
                if seating is not None and self._may_sit(gang, seating, ()):
                    return MakeRoom(gang.id, gang.attempt + 1, seating.everything, ())
            return self._ask(gang, size) if has_rights else None
        finally:
            capacity.undo(mark)

    def _ask(self, gang: Gang, size: int) -> MakeRoom | None:
        """Search for victims stage by stage, the least disruptive first, until there is enough room."""
        wanted, key = self._charge(gang, size).get(GPU_MILLI, 0), (gang.queue, gang.priority)
        by_stage = self._candidates(gang, size)
        if not by_stage:
            if wanted and not self._rights.depend_on_gang(gang):
                self._nobody[key] = min(wanted, self._nobody.get(key, NEVER_MS))  # larger gangs are entitled to less
                if not self._rights.is_owed(gang.queue):
                    self._may_have[key] = False
            self._was_in_vain(gang, size, 0)
            return None
        candidates: list[Candidate] = []
        for cause in STAGES:
            if by_stage.get(cause):
                candidates += by_stage[cause]
                picked = self._search(gang, size, candidates)
                if picked is not None:
                    return picked
        self._was_in_vain(gang, size, len(candidates))
        return None

    def _was_in_vain(self, gang: Gang, size: int, candidates: int) -> None:
        self._searches_failed += 1
        nodes = len(self._state.topology.nodes) if candidates else 0
        self._searched += max(LEAST_EFFORT, candidates, nodes // NODES_LOOKED_AT)
        task, tasks = self._least_failed
        self._least_failed = (min(task, gang.demand.task.gpus), min(tasks, size))
        if not self.has_given_up and self._has_searched_enough and self._wants_nobody_less():
            self.has_given_up = True
            self._may_have = {key: known and self.is_owed(key[0]) for key, known in self._may_have.items()}

    def _wants_nobody_less(self) -> bool:
        """Whether every waiting gang wants at least as much as the smallest search without result."""
        task, tasks = self._least_failed
        firsts = [next(iter(demands)) for demands in self._state.backlog.classes.values()]
        return all(each.task.wants_gpu and each.task.gpus >= task and each.smallest >= tasks for each in firsts)

    def _is_given_up(self, queue: str, demand: Demand) -> bool:
        """After many searches without result in one plan, no more are made for gangs that want at least as much."""
        if not self._has_searched_enough or demand.task.gpus < self._least_failed[0]:
            return False
        return demand.smallest >= self._least_failed[1] and not self.is_owed(queue)

    def is_owed(self, queue: str) -> bool:
        """Whether a queue is below its guarantee."""
        if self._owed_as_of != len(self._draft.served):
            self._owed_as_of = len(self._draft.served)
            self._owed.clear()
        is_owed = self._owed.get(queue)
        if is_owed is None:
            is_owed = self._owed[queue] = self._rights.is_owed(queue)
        return is_owed

    @property
    def _has_searched_enough(self) -> bool:
        most = self._rules.failures_max
        return self._searches_failed >= most and self._searched >= most * EFFORT

    def is_over(self) -> bool:
        """Whether it is certain that this plan preempts no other gang: too many searches had no result, no waiting gang
        wants less, and no queue with waiting gangs is below its guarantee. Once true, it stays true."""
        as_of = (self._searches_failed, len(self._draft.served))
        if not self._is_over and self.has_given_up and as_of != self._looked_at:
            self._looked_at = as_of
            self._is_over = not any(self.is_owed(queue) for _, queue in self._state.backlog.buckets)
        return self._is_over

    def _leaving(self) -> list[Gang]:
        gangs = self._state.gangs
        return [*self._state.stopping.values(), *(gangs[name] for name in self._draft.leaving)]

    def _forget_leaving(self) -> None:
        """Count what leaving gangs hold as free, unless another gang has claimed it."""
        capacity = self._draft.capacity
        for gang in self._leaving():
            for n, seat in seated(capacity.topology, gang.all_seats):
                capacity.pledge(n, gang.amounts, 1)
                capacity.give_back(n, seat.gpus, seat.slice_mib, gang.amounts)

    def _seats(self, gang: Gang, size: int) -> Seating | None:
        avoid = self._snapshot.avoid(gang, ROOM_MS)
        return find_seats(self._draft.capacity, self._demand, size, avoid, self._bounds, widest=self._widest)

    def _charge(self, gang: Gang, size: int) -> dict[str, int]:
        return self._state.topology.least_charge(gang.demand, size)

    def _wanted(self, demand: Demand) -> int:
        """The least that a gang of the smallest size is charged, in thousandths of a GPU."""
        return self._state.topology.least_charge(demand, demand.smallest).get(GPU_MILLI, 0)

    # ---- candidates --------------------------------------------------------------------------------------------

    def _candidates(self, gang: Gang, size: int) -> dict[Cause, list[Candidate]]:
        """All gangs that may be preempted or shrunk, by stage."""
        self._shares = Shares(self._draft)
        found: dict[Cause, list[Candidate]] = {}
        for right, beside, group in self._rights.of(gang, self._charge(gang, size)):
            if right in self._rules.causes:
                wholes, parts = self._group(gang, right, beside, group)
                if wholes:
                    found.setdefault(right, []).extend(wholes)
                if parts:
                    found.setdefault(Cause.SHRINK, []).extend(parts)
        return found

    def _group(
        self, gang: Gang, right: Cause, beside: tuple[str, ...], group: Group
    ) -> tuple[list[Candidate], list[Candidate]]:
        """The gangs of a group that may be preempted by this right, and those that may shrink. They depend on the
        waiting gang only where time is shared; otherwise they are remembered. ``beside``: see ``Rights.of``."""
        key = (group, right, beside)
        known = self._known.get(key)
        if known is None:
            within = self._rights.within_guarantee(beside) if right is Cause.PRIORITY else frozenset()
            asked = [victim for victim in self._asked(gang, right, group) if victim.id not in within]
            wholes = [self._whole(victim, right, not beside) for victim in asked]
            elastic = [whole for whole in wholes if whole.gang.demand.tasks_min and right is not Cause.TIME_SHARE]
            known = wholes, [part for whole in elastic for part in self._partly(whole)]
            if right is not Cause.TIME_SHARE:
                self._known[key] = known
                self._keys.setdefault(group, []).append(key)
        return known

    def _whole(self, victim: Gang, right: Cause, may_go_below: bool) -> Candidate:
        price, seats = self._snapshot.price_gpu_ms(victim), victim.all_seats
        if victim.id in self._on_claims:
            price = 0
            seats = self._on_claims[victim.id][1]
        on = by_node(self._draft.capacity, seats)
        return Candidate(victim, right, price, seats, (), on, may_go_below, right is Cause.RECLAIM)

    def _partly(self, whole: Candidate) -> Iterator[Candidate]:
        """An elastic gang may shrink to its smallest size and keep running."""
        gang, keep = whole.gang, whole.gang.demand.smallest
        if Cause.SHRINK in self._rules.causes and gang.state is GangState.RUNNING and len(gang.seats) > keep:
            freed, rest = gang.seats[keep:], gang.seats[:keep]
            yield replace(whole, cause=Cause.SHRINK, frees=freed, keep=rest, on=by_node(self._draft.capacity, freed))

    def _asked(self, gang: Gang, right: Cause, group: Group) -> list[Gang]:
        """The gangs of a group that may be preempted by this right. A reclaim ignores ``preemptible``."""
        askable = self._rights.askable(group)
        if right is Cause.RECLAIM:
            return list(askable)
        jobs, run_ms = self._state.jobs, self._snapshot.run_ms
        willing = [
            each
            for each in askable
            if (spec := jobs[each.job].spec).preemptible
            and not (spec.min_runtime_ms and run_ms(each) < spec.min_runtime_ms)
            and each.save_ms <= spec.grace_ms  # otherwise it would be killed while it saves
        ]
        return [each for each in willing if self._yields_to(each, gang)] if right is Cause.TIME_SHARE else willing

    def _yields_to(self, victim: Gang, gang: Gang) -> bool:
        """Whether a gang has had its turn, saves its work, and comes after the waiting one by share and by index, by
        more than a switch costs. It does not yield if it holds more than the other wants and more than all waiting
        gangs could use: the rest would be idle."""
        wanted = self._wanted(gang.demand)
        return (
            self.turns.is_before(gang, victim)
            and (victim.gpu_milli <= wanted or self._could_be_used(victim.gpu_milli))
            and self._is_due(gang, victim)
        )

    def _is_due(self, gang: Gang, victim: Gang) -> bool:
        """Whether the waiting gang's queue and user have had less of their shares, where the two differ."""
        if gang.queue == victim.queue:
            if gang.user == victim.user:
                return True
            return self._shares.user(gang.queue, gang.user) < self._shares.user(gang.queue, victim.user)
        mine, theirs = self._draft.queues.path(gang.queue), self._draft.queues.path(victim.queue)
        parting = next(((one, other) for one, other in zip(mine, theirs, strict=False) if one != other), None)
        return parting is not None and self._shares.queue(parting[0]) < self._shares.queue(parting[1])

    def _could_be_used(self, gpu_milli: int) -> bool:
        """Whether the waiting gangs of at most this size want at least this much in total."""
        known = self._usable.get(gpu_milli)
        if known is None:
            total = 0
            for demand, lengths in self._state.backlog.demands.items():
                wanted = self._wanted(demand)
                if wanted <= gpu_milli:
                    total += wanted * sum(lengths.values())
            known = self._usable[gpu_milli] = total >= gpu_milli
        return known

    # ---- search ------------------------------------------------------------------------------------------------

    def _search(self, gang: Gang, size: int, candidates: Sequence[Candidate]) -> MakeRoom | None:
        def is_enough(chosen: Sequence[Candidate]) -> bool:
            return is_allowed or self._is_allowed(gang, size, chosen)

        may_be_charged = self._is_allowed(gang, size, ())
        # then it stays allowed, whichever gangs leave, unless a queue does not lend what it no longer uses
        is_allowed = may_be_charged and not self._draft.queues.kept_back
        demand, avoid = self._demand, self._snapshot.avoid(gang, ROOM_MS)
        capacity, bounds = self._draft.capacity, self._bounds
        sets = [candidates]
        if not may_be_charged and len(candidates) > EXACT_MAX:  # gangs that free quota may be enough; if not, all
            helpful = self._helpful(gang, size, candidates)
            sets = [helpful, candidates] if len(helpful) < len(candidates) else sets
        ledger = Ledger(self._draft, gang.queue, self._charge(gang, size))
        found = (cheapest(capacity, demand, size, avoid, bounds, some, ledger, is_enough) for some in sets)
        picked = next(filter(None, found), None)
        if picked is None:
            return None
        mark = capacity.mark()
        for at, candidate in enumerate(picked):  # one after another: together they must still be enough
            picked[at] = self._least_shrunk(gang, size, candidate, picked)
        for candidate in picked:
            candidate.leave(capacity)
        seating = self._seats(gang, size)
        capacity.undo(mark)
        if seating is None or not self._may_sit(gang, seating, picked):
            return None
        victims = tuple(
            Victim(c.gang.id, c.gang.attempt, c.cause, c.price, c.keep)
            for c in sorted(picked, key=lambda c: (c.price, c.gang.rank))
        )
        return MakeRoom(gang.id, gang.attempt + 1, seating.everything, victims)

    def _least_shrunk(self, gang: Gang, size: int, part: Candidate, picked: Sequence[Candidate]) -> Candidate:
        """The same candidate, giving up no more seats than needed if the other candidates leave as picked."""
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
            seating = self._seats(gang, size)
            capacity.undo(mark)
            if seating is not None and self._is_allowed(gang, size, [less if c is part else c for c in picked]):
                return less
        return part

    def _helpful(self, gang: Gang, size: int, candidates: Sequence[Candidate]) -> list[Candidate]:
        """The candidates that free quota of which the gang's queue has too little."""
        tree = self._draft.queues
        shorts = list(tree.shortfalls(gang.queue, gang.user, self._charge(gang, size), 0, self._draft.now_ms))
        if any(short.kind == "not_lent" for short in shorts):
            return list(candidates)  # each gang that leaves helps, whatever its queue
        return [candidate for candidate in candidates if any(self._helps(gang, candidate, short) for short in shorts)]

    def _helps(self, gang: Gang, candidate: Candidate, short: Shortfall) -> bool:
        victim = candidate.gang
        is_user = short.kind != "user_limit" or (victim.user == gang.user and victim.queue == gang.queue)
        return is_user and short.queue in self._draft.queues.path(victim.queue)

    def _is_allowed(self, gang: Gang, size: int, chosen: Iterable[Candidate]) -> bool:
        """Whether the gang's queue may be charged for it once these candidates have left."""
        return self._may_be_charged(gang, self._charge(gang, size), chosen)

    def _may_sit(self, gang: Gang, seating: Seating, chosen: Iterable[Candidate]) -> bool:
        """The same for these seats: a queue may have less quota for some GPU models than for others."""
        if not self._draft.queues.is_bounded(gang.queue):
            return True
        charge = dict(self._state.charge_for(gang.demand.task, seating.everything))
        return self._may_be_charged(gang, charge, chosen)

    def _may_be_charged(self, gang: Gang, charge: dict[str, int], chosen: Iterable[Candidate]) -> bool:
        tree, now_ms = self._draft.queues, self._draft.now_ms
        mark = tree.mark()
        for candidate in chosen:
            victim = candidate.gang
            tree.charge(victim.queue, victim.user, candidate.uncharged(self._state), -1)
            if tree.has_budgets:
                tree.set_run(victim.queue, victim.id, self._ended(candidate))
        gpu_ms = charge.get(GPU_MILLI, 0) * self._snapshot.expected_ms(gang) // 1000
        is_allowed = next(tree.shortfalls(gang.queue, gang.user, charge, gpu_ms, now_ms), None) is None
        tree.undo(mark)
        return is_allowed

    def _ended(self, candidate: Candidate) -> Run:
        """What a candidate will have used of budgets. A gang that shrinks counts for its expected run time again."""
        now_ms, kept = self._draft.now_ms, candidate.gang.gpu_milli - candidate.gpu_milli
        gang, length = candidate.gang, self._snapshot.expected_ms(candidate.gang) if kept else 0
        return Run(gang.placed_ms, now_ms + length, gang.gpu_milli)


def claimed_as(demand: Demand) -> Demand:
    """Preemptor is made in whole GPUs: a slice claims a GPU until it starts, and then takes only its part."""
    task = demand.task
    if not task.slice_mib:
        return demand
    vram = max(task.vram_mib_min, task.slice_mib)
    return replace(demand, task=TaskDemand(1, 0, task.models, vram, task.vram_mib_max, task.amounts))
