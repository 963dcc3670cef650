"""Why a gang waits: the verdict that the plan recorded, all that binds the gang besides, and the gangs in its way.

Nothing is decided here. The plan says why the gang has no seats; what is short, and by how much, is measured on the
snapshot. A gang that runs or has ended has no reasons. Must not know how reasons are shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from msgspec.structs import replace

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import GPU_MILLI, Demand
from corral.core.cluster.slots import fits, gpu_slots, raw_slots, room_by_domain, slots, trimmed
from corral.core.engine import Policy
from corral.core.gang_id import short_name
from corral.core.intake.never_fits import why_never
from corral.core.intake.refusal import Refusal
from corral.core.model import Blocker, Gang, GangState, Health, Reservation
from corral.core.plan import Behind, MakeRoom, NoSeats, PartKept, Place, Plan, Verdict
from corral.core.queues.quota import ROOT, Shortfall
from corral.core.snapshot import Snapshot
from corral.core.state import need_ms, seated
from corral.policy.explain import reasons as r
from corral.policy.placement.seating import FREE, Bounds, Seating, find_seats

IN_THE_WAY_MAX = 10


def explain(snapshot: Snapshot, policy: Policy, gang_id: str) -> r.Hold | Refusal:
    """All reasons why a gang does not start now under this policy."""
    gang = snapshot.state.gangs.get(gang_id)
    if gang is None:
        return Refusal("no_such_gang", f"there is no gang {gang_id!r}")
    if gang.state is not GangState.WAITING:
        return r.Hold(gang.id)
    case = _Case(snapshot, policy, gang)
    return r.Hold(gang.id, tuple(case.reasons()), tuple(case.in_the_way()))


def assumed_ends(snapshot: Snapshot) -> dict[int, int]:
    """Expected ends of running gangs without a stated limit or estimate, and how long each is assumed to run."""
    running = (each for each in snapshot.state.holders.values() if each.state is not GangState.STOPPING)
    unstated = [each for each in running if not each.profile.expected_ms]
    return {snapshot.expected_end_ms(each): snapshot.expected_ms(each) for each in unstated}


def first_reason(snapshot: Snapshot, policy: Policy, gang_id: str) -> r.Hold:
    """The same in short: the first reason, without the gangs in the way."""
    gang = snapshot.state.gangs[gang_id]
    found = islice(_Case(snapshot, policy, gang).reasons(), 1) if gang.state is GangState.WAITING else ()
    return r.Hold(gang.id, tuple(found))


class _Case:
    """One gang and what it was compared with."""

    def __init__(self, snapshot: Snapshot, policy: Policy, gang: Gang) -> None:
        self.snapshot = snapshot
        self.policy = policy
        self.gang = gang
        self.state = snapshot.state
        self.now_ms = snapshot.now_ms
        self.demand = gang.demand
        self.size = gang.demand.smallest
        self.wanted = self.size + gang.demand.spares
        self.draft = snapshot.draft()
        self.reserving: list[r.InTheWay] = []

    def reasons(self) -> Iterator[r.Reason]:
        never = why_never(self.state, self.demand, self.snapshot.kept_off(self.gang))
        if never is not None:
            yield r.NeverFits(never)
        yield from self._blockers()
        if self.gang.claim:
            yield self._stops()
        elif never is not None:
            yield from self._quota([])
        elif self.gang.blockers:  # no plan knows it
            lack = list(self._lack())
            yield from (*self._quota(lack), *lack)
        else:
            yield from self._as_planned(self.policy(self.snapshot))

    def _as_planned(self, plan: Plan) -> Iterator[r.Reason]:
        """The verdict of a plan, and whatever else binds the gang."""
        starts = [each for each in plan.decisions if isinstance(each, Place | MakeRoom)]
        own = next((each for each in starts if each.gang == self.gang.id), None)
        if own is not None:
            victims = own.victims if isinstance(own, MakeRoom) else ()
            yield r.AboutToStart(tuple(victim.gang for victim in victims))
            return
        verdict = None if plan.why is None else plan.why(self.gang)
        lack = list(self._lack())
        reasons = self._elaborated(verdict, plan, [*self._quota(lack, verdict), *lack])
        if not reasons and starts:  # there is room until the gangs before it have started
            reasons = [r.BehindInLine(starts[0].gang)]
        yield from reasons

    def _elaborated(self, verdict: Verdict | None, plan: Plan, measured: list[r.Reason]) -> list[r.Reason]:
        """The reasons: a verdict, and what was measured. What is short explains by itself why there are no seats."""
        match verdict:
            case Behind():
                return [r.BehindInLine(verdict.gang), *measured]
            case PartKept():
                return [*measured, r.ReservedFor(verdict.gang, verdict.at_ms)]
            case NoSeats.ALL_RESERVED:
                return [*measured, *self._reserved(plan.reservations)]
            case NoSeats.NONE_CLOSE if not measured:
                return [r.PreferringCloser(self.demand.prefer, self.gang.waiting_since_ms + self.demand.prefer_wait_ms)]
            case _:
                return measured

    # ---- blockers ----------------------------------------------------------------------------------------

    def _blockers(self) -> Iterator[r.Reason]:
        job, blockers = self.snapshot.job(self.gang), self.gang.blockers
        if blockers & Blocker.HELD:
            yield r.Held(job.id)
        elif blockers & Blocker.GANG_HELD:
            yield r.Held(short_name(self.gang.id))
        if blockers & Blocker.SUSPENDED and job.suspended is not None:
            yield r.Suspended(job.id, job.user, job.suspended, job.account or "", job.cancel_ms)
        if blockers & Blocker.DEPENDENCY:
            for dependency in job.spec.after:
                if (
                    parent := self.state.jobs.get(dependency.job)
                ) and not parent.is_over:  # None: ended and dropped from memory
                    yield r.DependencyUnmet(dependency.job, str(dependency.after))
            first = next(iter(self.state.namesakes.get((job.user, job.spec.name), ())), job.id)
            if job.spec.singleton and first != job.id:
                yield r.DependencyUnmet(first, "singleton")
        if blockers & Blocker.BEGIN:
            yield r.NotYet(job.spec.begin_ms or 0)
        if blockers & Blocker.BACKOFF:
            yield r.BackingOff(self.gang.not_before_ms)
        if blockers & Blocker.ARRAY:
            yield r.ArrayLimit(job.spec.array_parallel or 0)

    def _stops(self) -> r.Reason:
        stopping = self._stopping()
        if not stopping:
            return r.AboutToStart()
        until = max(self.snapshot.expected_end_ms(gang) for gang in stopping)
        return r.WaitingForStops(tuple(gang.id for gang in stopping), until)

    def _stopping(self) -> list[Gang]:
        """The gangs that are still on the claimed seats of this gang."""
        found: dict[str, Gang] = {}
        for seat in self.gang.claim:
            for name in self.state.tenants.get(seat.node, ()):
                other = self.state.gangs[name]
                shares = any(s.gpus & seat.gpus for s in other.all_seats if s.node == seat.node)
                if shares or (
                    other.state is GangState.STOPPING and set(dict(other.amounts)) & set(dict(self.gang.amounts))
                ):
                    found[name] = other
        return list(found.values())

    # ---- quota --------------------------------------------------------------------------------------------

    def _quota(self, lack: Sequence[r.Reason], verdict: Verdict | None = None) -> list[r.Reason]:
        """All bounds that it would exceed, among them that of the verdict. A gang within its guarantee reclaims: if
        there is no room for it, it does not wait for what others keep."""
        charge = self._charge()
        found = [verdict] if isinstance(verdict, Shortfall) else []
        found += self._shortfalls(charge)
        found += self._shortfalls_of_models() if self.draft.queues.bounds_models else []
        if lack and self.draft.queues.is_entitled(self.gang.queue, ROOT, charge, self.now_ms):
            found = [each for each in found if each.kind != "not_lent"]
        bounds = {(each.kind, each.queue, each.name): each for each in found}
        return [self._quota_reason(each) for each in bounds.values()]

    def _shortfalls_of_models(self) -> list[Shortfall]:
        """Limits per GPU model, if they exclude it from every model that has room for it."""
        found: list[Shortfall] = []
        task, layouts = self.demand.task, self.state.topology.layouts
        for model in sorted({gpu.model for layout in layouts for gpu in layout if task.accepts(gpu)}):
            seating = self._seats(FREE, replace(self.demand, task=replace(task, models=(model,))))
            if seating is not None:
                charge = dict(self.state.charge_for(task, seating.everything))
                short = [each for each in self._shortfalls(charge) if each.name == f"{GPU_MILLI}:{model}"]
                if not short:
                    return []
                found += short
        return found

    def _charge(self) -> dict[str, int]:
        return self.state.topology.least_charge(self.demand, self.size)

    def _shortfalls(self, charge: dict[str, int]) -> list[Shortfall]:
        gpu_ms = charge.get(GPU_MILLI, 0) * self.snapshot.expected_ms(self.gang) // 1000
        return list(self.draft.queues.shortfalls(self.gang.queue, self.gang.user, charge, gpu_ms, self.now_ms))

    def _quota_reason(self, short: Shortfall) -> r.Reason:
        queue = short.queue or "cluster"
        if short.kind == "user_limit":
            return r.OverUserLimit(queue, self.gang.user, short.name, short.used, short.bound, short.asked)
        if short.kind == "not_lent":
            return r.NotLent(queue, short.name, short.used, short.bound, short.asked)
        if short.kind == "budget":
            budget = self.draft.queues.queues[short.queue].spec.budget
            assert budget is not None
            window = (self.now_ms - budget.anchor_ms) // budget.window_ms + 1
            renewed = budget.anchor_ms + window * budget.window_ms
            return r.OverBudget(queue, short.used, short.bound, short.asked, renewed)
        return r.OverLimit(queue, short.name, short.used, short.bound, short.asked)

    # ---- room ---------------------------------------------------------------------------------------------

    def _fits(self, capacity: Capacity, demand: Demand, avoid: Sequence[str] = ()) -> bool:
        return fits(capacity.topology, slots(capacity, demand, avoid), demand, self.size)

    def _lack(self) -> Iterator[r.Reason]:
        """What is missing now. Each resource is examined as if the others were sufficient."""
        capacity, avoid = self.draft.capacity, self.snapshot.avoid(self.gang)
        if self._fits(capacity, self.demand, avoid):
            return
        kept_off, ending = self.snapshot.kept_off(self.gang), self.snapshot.too_short(self.gang)
        if ending and self._fits(self.snapshot.emptied, self.demand, kept_off):
            if not self._fits(self.snapshot.emptied, self.demand, avoid) or self._fits(capacity, self.demand, kept_off):
                yield r.EndsTooSoon(ending, need_ms(self.state, self.gang))
                if self._fits(capacity, self.demand, kept_off):
                    return
        elif not self._fits(self.snapshot.emptied, self.demand, avoid):
            closed = tuple(self._closed())
            yield r.OutOfService(closed, " or ".join(dict.fromkeys(self._how_closed(name) for name in closed)))
        if self._fits(self._unclaimed(), self.demand, avoid):
            others = (gang for gang in self.state.claimants.values() if gang.id != self.gang.id)
            yield r.ClaimedBy(tuple(gang.id for gang in others))
            return
        if kept_off and self._fits(capacity, self.demand):
            yield r.NodesAvoided(kept_off)
            return
        lacks_gpus = self._lack_of_gpus(capacity)
        short = list(self._short_amounts(capacity, has_gpus=lacks_gpus is None))
        if lacks_gpus is not None:
            yield lacks_gpus
        yield from short
        if lacks_gpus is None and not short:
            yield self._tight(capacity)

    def _closed(self) -> Iterator[str]:
        for node, is_open, up in zip(
            self.state.topology.nodes, self.state.capacity.open, self.state.capacity.up, strict=True
        ):
            if not is_open or up != (1 << len(node.gpus)) - 1:
                yield node.name

    def _how_closed(self, name: str) -> str:
        node = self.state.nodes[name]
        if node.lost:
            return "lost"
        if node.drained or node.cordoned:
            return "cordoned" if node.cordoned else "drained"
        return "unhealthy" if node.health is not Health.HEALTHY else "without some of its GPUs"

    def _unclaimed(self) -> Capacity:
        capacity = self.state.capacity.copy()
        for gang in self.state.claimants.values():
            for n, seat in seated(capacity.topology, gang.claim):
                capacity.unclaim(n, seat.gpus, gang.amounts)
        return capacity

    def _lack_of_gpus(self, capacity: Capacity) -> r.Reason | None:
        task = self.demand.task
        if not task.wants_gpu:
            return None
        if task.slice_mib:
            return self._lack_of_vram(capacity)
        accepted, kind = capacity.topology.accepted(task), capacity.topology.kind
        usable = [free & accepted[kind[n]] for n, free in enumerate(capacity.free)]
        needed, free = self.wanted * task.gpus, sum(mask.bit_count() for mask in usable)
        if free < needed:
            of_any = sum(mask.bit_count() for mask in capacity.free)
            if of_any < needed:
                return r.NoCapacity(needed, free)
            return r.WrongModel(task.models, task.vram_mib_min, needed, free, of_any)
        fitting = sum(mask.bit_count() // task.gpus for mask in usable)
        if fitting < self.wanted:
            best = max(mask.bit_count() for mask in usable)
            return r.Fragmented(self.wanted, task.gpus, fitting, best, free)
        grouped = trimmed(
            capacity.topology,
            [gpu_slots(capacity.topology, self.demand, n, mask) for n, mask in enumerate(usable)],
            replace(self.demand, spread=""),
        )
        if sum(grouped) < self.wanted:
            level = "nvlink" if capacity.topology.nvlink_level is not None else "island"
            return r.TopologyTight("tp", level, self.wanted, sum(grouped))
        return None

    def _lack_of_vram(self, capacity: Capacity) -> r.Reason | None:
        task, topology = self.demand.task, capacity.topology
        anything = replace(task, slice_mib=1, vram_mib_min=max(task.vram_mib_min, task.slice_mib), amounts=())
        pieces = [left for left, _, _ in capacity.shared_slots(anything)]
        for n, free in enumerate(capacity.free):
            mask = free & topology.accepted(task)[topology.kind[n]]
            pieces += [gpu.vram_mib for i, gpu in enumerate(topology.nodes[n].gpus) if mask >> i & 1]
        needed, unit = self.wanted * task.slice_mib, "MiB of VRAM"
        if sum(pieces) < needed:
            return r.NoCapacity(needed, sum(pieces), unit)
        fitting = sum(piece // task.slice_mib for piece in pieces)
        if fitting < self.wanted:
            return r.Fragmented(self.wanted, task.slice_mib, fitting, max(pieces), sum(pieces), unit)
        return None

    def _short_amounts(self, capacity: Capacity, has_gpus: bool) -> Iterator[r.Reason]:
        """An amount is short if it alone, or on nodes with free GPUs, leaves room for too few tasks."""
        plain = replace(self.demand, task=replace(self.demand.task, amounts=()), spread="")
        if plain.task.wants_gpu and has_gpus:
            most = raw_slots(capacity, plain)
        else:
            most = [self.wanted if is_open else 0 for is_open in capacity.open]
        for name, each in self.demand.task.amounts:
            here = [n for n, room in enumerate(most) if room]
            room = sum(capacity.tasks_by_amounts(n, ((name, each),), most[n]) for n in here)
            if room < self.wanted:
                left = [capacity.amount_left(n, name) for n in here]
                known = [amount for amount in left if amount is not None]
                best, unknown = max(known, default=None), len(left) - len(known)
                yield r.AmountShort(name, each, self.wanted, room, best, unknown)

    def _tight(self, capacity: Capacity) -> r.Reason:
        """Each resource is sufficient alone: their distribution over nodes does not fit."""
        topology, demand = capacity.topology, self.demand
        column = slots(capacity, demand, self.snapshot.avoid(self.gang))
        loose = slots(capacity, replace(demand, spread=""), self.snapshot.avoid(self.gang))
        if sum(column) < self.wanted <= sum(loose):
            return r.TopologyTight("spread", demand.spread, self.wanted, sum(column))
        if demand.within and sum(column) >= self.wanted:
            best = max(room for room, _ in room_by_domain(topology, column, demand.within))
            return r.TopologyTight("within", demand.within, self.wanted, best)
        each, best = demand.task.gpus, max(mask.bit_count() for mask in capacity.free)
        return r.Fragmented(self.wanted, each, sum(column), best, sum(mask.bit_count() for mask in capacity.free))

    def _seats(self, bounds: Bounds, demand: Demand | None = None) -> Seating | None:
        avoid = self.snapshot.avoid(self.gang)
        return find_seats(self.draft.capacity, demand or self.demand, self.size, avoid, bounds)

    def _reserved(self, reservations: Sequence[Reservation]) -> Iterator[r.Reason]:
        """The reservations that leave it no seats: those that do so alone, else all that begin before it would end."""
        until = self.now_ms + self.snapshot.hold_ms(self.gang)
        others = [each for each in reservations if each.gang != self.gang.id and each.at_ms < until]
        alone = [each for each in others if self._seats(self._bounds(each)) is None]
        for each in alone or others:
            holder = self.state.gangs[each.gang]
            milli = self.state.topology.least_charge(holder.demand, holder.demand.smallest).get(GPU_MILLI, 0)
            assumed = self._assumed_ms(holder)
            self.reserving.append(r.InTheWay(holder.id, holder.queue, holder.user, milli, each.until_ms, assumed))
            yield r.ReservedFor(each.gang, each.at_ms)

    def _bounds(self, reservation: Reservation) -> Bounds:
        barred: dict[int, int] = {}
        for n, seat in seated(self.state.topology, reservation.seats):
            barred[n] = barred.get(n, 0) | seat.gpus
        return Bounds(barred, {}, self.draft.capacity.up)

    # ---- in the way ---------------------------------------------------------------------------------------

    def in_the_way(self) -> Iterator[r.InTheWay]:
        """A few gangs whose end would let it start, those expected to end first."""
        if self.gang.claim:
            found = self._stopping()
        else:
            yield from self.reserving[:IN_THE_WAY_MAX]
            found = [] if self.reserving else self._leavers()
        for gang in sorted(found, key=lambda each: (self.snapshot.expected_end_ms(each), each.rank))[:IN_THE_WAY_MAX]:
            ends = self.snapshot.expected_end_ms(gang)
            assumed = 0 if gang.state is GangState.STOPPING else self._assumed_ms(gang)
            yield r.InTheWay(gang.id, gang.queue, gang.user, gang.gpu_milli, ends, assumed)

    def _assumed_ms(self, gang: Gang) -> int:
        """How long it is assumed to run if neither a limit nor an estimate is stated; 0 if one is."""
        return 0 if gang.profile.expected_ms else self.snapshot.expected_ms(gang)

    def _leavers(self) -> list[Gang]:
        """The first to end, until it could start; of these only those whose seats or quota it would take."""
        holders = sorted(self.state.holders.values(), key=lambda each: (self.snapshot.expected_end_ms(each), each.rank))
        lo, hi = 0, len(holders)
        if self._seats_without(()) is not None or self._seats_without(holders) is None:
            return []
        while hi - lo > 1:  # without the first lo it does not fit, without the first hi it does
            middle = (lo + hi) // 2
            lo, hi = (lo, middle) if self._seats_without(holders[:middle]) is not None else (middle, hi)
        gone = holders[:hi]
        seating = self._seats_without(gone)
        assert seating is not None
        needed = {gang.id: gang for gang in gone if self._gives(gang, seating)}
        for gang in gone:  # quota: other gangs that must end before the queue may have it
            if self._seats_without(needed.values()) is None and gang.id not in needed:
                needed[gang.id] = gang
        for gang in reversed(gone):
            fewer = [other for other in needed.values() if other is not gang]
            if len(needed) <= 2 * IN_THE_WAY_MAX and self._seats_without(fewer) is not None:
                needed.pop(gang.id, None)
        return list(needed.values())

    def _gives(self, gang: Gang, seating: Seating) -> bool:
        taken: dict[str, int] = {}
        for seat in seating.everything:
            taken[seat.node] = taken.get(seat.node, 0) | seat.gpus
        shared = set(dict(gang.amounts)) & set(dict(self.gang.amounts))
        return any(seat.node in taken and (seat.gpus & taken[seat.node] or shared) for seat in gang.all_seats)

    def _seats_without(self, gone: Iterable[Gang]) -> Seating | None:
        """Seats that it could use within quota if these had ended. Restores the draft."""
        draft = self.draft
        mark = draft.mark()
        for gang in gone:
            for n, seat in seated(draft.capacity.topology, gang.all_seats):
                draft.capacity.give_back(n, seat.gpus, seat.slice_mib, gang.amounts)
            draft.queues.charge(gang.queue, gang.user, gang.charged, -1)
        is_allowed = not self._shortfalls(self._charge())
        seating = self._seats(FREE) if is_allowed else None
        draft.undo(mark)
        return seating
