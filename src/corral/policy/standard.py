"""The cycle: one pass from a snapshot to a plan, for every policy that serves a line in order.

Read ``plan`` aloud: keep promises, repair, drain, serve the line in order, let gangs grow. A policy of the catalogue
is a choice of parts; the cycle is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from msgspec import Struct

from corral.core.cluster.resources import GPU_MILLI, Demand, Seat, TaskDemand, amount_of
from corral.core.cluster.slots import could_take
from corral.core.model import NEVER_MS, Blocker, Cause, Gang, GangState, Health
from corral.core.plan import Decision, DropClaim, Evict, Place, Plan, Repair
from corral.core.queues.quota import Shortfall
from corral.core.snapshot import Snapshot
from corral.core.state import State, is_leaving, lasts
from corral.policy.backfill.calendar import Calendar
from corral.policy.backfill.rules import EASY, Backfill
from corral.policy.backfill.timetable import Timetable, is_countable
from corral.policy.elastic import Most, grow, repair
from corral.policy.order import Order
from corral.policy.placement import FREE, Bounds, Scorer, Seating, find_seats, spread_of
from corral.policy.preemption import Preemption, Room, next_beat_ms
from corral.policy.walk import Turn, Walk


class Parts(Struct, frozen=True):
    """What a policy is made of."""

    order: Order
    backfill: Backfill = EASY
    preemption: Preemption | None = None
    scorer: Scorer | None = None
    patience_ms: int | None = None  # the oldest gang that has waited longer goes first within its priority
    grows: bool = False


LOOKED_OVER_MAX = 100  # more demands than this are not looked over before a plan, each is when its turn comes


class Standard:
    """A policy: a snapshot goes in, a plan comes out."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts

    def __call__(self, snapshot: Snapshot) -> Plan:
        if _nothing_can_change(snapshot.state, self.parts):
            return Plan(snapshot.now_ms)
        cycle = Cycle(snapshot, self.parts)
        cycle.plan()
        made, again = cycle.calendar.made(), cycle.look_again_ms()
        if cycle.keeps:  # somebody may have been promised a time at which nothing else happens
            again = min([each.at_ms for each in made] + ([] if again is None else [again]), default=None)
        return Plan(snapshot.now_ms, tuple(cycle.decisions), made, again, cycle.keeps)


def known_full(state: State, parts: Parts) -> set[Demand]:
    """What did not fit when it was last tried, while nothing has become free since: it need not be tried again.
    A set to add to."""
    if not _all_start_who_fit(parts):
        return set()
    grown, found = state.memory.get("full", (-1, set()))
    if grown != state.capacity.grown:
        found = set()
        state.memory["full"] = (state.capacity.grown, found)
    return cast(set[Demand], found)


def _all_start_who_fit(parts: Parts) -> bool:
    """Where blocked gangs may be passed, nobody is promised a start and nobody makes room."""
    return not parts.backfill.depth and parts.backfill.may_pass and parts.preemption is None


def _nothing_can_change(state: State, parts: Parts) -> bool:
    """Equivalent to a plan without decisions, for those who wait for what is known to be full."""
    is_at_rest = not (parts.grows or state.claimants or state.broken or state.draining)
    if not is_at_rest or not _all_start_who_fit(parts) or len(state.backlog.demands) > LOOKED_OVER_MAX:
        return False
    full, capacity = known_full(state, parts), state.capacity
    full.update([d for d in state.backlog.demands if d not in full and not could_take(capacity, d, d.smallest)])
    return all(demand in full for demand in state.backlog.demands)


class Cycle:
    """One plan under construction."""

    def __init__(self, snapshot: Snapshot, parts: Parts) -> None:
        self.snapshot, self.parts = snapshot, parts
        self.state, self.now_ms = snapshot.state, snapshot.now_ms
        self.draft = snapshot.draft()
        self.keeps = parts.backfill.keeps and is_countable(self.state)
        self.calendar = Timetable(self.draft) if self.keeps else Calendar(self.draft)
        self.room = Room(self.draft, parts.preemption or Preemption(causes=()))
        self.decisions: list[Decision] = []
        self.full = known_full(self.state, parts)
        self.blocked: dict[tuple[bool, ...], int] = {}  # pool -> how many of it were promised a start, or refused one
        self._pools: dict[TaskDemand, tuple[bool, ...]] = {}
        self._in_vain: set[tuple[Demand, Bounds]] = set()  # what does not fit, and will not in this plan

    def plan(self) -> None:
        self.keep_promises()  # 1. gangs whose room has been made sit down
        self.repair()  # 2. broken gangs go on, or give up their seats
        self.drain()  # 3. nodes and GPUs that must become empty are emptied
        self.serve()  # 4. the line, in order: quota, place, make room, or be promised a start
        if self.parts.grows and not self.calendar.reservations:
            self.grow()  # 5. what nobody waits for goes to gangs that can use it

    # ---- 1. promises -------------------------------------------------------------------------------------------

    def keep_promises(self) -> None:
        for gang in list(self.state.claimants.values()):
            if not self._is_tenable(gang):
                self.draft.drop_claim(gang)
                self.decisions.append(DropClaim(gang.id, gang.attempt))
            elif gang.state is GangState.WAITING and not gang.blockers and self._is_vacant(gang):
                size = next(size for size in gang.demand.sizes() if size <= len(gang.claim))
                slice_mib = gang.demand.task.slice_mib
                seats = tuple(Seat(seat.node, seat.gpus, slice_mib) for seat in gang.claim)
                self.draft.place_on_claim(gang, seats)
                spread = spread_of(self.state.topology, seats)
                self.decisions.append(Place(gang.id, gang.attempt + 1, seats[:size], seats[size:], spread))

    def _is_tenable(self, gang: Gang) -> bool:
        if gang.blockers & ~Blocker.BACKOFF or not lasts(self.state, gang, gang.claim, self.now_ms):
            return False
        capacity, number = self.draft.capacity, self.state.topology.number
        numbers = [(number.get(seat.node), seat.gpus) for seat in gang.claim]
        return all(n is not None and capacity.open[n] and not gpus & ~capacity.up[n] for n, gpus in numbers)

    def _is_vacant(self, gang: Gang) -> bool:
        capacity, number = self.draft.capacity, self.state.topology.number
        tasks: dict[int, int] = {}
        for seat in gang.claim:
            n = number[seat.node]
            tasks[n] = tasks.get(n, 0) + 1
            if seat.gpus & capacity.used[n]:
                return False
        return all(
            (capacity.left[name][n] or 0) >= each * count for n, count in tasks.items() for name, each in gang.amounts
        )

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
        for name in self.state.draining:
            node = self.state.nodes[name]
            bad = sum(1 << gpu for gpu, health in node.gpu_health.items() if health is Health.DRAINING)
            for tenant in self.state.tenants[name]:
                gang = self.state.gangs[tenant]
                must_go = is_leaving(node) or any(s.node == name and s.gpus & bad for s in gang.all_seats)
                if must_go and not self.draft.is_leaving(gang) and gang.id not in self.draft.served:
                    self.draft.evict(gang)
                    self.decisions.append(Evict(gang.id, gang.attempt, Cause.DRAIN))

    # ---- 4. the line -------------------------------------------------------------------------------------------

    def serve(self) -> None:
        walk = Walk(self.draft, self.parts.order, self._overdue(), self.room.may_have_rights, self.full)
        while (turn := walk.next()) is not None:
            self._serve(walk, turn)
            self.draft.capacity.keep()
            if self._is_stuck():
                break

    def _is_stuck(self) -> bool:
        """Whether nobody may pass who is blocked, and all compete for the same nodes."""
        return not self.parts.backfill.may_pass and bool(self.blocked) and len(self.state.topology.layouts) == 1

    def _overdue(self) -> list[Gang]:
        """Of each pool and priority the oldest, if it has waited longer than anyone should."""
        if self.parts.patience_ms is None:
            return []
        found: list[Gang] = []
        for priority in sorted(self.state.backlog.ages, reverse=True):
            pools = set()
            for gang in self.state.backlog.ages[priority].oldest(16):
                if (
                    self.now_ms - gang.waiting_since_ms >= self.parts.patience_ms
                    and self._pool(gang.demand) not in pools
                ):
                    pools.add(self._pool(gang.demand))
                    found.append(gang)
        return found

    def _pool(self, demand: Demand) -> tuple[bool, ...]:
        """Gangs that compete for the same kinds of nodes are of one pool; one pool never blocks another."""
        pool = self._pools.get(demand.task)
        if pool is None:
            accepted = self.state.topology.accepted(demand.task)
            pool = self._pools[demand.task] = tuple([mask != 0 for mask in accepted])
        return pool

    def _serve(self, walk: Walk, turn: Turn) -> None:
        gang, demand = turn.gang, turn.gang.demand
        pool = self._pool(demand)
        if not self.parts.backfill.may_pass and self.blocked.get(pool):
            walk.close_at_desk(turn)
            walk.close_demand(demand)
            return
        if self._is_full(gang, pool):
            walk.close(turn)
            if self.room.nobody_to_ask(gang):
                walk.close_class(turn)
            self._give_up(walk, gang, FREE)
            return
        shortfall = self.shortfall(gang, demand.smallest)
        if shortfall is not None:
            if self._make_room(walk, gang, FREE):
                walk.served(turn)
            elif shortfall.kind == "user_limit":
                walk.close_line(turn)
            else:  # a budget may still have room for a shorter run
                walk.close_at_desk(turn, self.snapshot.expected_ms(gang) if shortfall.kind == "budget" else 0)
            return
        exempt = self._exempt(gang)
        bounds = self.calendar.bounds(gang, exempt)
        is_in_vain = (demand, bounds) in self._in_vain and not gang.profile.avoid
        if not is_in_vain and (self._place(gang, bounds) or self._make_room(walk, gang, bounds)):
            walk.served(turn)
        else:
            self._block(walk, turn, pool, bounds, exempt)

    def _is_full(self, gang: Gang, pool: tuple[bool, ...]) -> bool:
        """Equivalent to what follows, where no start is promised any more, nothing fits and nobody can be asked."""
        return (
            self.blocked.get(pool, 0) >= self.parts.backfill.depth > 0
            and not could_take(self.draft.capacity, gang.demand, gang.demand.smallest)
            and not (self.parts.preemption is not None and self.room.is_worth_asking(gang))
        )

    def shortfall(self, gang: Gang, size: int) -> Shortfall | None:
        if not self.draft.queues.is_bounded(gang.queue):
            return None
        return self._shortfall_of(gang, gang.demand.charge(size))

    def _shortfall_of(self, gang: Gang, charge: Mapping[str, int]) -> Shortfall | None:
        """The first bound of its queue or user that this charge would break."""
        gpu_ms = charge.get(GPU_MILLI, 0) * self.snapshot.expected_ms(gang) // 1000
        return next(self.draft.queues.shortfalls(gang.queue, gang.user, charge, gpu_ms, self.now_ms), None)

    def _exempt(self, gang: Gang) -> list[str]:
        """Reservations of borrowers do not bind whoever is within its guarantee."""
        if not self.calendar.reservations:
            return []
        tree, charge = self.draft.queues, gang.demand.charge(gang.demand.smallest)
        if not tree.is_within(gang.queue, charge, self.now_ms):
            return []
        return [
            reservation.gang
            for reservation in self.calendar.reservations
            if tree.is_entitled(gang.queue, (holder := self.state.gangs[reservation.gang]).queue, charge, self.now_ms)
            and holder.queue != gang.queue
            and not tree.is_entitled(
                holder.queue, gang.queue, holder.demand.charge(holder.demand.smallest), self.now_ms
            )
        ]

    def _place(self, gang: Gang, bounds: Bounds) -> bool:
        seating = self._find(gang, bounds)
        if seating is None:
            return False
        seats = seating.everything
        charge = self.state.charge_for(gang.demand.task, seats)
        gpu_ms = (amount_of(charge, GPU_MILLI) or 0) * self.snapshot.expected_ms(gang) // 1000
        self.draft.place(gang, seats, charge, gpu_ms)
        spread = spread_of(self.state.topology, seats)
        self.decisions.append(Place(gang.id, gang.attempt + 1, seating.seats, seating.spares, spread))
        return True

    def _find(self, gang: Gang, bounds: Bounds) -> Seating | None:
        """Seats for the largest size that its queue may have and that fits."""
        demand, widest = gang.demand, 0
        if self.now_ms < self._content_ms(gang):
            widest = self.state.topology.level_index(demand.prefer) or 0
        for size in demand.sizes():
            if size == demand.smallest or self.shortfall(gang, size) is None:
                found = find_seats(
                    self.draft.capacity, demand, size, self.snapshot.avoid(gang), bounds, self.parts.scorer, widest
                )
                if found is not None and self._models_allowed(gang, found):
                    return found
        return None

    def _models_allowed(self, gang: Gang, found: Seating) -> bool:
        """Quota per GPU model can only be checked once the seats are known."""
        if len(gang.demand.task.models) == 1 or not self.draft.queues.bounds_models:
            return True
        return self._shortfall_of(gang, dict(self.state.charge_for(gang.demand.task, found.everything))) is None

    def _make_room(self, walk: Walk, gang: Gang, bounds: Bounds) -> bool:
        if self.parts.preemption is None:
            return False
        decision = self.room.make(gang, gang.demand.smallest, bounds)
        if decision is None:
            return False
        for victim in decision.victims:
            leaving = self.state.gangs[victim.gang]
            walk.leaves(leaving)
            self.draft.evict(leaving)
            if victim.keep:
                self.draft.claim(leaving, victim.keep, self.state.charge_for(leaving.demand.task, victim.keep))
        self.draft.claim(gang, decision.seats, self.state.charge_for(gang.demand.task, decision.seats))
        self.decisions.append(decision)
        if decision.victims:
            self.room.made([self.state.gangs[victim.gang] for victim in decision.victims])
            walk.reopen()
        return True

    def _block(self, walk: Walk, turn: Turn, pool: tuple[bool, ...], bounds: Bounds, exempt: list[str]) -> None:
        """It cannot start now. Promise it a start, if it is near enough to the head, and see who may still pass."""
        gang, demand = turn.gang, turn.gang.demand
        if self._has_had_its_turn(gang):
            walk.skip(turn)
            return
        count = self.blocked[pool] = self.blocked.get(pool, 0) + 1
        if count <= self.parts.backfill.depth:
            self.calendar.reserve(gang, demand.smallest, self._content_ms(gang))
            walk.skip(turn)
            if count == self.parts.backfill.depth:
                self._close_what_is_full(walk, pool)
            return
        if self.snapshot.is_choosy(gang) or self.now_ms < self._content_ms(gang):
            walk.close_line(turn)  # it is choosy; others who want the same may take what it does not
            return
        may_fit = could_take(self.draft.capacity, demand, demand.smallest)
        if not may_fit:  # else its queue may be the reason, or the topology
            self.full.add(demand)
        # where only reservations are in the way, whoever is gone before they begin may still pass
        is_barred = bounds is not FREE and may_fit
        walk.close(turn, self.calendar.shortest_barred_ms(gang, exempt) if is_barred else 0)
        self._give_up(walk, gang, bounds if is_barred else FREE)

    def _give_up(self, walk: Walk, gang: Gang, bounds: Bounds) -> None:
        """It did not fit. Equivalent to giving a turn to everyone who wants the same, once nobody can be asked to leave
        any more: there will be no more room, and nobody is exempt from what binds this gang, being owed nothing."""
        room, is_choosy = self.room, self.snapshot.is_choosy(gang) or self.draft.queues.bounds_models or self.keeps
        if self.parts.preemption is None or is_choosy or not room.is_over() or room.is_worth_asking(gang):
            return
        until_ms = self.now_ms + self.snapshot.hold_ms(gang) if bounds is not FREE else 0
        # whoever is not gone when the last of the reservations begins that bind it is bound by all of them
        last_ms = max([each.at_ms for each in self.calendar.reservations if each.at_ms < until_ms], default=-1)
        self._in_vain.add((gang.demand, bounds))
        walk.close_everywhere(gang.demand, last_ms - self.now_ms + 1 if last_ms >= 0 else 0)

    def _has_had_its_turn(self, gang: Gang) -> bool:
        """Where time is shared, who has run already is promised nothing until it has waited longer than anyone should,
        so that what is free is not kept for it."""
        patience = NEVER_MS if self.parts.patience_ms is None else self.parts.patience_ms
        return (
            gang.served_gpu_ms > 0
            and self.state.queues.queues[gang.queue].spec.time_share > 0
            and self.now_ms - gang.waiting_since_ms < patience
        )

    def _close_what_is_full(self, walk: Walk, pool: tuple[bool, ...]) -> None:
        """Equivalent to giving everyone a turn; those who cannot fit, and may not make others leave, need none."""
        classes = self.state.backlog.classes
        for kind, may_fit in self.room.could_take(classes).items():
            if not may_fit and self._pool(next(iter(classes[kind]))) == pool:
                walk.close_demands(classes[kind].keys())

    def _content_ms(self, gang: Gang) -> int:
        """Until when a gang would rather wait for seats that are closer together than take what there is."""
        demand = gang.demand
        return gang.waiting_since_ms + demand.prefer_wait_ms if demand.prefer else 0

    def look_again_ms(self) -> int | None:
        """Where time is shared, who runs now will have had more than who waits without anything being reported."""
        is_shared = self.parts.preemption is not None and self.state.backlog.count
        return next_beat_ms(self.state, self.now_ms) if is_shared else None

    # ---- 5. growth ---------------------------------------------------------------------------------------------

    def grow(self) -> None:
        most: Most = {}
        for gang in list(self.state.elastic.values()):
            if gang.state is not GangState.RUNNING or self.draft.is_leaving(gang):
                continue
            if len(gang.seats) >= gang.demand.tasks or gang.id in self.draft.served:
                continue
            decision = grow(self.draft, gang, most)
            if decision is not None:
                extra = tuple(seat for seat in decision.seats if seat not in set(gang.seats))
                if self._shortfall_of(gang, dict(self.state.charge_for(gang.demand.task, extra))) is None:
                    claim = decision.seats + gang.spares
                    self.draft.evict(gang)
                    self.draft.claim(gang, claim, self.state.charge_for(gang.demand.task, claim))
                    self.decisions.append(decision)
