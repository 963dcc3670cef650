"""The cycle: one pass from a snapshot to a plan, for every policy that serves the waiting gangs in order.

The steps are in ``plan``: start gangs on their claims, repair, drain, serve the waiting gangs in order, let gangs grow.
A policy of the catalogue is a choice of parts; the cycle is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from corral.core.cluster.resources import Demand, Seat
from corral.core.cluster.slots import could_take
from corral.core.model import Cause, Gang, GangState
from corral.core.plan import Behind, Decision, DropClaim, Evict, MakeRoom, NoSeats, Place, Plan, Repair, Verdict
from corral.core.queues.quota import ROOT, Shortfall
from corral.core.snapshot import Snapshot
from corral.policy.backfill.calendar import TransientReservations
from corral.policy.backfill.claims import Takeovers, is_tenable, is_vacant
from corral.policy.backfill.heads import Heads
from corral.policy.backfill.patience import Patience
from corral.policy.backfill.pools import Pool, Pools
from corral.policy.backfill.timetable import DurableReservations, is_countable
from corral.policy.cycle.closures import Closures
from corral.policy.cycle.elastic import drained, grown, repair
from corral.policy.cycle.parts import Parts, known_full, nothing_can_change
from corral.policy.cycle.precedence import Precedence
from corral.policy.cycle.start_seats import StartSeats
from corral.policy.cycle.walk import Walk
from corral.policy.placement.seating import FREE, Bounds, spread_of
from corral.policy.preemption.preemptor import Preemption, Preemptor
from corral.policy.preemption.yielding import next_beat_ms
from corral.policy.quota.allowance import Allowances
from corral.policy.quota.limits import Limits, least_charge

AGAIN_MAX = 2  # so often a plan gives turns again to gangs that may have room since others were preempted
PASSED_OVER_MAX = 64  # gangs that one plan passes over one by one, where their graces may differ


class Standard:
    """A policy: a snapshot goes in, a plan comes out."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def __call__(self, snapshot: Snapshot) -> Plan:
        if nothing_can_change(snapshot.state, self.parts):
            return Plan(snapshot.now_ms, why=lambda _gang: NoSeats.NONE_FREE)
        cycle = Cycle(snapshot, self.parts)
        cycle.plan()
        while (takeovers := cycle.takeovers.again()) is not None:  # other gangs have the right to claims that are used
            cycle = Cycle(snapshot, self.parts, takeovers)
            cycle.plan()
        made, again = cycle.calendar.made(), cycle.look_again_ms()
        if cycle.keeps:  # a reservation may begin at a time at which nothing else happens
            again = min([each.at_ms for each in made] + ([] if again is None else [again]), default=None)
        return Plan(
            snapshot.now_ms,
            tuple(cycle.decisions),
            made,
            again,
            keeps=cycle.keeps,
            parts=cycle.limits.made(),
            remembers=cycle.remembers,
            moved=cycle.heads.moved(made),
            why=cycle.closures.why,
        )


class Cycle:
    """One plan under construction."""

    def __init__(self, snapshot: Snapshot, parts: Parts, takeovers: Takeovers | None = None) -> None:
        self.snapshot = snapshot
        self.parts = parts
        self.state = snapshot.state
        self.now_ms = snapshot.now_ms
        self.draft = snapshot.draft()
        self.takeovers = Takeovers(self.draft, takeovers)
        self.keeps = parts.backfill.keeps and is_countable(self.state)
        self.calendar = DurableReservations(self.draft) if self.keeps else TransientReservations(self.draft)
        self.room = Preemptor(self.draft, parts.preemption or Preemption(causes=()))
        self.closures = Closures(self.draft, self.room)
        self.allowances = Allowances(self.draft)
        self.decisions: list[Decision] = []
        self.full = known_full(self.state, parts)
        self.pools = Pools(self.state.topology)
        self.blocked: dict[Pool, list[str]] = {}  # pool -> its gangs that got a reservation, or were refused one
        self.returned: list[Gang] = []  # gangs that lost their claim in this plan
        self.passed_over = 0
        self.limits = Limits(self.draft)
        self.patience = Patience(self.draft, parts.patience_ms, self.pools)
        # where the order does not change by itself, a gang with a reservation is first anyway
        self.remembers = not self.keeps and not parts.order.looks_inside
        self.heads = Heads(self.draft, self.state.reservations if self.remembers else ())
        self.precedence = Precedence(self.draft, self.patience, self.heads, self.closures, parts.order.owners_first)
        self.seats = StartSeats(self.draft, self.allowances, self.limits, self.room, parts.scorer)
        self.out_of_turn = False
        self._is_changed = False  # gangs were preempted, or reservations moved, since the first turn of a pass
        self.is_unforeseen = False  # no reservation was found for the last gang
        self._in_vain: dict[tuple[Demand, Bounds], Verdict] = {}  # what does not fit, and will not in this plan
        #: what does not fit unless others are preempted for it
        self._no_seats: dict[tuple[Demand, Bounds], Verdict] = {}

    def plan(self) -> None:
        self.start_claimants()  # 1. gangs start on the seats that they claim, once these are vacant
        self.repair()  # 2. broken gangs are repaired, or evicted
        self.drain()  # 3. gangs on drained nodes and GPUs are evicted
        with self.state.backlog.joined_by(self.returned):
            self.serve()  # 4. the waiting gangs, in order: check quota, place, make room, or reserve a start
        if self.parts.grows and not (self.keeps and self.calendar.reservations):
            self.grow()  # 5. GPUs on which no gang will start go to gangs that can use them

    # ---- 1. claims ---------------------------------------------------------------------------------------------

    def start_claimants(self) -> None:
        for gang in list(self.state.claimants.values()):
            if self.takeovers.are_of(gang) or not is_tenable(self.draft, gang):
                self.draft.drop_claim(gang)
                self.decisions.append(DropClaim(gang.id, gang.attempt))
                if gang.state is GangState.WAITING and not gang.blockers:
                    self.returned.append(gang)
            elif gang.state is GangState.WAITING and not gang.blockers and is_vacant(self.draft, gang):
                size = next(size for size in gang.demand.sizes() if size <= len(gang.claim))
                slice_mib = gang.demand.task.slice_mib
                seats = tuple(Seat(seat.node, seat.gpus, slice_mib) for seat in gang.claim)
                self.draft.place_on_claim(gang, seats)
                if self.takeovers.may_be_of(gang):
                    self.room.started(gang, seats)
                self.limits.started(gang, self.state.charge_for(gang.demand.task, seats))
                spread = spread_of(self.state.topology, seats)
                self.decisions.append(Place(gang.id, gang.attempt + 1, seats[:size], seats[size:], spread))

    # ---- 2. repair, 3. drain -----------------------------------------------------------------------------------

    def repair(self) -> None:
        for gang in list(self.state.broken.values()):
            decision = repair(self.draft, gang)
            if isinstance(decision, Repair):
                seats = decision.seats + decision.spares
                self.draft.move(gang, seats, self.state.charge_for(gang.demand.task, seats))
            else:
                self.draft.evict(gang)
            self.decisions.append(decision)

    def drain(self) -> None:
        for gang in drained(self.draft):
            self.draft.evict(gang)
            self.decisions.append(Evict(gang.id, gang.attempt, Cause.DRAIN))

    # ---- 4. waiting gangs --------------------------------------------------------------------------------------

    def serve(self) -> None:
        self.closures.close_demands(self.full & self.state.backlog.demands.keys(), NoSeats.NONE_FREE)
        self._serve_in_order(self.takeovers.beneficiaries())
        for _ in range(AGAIN_MAX):
            if self._is_room_left():
                self._start_again()
                self._serve_in_order(())
        if self._is_stuck():
            self.closures.close_rest(Behind(next(iter(self.blocked.values()))[0]))

    def _serve_in_order(self, first: Sequence[Gang]) -> None:
        """Give turns to all, to these first."""
        walk = Walk(self.draft, self.parts.order, self.room, self.closures, self.pools)
        for each in first:
            self._take_turn(walk, each)
            self.draft.keep()
        while not self._is_stuck() and not self.takeovers.found and (gang := walk.next()) is not None:
            turn = self.precedence.turn_of(walk, gang)
            if turn is None:
                continue
            chosen, self.out_of_turn = turn
            self._take_turn(walk, chosen)
            if self.heads.is_one(chosen) and not walk.is_open(chosen):
                self.closures.promote()  # owners may have been held back for it
            if self.out_of_turn and self._is_dealt_with(chosen):
                self.patience.is_over(chosen)
            self.draft.keep()

    def _is_room_left(self) -> bool:
        """Whether gangs were preempted, or reservations moved, after some gangs had their turns, and what is left over
        may be enough for one of these."""
        is_new, self._is_changed = self._is_changed and not self.keeps and not self.takeovers.found, False
        return is_new and any(self.room.could_take(self.state.backlog.classes).values())

    def _start_again(self) -> None:
        """All that have no seats yet have another turn, in order. Reservations stay."""
        self.closures.forget()
        self.room.forget()
        self._in_vain.clear()
        self._no_seats.clear()
        self.precedence.forget()

    def _take_turn(self, walk: Walk, gang: Gang) -> None:
        rights, reserved = self.heads.rights_of(gang, self.out_of_turn), len(self.calendar.reservations)
        self._serve(walk, gang)
        if rights and (gang.id in self.draft.served or len(self.calendar.reservations) > reserved):
            self.heads.passed(gang, rights)

    def _is_dealt_with(self, gang: Gang) -> bool:
        """Whether the gang starts, or its pool has all its reservations. False if quota blocks it, or if its start
        cannot be foreseen."""
        return gang.id in self.draft.served or self._blocked_in(self.pools.of(gang.demand)) >= self.parts.backfill.depth

    def _is_stuck(self) -> bool:
        """Whether no gang may pass a blocked one, and all compete for the same nodes."""
        return not self.parts.backfill.may_pass and bool(self.blocked) and len(self.state.topology.layouts) == 1

    def _blocked_in(self, pool: Pool) -> int:
        return len(self.blocked.get(pool, ()))

    def _serve(self, walk: Walk, gang: Gang) -> None:
        demand, pool = gang.demand, self.pools.of(gang.demand)
        if not self.parts.backfill.may_pass and pool in self.blocked:
            behind = Behind(self.blocked[pool][0])
            self.closures.close_in_bucket(gang, behind)
            self.closures.close_demand(demand, behind)
            return
        if self._is_full(gang, pool):
            self.closures.close(gang, NoSeats.NONE_FREE)
            if self.room.nobody_to_ask(gang):
                self.closures.close_class(gang, NoSeats.NONE_FREE)
            self._give_up(gang, FREE, NoSeats.NONE_FREE)
            return
        shortfall = self.allowances.shortfall(gang, demand.smallest)
        if shortfall is not None:
            self._bar(walk, gang, pool, shortfall)
            return
        if self.limits.is_new(gang.queue):
            self._keep_for_first(walk, gang)
        if self.parts.order.owners_first and self.limits.is_owner(gang):
            if (first := walk.first_in(gang.queue, gang.priority)) and not self.patience.has_had_its_turn(first):
                self.limits.keep_within(first)
        part = self.limits.in_the_way_of(gang, least_charge(self.draft, gang))
        if part is not None:  # gangs that end before the part is needed may still pass
            within_ms, expected = part.at_ms - self.now_ms, self.snapshot.expected_ms(gang)
            self.heads.kept_from(gang, part)
            if not part.is_guarantee:
                self.closures.close_for_part(gang, part, within_ms)
                return
            if self.closures.demote(gang, min(expected, within_ms)):  # as a borrower it may still have what is free
                return
        exempt = self._exempt(gang) if part is None else []
        bounds = self.calendar.bounds(gang, exempt)
        in_vain = None if gang.profile.avoid else self._in_vain.get((demand, bounds))
        verdict = in_vain or self._place(gang, bounds, exempt)
        if verdict is None or (part is None and in_vain is None and self._make_room(walk, gang, bounds)):
            self._served(walk, gang, exempt)
        else:
            self._block(gang, pool, bounds, exempt, part or verdict)

    def _served(self, walk: Walk, gang: Gang, exempt: list[str]) -> None:
        walk.served(gang)
        if self._has_reservation(gang):  # since an earlier turn
            self.calendar.release(gang.id)
            self.blocked[self.pools.of(gang.demand)].remove(gang.id)
        decision = self.decisions[-1] if exempt and self.decisions else None
        if isinstance(decision, Place | MakeRoom) and decision.gang == gang.id:
            for name in self.heads.overrun(gang, decision.seats, exempt, self.calendar.reservations):
                self._is_changed = True  # what was kept for it may be free for others
                self.calendar.release(name)
                self._reserve(self.state.gangs[name], is_barred=True)
        if self.limits.let_go(gang):
            self.closures.reopen([gang.queue])

    def _bar(self, walk: Walk, gang: Gang, pool: Pool, shortfall: Shortfall) -> None:
        """Quota blocks the gang, unless others are preempted for it. Its part of the limit is kept for it."""
        is_worth_asking = self.room.is_worth_asking(gang)
        exempt = self._exempt(gang) if is_worth_asking else []
        if is_worth_asking and self._make_room(walk, gang, self.calendar.bounds(gang, exempt)):
            self._served(walk, gang, exempt)
        elif shortfall.kind == "not_lent" and self._is_owner(gang):
            # it waits for GPUs of its guarantee, not for borrowed ones
            self._block(gang, pool, FREE, [], shortfall)
        else:  # a budget may still have room for a shorter run
            if not self.patience.has_had_its_turn(gang):
                self.limits.keep_for(gang, shortfall)
                self._reserve_again(gang, pool)
            from_ms = self.snapshot.expected_ms(gang) if shortfall.kind == "budget" else 0
            self.closures.close_for_quota(gang, shortfall, from_ms)

    def _keep_for_first(self, walk: Walk, gang: Gang) -> None:
        """Keep a part of a limit for the first gang of a queue, which may have no turn because it does not fit."""
        first = walk.first_of_all(gang.queue, gang.priority)
        if first is not None and first is not gang and not self.patience.has_had_its_turn(first):
            shortfall = self.allowances.shortfall(first, first.demand.smallest)
            if shortfall is not None:
                self.limits.keep_for(first, shortfall)

    def _reserve_again(self, gang: Gang, pool: Pool) -> None:
        """Reserve a start again for a gang that quota blocks now: it may be allowed to start by then."""
        blocked = self.blocked.get(pool, ())
        is_due = self.heads.is_one(gang) and gang.id not in blocked and len(blocked) < self.parts.backfill.depth
        if is_due and self._reserve(gang, is_barred=True):
            self.blocked.setdefault(pool, []).append(gang.id)

    def _is_full(self, gang: Gang, pool: Pool) -> bool:
        """Equivalent to the rest of the turn if no start can be reserved, nothing fits and no gang can be preempted."""
        return (
            self._blocked_in(pool) >= self.parts.backfill.depth > 0
            and not could_take(self.draft.capacity, gang.demand, gang.demand.smallest)
            and not self._could_ask(gang)
        )

    def _is_owner(self, gang: Gang) -> bool:
        return self.draft.queues.is_entitled(gang.queue, ROOT, least_charge(self.draft, gang), self.now_ms)

    def _exempt(self, gang: Gang) -> list[str]:
        own = [gang.id] if self._has_reservation(gang) else []
        return own + self.heads.unbound(gang, self.calendar.reservations)

    def _has_reservation(self, gang: Gang) -> bool:
        return not self.keeps and any(each.gang == gang.id for each in self.calendar.reservations)

    def _place(self, gang: Gang, bounds: Bounds, exempt: list[str]) -> Verdict | None:
        """Place a gang where nothing is reserved for others, or where their reservations can move to other GPUs. Why
        not, if it is not placed."""
        known = self._no_seats.get((gang.demand, bounds))
        if known is not None:
            return known
        seating, verdict = self.seats.find(gang, bounds)
        if seating is None and bounds is not FREE:
            seating, verdict = self.seats.find(gang, FREE)
            if seating is not None and not self.calendar.make_way(gang, seating.everything, exempt):
                seating, verdict = None, NoSeats.ALL_RESERVED
        if seating is None:
            if not (gang.demand.prefer or self.snapshot.is_choosy(gang) or self.allowances.depends_on_gpus(gang)):
                self._no_seats[gang.demand, bounds] = verdict
            return verdict
        seats = seating.everything
        charge = self.state.charge_for(gang.demand.task, seats)
        self.draft.place(gang, seats, charge)
        self.limits.started(gang, charge)
        spread = spread_of(self.state.topology, seats)
        until = self.patience.rests_until_ms(gang, dict(charge)) if self.out_of_turn else 0
        self.decisions.append(Place(gang.id, gang.attempt + 1, seating.seats, seating.spares, spread, until))
        return None

    def _make_room(self, walk: Walk, gang: Gang, bounds: Bounds) -> bool:
        if self.parts.preemption is None:
            return False
        size, rather = gang.demand.smallest, self.allowances.narrowed(gang)
        widest = self.seats.widest(gang)
        decision, later_ms = self.room.make(gang, size, bounds, rather, widest), 0
        while decision is not None and self.calendar.reservations:  # it starts when all victims have left, and not now
            vacant_ms = self.room.vacant_ms(decision) - self.now_ms
            if vacant_ms <= later_ms:
                break
            later_ms = vacant_ms
            later = self.calendar.bounds(gang, self._exempt(gang), later_ms)
            number = self.state.topology.number
            if not any(seat.gpus & later.barred.get(number[seat.node], 0) for seat in decision.seats):
                break
            decision = self.room.make(gang, size, later, rather, widest)  # its victims may need longer
        if decision is None or self._takes_part(gang, decision):
            return False
        if self.takeovers.look(decision):  # the plan will be made again
            return True
        for victim in decision.victims:
            leaving = self.state.gangs[victim.gang]
            walk.leaves(leaving)
            self.draft.evict(leaving)
            if victim.keep:
                kept = self.state.charge_for(leaving.demand.task, victim.keep)
                self.draft.claim(leaving, victim.keep, kept)
                self.limits.started(leaving, kept)
        charge = self.state.charge_for(gang.demand.task, decision.seats)
        self.draft.claim(gang, decision.seats, charge)
        self.limits.started(gang, charge)
        if self.out_of_turn:
            decision = replace(decision, out_of_turn_until_ms=self.patience.rests_until_ms(gang, dict(charge)))
        self.decisions.append(decision)
        if decision.victims:
            self._is_changed = True
            victims = [self.state.gangs[victim.gang] for victim in decision.victims]
            self.room.made(victims)
            self.closures.reopen([victim.queue for victim in victims])
        return True

    def _takes_part(self, gang: Gang, decision: MakeRoom) -> bool:
        """Whether a gang would use a part of a limit that is kept for another gang, even after its victims left."""
        victims = [self.state.gangs[each.gang] for each in decision.victims if not each.keep]
        released = [(victim, victim.charged) for victim in victims]
        charge = self.state.charge_for(gang.demand.task, decision.seats)
        return self.limits.in_the_way_of(gang, dict(charge), released) is not None

    def _block(self, gang: Gang, pool: Pool, bounds: Bounds, exempt: list[str], verdict: Verdict) -> None:
        """The gang cannot start now. Reserve a start if it is near enough to the head; close what cannot pass it."""
        demand, closures = gang.demand, self.closures
        if self.patience.has_had_its_turn(gang) or self._has_reservation(gang):
            closures.skip(gang, verdict)
            return
        count, depth = self._blocked_in(pool), self.parts.backfill.depth
        if count >= depth:
            self.blocked.setdefault(pool, []).append(gang.id)
        elif not self._will_gather(gang) and self._reserve(gang):
            self.blocked.setdefault(pool, []).append(gang.id)
            closures.skip(gang, verdict)
            if count + 1 == depth:
                self.closures.close_full(self.pools, pool)
            return
        elif self.snapshot.job(gang).spec.deadline_ms is not None:
            closures.skip(gang, verdict)  # others that want the same may have a later deadline
            return
        if self.snapshot.too_short(gang):
            self._pass_over(gang, verdict)  # a gang behind it may checkpoint, and need the nodes for less time
            return
        depends_on_gpus = self.allowances.depends_on_gpus(gang)
        if isinstance(verdict, Shortfall) and not depends_on_gpus:
            closures.close_for_quota(gang, verdict, 0)  # others that want the same may be allowed to start
            return
        may_fit = could_take(self.draft.capacity, demand, demand.smallest)
        # where only reservations are in the way, gangs that end before they begin may still pass
        is_barred = bounds is not FREE and (may_fit or self._could_ask(gang))
        from_ms = self.calendar.barred_from_ms(gang, exempt) if is_barred else 0
        if from_ms > self.snapshot.expected_ms(gang):
            self._pass_over(gang, verdict)
            return
        if depends_on_gpus or self.snapshot.is_choosy(gang) or self.seats.is_hoping(gang):
            closures.close_entry(gang, verdict)  # others that want the same may take what this gang does not
            return
        if not may_fit:
            self.full.add(demand)  # else its queue may be the reason, or the topology
        closures.close(gang, verdict, from_ms)
        self._give_up(gang, bounds if is_barred else FREE, verdict)

    def _will_gather(self, gang: Gang) -> bool:
        """Whether others will yield to a gang, so that it needs no reservation, which would keep GPUs idle. One with a
        reservation keeps it, and an overdue gang gets one."""
        is_sure = self.out_of_turn or self.heads.is_one(gang) or not self.parts.order.owners_first
        return not is_sure and self.parts.preemption is not None and self.room.turns.will_gather(gang)

    def _pass_over(self, gang: Gang, verdict: Verdict) -> None:
        """The gang is blocked because it may use its grace, or needs nodes for longer; a gang behind it may fit."""
        self.passed_over += 1
        if self.passed_over <= PASSED_OVER_MAX:
            self.closures.skip(gang, verdict)
        else:
            self.closures.close_entry(gang, verdict)

    def _reserve(self, gang: Gang, is_barred: bool = False) -> bool:
        """Reserve the earliest start that can be foreseen for a gang. If there is none (for example, because nodes that
        it needs are drained), the next gang may get the reservation, if it could ever fit."""
        demand, may_have = gang.demand, self.allowances.narrowed(gang) or gang.demand
        if self.is_unforeseen and not could_take(self.snapshot.emptied, demand, demand.smallest):
            return False
        allowed = self.limits.allowed_from(gang, is_barred, self.calendar.reservations)
        reserved = self.calendar.reserve(gang, may_have, demand.smallest, self.seats.content_ms(gang), allowed)
        if reserved is not None:
            self.limits.keep_from(gang, reserved.at_ms)
            if self.parts.order.owners_first:
                self.limits.keep_within(gang)
        self.is_unforeseen = reserved is None and not self.keeps
        return not self.is_unforeseen

    def _could_ask(self, gang: Gang) -> bool:
        return self.parts.preemption is not None and self.room.is_worth_asking(gang)

    def _give_up(self, gang: Gang, bounds: Bounds, verdict: Verdict) -> None:
        """The gang did not fit. Equivalent to giving a turn to every gang that wants the same, once no more gangs are
        preempted in this plan: there will be no more room, and no gang is exempt from the reservations that bind this
        one, because no queue is owed anything."""
        room, is_choosy = self.room, self.snapshot.is_choosy(gang) or self.draft.queues.bounds_models or self.keeps
        if self.parts.preemption is None or is_choosy or not room.is_over() or room.is_worth_asking(gang):
            return
        until_ms = self.now_ms + self.snapshot.hold_ms(gang) if bounds is not FREE else 0
        # a gang that has not ended when the last of the binding reservations begins is bound by all of them
        last_ms = max([each.at_ms for each in self.calendar.reservations if each.at_ms < until_ms], default=-1)
        self._in_vain[gang.demand, bounds] = verdict
        self.closures.close_everywhere(gang.demand, verdict, last_ms - self.now_ms + 1 if last_ms >= 0 else 0)

    def look_again_ms(self) -> int | None:
        """When to plan again without an event: where time is shared, usage changes the order."""
        is_shared = self.parts.preemption is not None and self.state.backlog.count
        return next_beat_ms(self.snapshot) if is_shared else None

    # ---- 5. growth ---------------------------------------------------------------------------------------------

    def grow(self) -> None:
        self.decisions += grown(self.draft, self._bounds_for_growth, self._may_take)

    def _bounds_for_growth(self, gang: Gang) -> Bounds:
        return self.calendar.bounds(gang, later_ms=self.snapshot.job(gang).spec.grace_ms)

    def _may_take(self, gang: Gang, seats: Sequence[Seat]) -> bool:
        """Whether a gang may grow by these seats: within quota, and not within a part that is kept for another gang."""
        if not self.allowances.may_have(gang, seats):
            return False
        return self.limits.in_the_way_of(gang, dict(self.state.charge_for(gang.demand.task, seats))) is None
