"""Changes of running gangs: a lost task is replaced, a gang continues with fewer tasks, leaves nodes that are drained,
or grows onto GPUs that no other gang wants.

Surviving tasks keep their seats. Knows one gang at a time; the order of gangs is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from corral.core.cluster.resources import Demand, Seat
from corral.core.cluster.slots import NODE_LEVEL, fits, slots
from corral.core.cluster.topology import Topology
from corral.core.model import CRASH_LOOP, Cause, FailureClass, Gang, GangState, Health
from corral.core.plan import Evict, Grow, Repair
from corral.core.snapshot import Draft
from corral.core.state import healthy_gpus, is_leaving, lasts, seated
from corral.policy.placement.seating import FREE, Bounds, bounded_slots, choose, seats_on


def repair(draft: Draft, gang: Gang) -> Repair | Evict:
    """How a broken gang continues: on a spare, on a free node near by, with fewer tasks, or not at all."""
    give_up = Evict(gang.id, gang.attempt, Cause.UNREPAIRABLE, FailureClass.NODE_LOST)
    if gang.quick_failures >= CRASH_LOOP:
        return give_up
    seats: list[Seat | None] = [seat if _is_usable(draft, seat) else None for seat in gang.seats]
    spares = [seat for seat in gang.spares if _is_usable(draft, seat)]
    missing = [at for at, seat in enumerate(seats) if seat is None]
    for at in list(missing):
        if spares and _keeps_constraints(draft.capacity.topology, gang.demand, seats, at, spares[0]):
            seats[at] = spares.pop(0)
            missing.remove(at)
    if missing:
        for at, seat in zip(missing, _replacements(draft, gang, seats, len(missing)), strict=False):
            seats[at] = seat
    elif len(spares) < gang.demand.spares:
        spares += _new_spares(draft, gang, [*seats, *spares], gang.demand.spares - len(spares))
    whole = [seat for seat in seats if seat is not None]
    if len(whole) < len(seats):
        sizes = [size for size in gang.demand.sizes() if size <= len(whole)]
        if not sizes:
            return give_up
        whole = whole[: sizes[0]]
    return Repair(gang.id, gang.attempt + 1, tuple(whole), tuple(spares))


def _is_usable(draft: Draft, seat: Seat) -> bool:
    node = draft.state.nodes.get(seat.node)
    return node is not None and not node.lost and not seat.gpus & ~healthy_gpus(node)


def _replacements(draft: Draft, gang: Gang, seats: Sequence[Seat | None], count: int) -> tuple[Seat, ...]:
    """Seats for the lost tasks, as near to the survivors as possible; () if there are not enough."""
    capacity, demand = draft.capacity, gang.demand
    topology = capacity.topology
    here = [n for n, _ in seated(topology, [seat for seat in seats if seat is not None])]
    column = slots(capacity, demand, draft.snapshot.avoid(gang))
    widest = _must_stay_within(topology, demand)
    for level in range(len(topology.levels), widest - 1, -1):
        lo, hi = _range(topology, here, level)
        nearby = [count if lo <= n < hi else 0 for n, count in enumerate(column)]
        counts = choose(topology, nearby, _loose(demand), count) if sum(nearby) >= count else None
        if counts is not None:
            found = seats_on(capacity, demand, counts, FREE)
            if demand.spread and not _is_spread(topology, demand, [*filter(None, seats), *found]):
                return ()
            return found
    return ()


def _new_spares(draft: Draft, gang: Gang, seats: Sequence[Seat | None], lack: int) -> tuple[Seat, ...]:
    """Free seats in place of spares that were used: as many as are missing, or at least one."""
    return _replacements(draft, gang, seats, lack) or (_replacements(draft, gang, seats, 1) if lack > 1 else ())


def _must_stay_within(topology: Topology, demand: Demand) -> int:
    """The outermost level a replacement may come from."""
    if demand.within == NODE_LEVEL:
        return len(topology.levels)
    level = topology.level_index(demand.within) if demand.within else 0
    if demand.chunk > 1:
        level = max(level or 0, topology.nvlink_level if topology.nvlink_level is not None else len(topology.levels))
    return level or 0


def _range(topology: Topology, here: Sequence[int], level: int) -> tuple[int, int]:
    """The nodes of the domain at a level that has all survivors; nothing if they are in several."""
    if not here:
        return (0, len(topology.nodes)) if level == 0 else (0, 0)
    if level == len(topology.levels):
        return (here[0], here[0] + 1) if len(set(here)) == 1 else (0, 0)
    domains = {topology.above[n][level] for n in here}
    if len(domains) > 1:
        return (0, 0)
    domain = topology.domains[domains.pop()]
    return (domain.lo, domain.hi)


def _loose(demand: Demand) -> Demand:
    """The demand of single tasks: their topology is decided before."""
    return Demand(task=demand.task)


def _keeps_constraints(topology: Topology, demand: Demand, seats: Sequence[Seat | None], at: int, spare: Seat) -> bool:
    if demand.chunk > 1 and topology.nvlink_level is not None:
        group = [s for s in seats[at - at % demand.chunk : at - at % demand.chunk + demand.chunk] if s is not None]
        level = topology.nvlink_level
        return len({topology.above[n][level] for n, _ in seated(topology, [*group, spare])}) <= 1
    return not demand.spread or _is_spread(topology, demand, [*(s for s in seats if s is not None), spare])


def _is_spread(topology: Topology, demand: Demand, seats: Sequence[Seat]) -> bool:
    level = topology.level_index(demand.spread)
    held: dict[int, int] = {}
    for n, _ in seated(topology, seats):
        domain = n if level is None else topology.above[n][level]
        held[domain] = held.get(domain, 0) + 1
    return all(count <= demand.spread_max for count in held.values())


#: What decides where a gang may have more seats: demand, excluded nodes, range of nodes, reservations.
Where = tuple[Demand, tuple[str, ...], int, int, Bounds]
#: where -> upper bound of further tasks that fit there
Most = dict[Where, int]


def drained(draft: Draft) -> Iterator[Gang]:
    """Gangs on nodes or GPUs that must become empty."""
    for name in draft.state.draining:
        node = draft.state.nodes[name]
        bad = sum(1 << gpu for gpu, health in node.gpu_health.items() if health is Health.DRAINING)
        for tenant in draft.state.tenants[name]:
            gang = draft.state.gangs[tenant]
            must_go = is_leaving(node) or any(s.node == name and s.gpus & bad for s in gang.all_seats)
            if must_go and not draft.is_leaving(gang) and gang.id not in draft.served:
                yield gang


def grown(
    draft: Draft, bounds_of: Callable[[Gang], Bounds], may_take: Callable[[Gang, Sequence[Seat]], bool]
) -> Iterator[Grow]:
    """Let gangs grow in the draft, one after another."""
    most: Most = {}
    for gang in growable(draft):
        decision = grow(draft, gang, bounds_of(gang), partial(may_take, gang), most)
        if decision is not None:
            claim = decision.seats + gang.spares
            draft.evict(gang)
            draft.claim(gang, claim, draft.state.charge_for(gang.demand.task, claim))
            yield decision


def growable(draft: Draft) -> list[Gang]:
    """Gangs that run with fewer tasks than their maximum, and are not about to change anyway."""
    return [
        gang
        for gang in draft.state.elastic.values()
        if gang.state is GangState.RUNNING
        and len(gang.seats) < gang.demand.tasks
        and not draft.is_leaving(gang)
        and gang.id not in draft.served
    ]


def grow(
    draft: Draft, gang: Gang, bounds: Bounds, may_have: Callable[[Sequence[Seat]], bool], most: Most
) -> Grow | None:
    """More seats for an elastic gang, if the gain is worth a restart and no reservation is delayed: it restarts on its
    current seats, too. ``may_have``: whether its queue may use them.

    ``most`` caches bounds found for other gangs of the same plan: while gangs grow, free capacity only shrinks, so what
    did not fit for one gang does not fit for the next with the same demand in the same domain.
    """
    demand, snapshot = gang.demand, draft.snapshot
    spec = snapshot.job(gang).spec
    have = len(gang.seats)
    if snapshot.run_ms(gang) < max(spec.min_runtime_ms, 10 * spec.restart_cost_ms):
        return None
    if demand.spread or demand.chunk > 1:
        return None  # its seats restrict the position of new ones; such gangs keep their size
    number = draft.capacity.topology.number
    if any(seat.gpus & bounds.barred.get(number[seat.node], 0) for seat in gang.all_seats):
        return None
    where = _where(draft, gang, bounds)
    remaining_ms = snapshot.remaining_ms(gang)
    for size in demand.sizes():
        extra = size - have
        if extra <= 0 or remaining_ms * extra // size < 2 * spec.restart_cost_ms:
            return None
        found = _more_seats(draft, demand, where, extra, most) if extra <= most.get(where, extra) else ()
        if found and may_have(found):
            seats = sorted((*gang.seats, *found), key=lambda seat: number[seat.node])
            if not lasts(draft.state, gang, (*seats, *gang.spares), draft.now_ms + spec.grace_ms):
                return None
            return Grow(gang.id, gang.attempt, tuple(seats))
    return None


def _where(draft: Draft, gang: Gang, bounds: Bounds) -> Where:
    topology, level = draft.capacity.topology, _must_stay_within(draft.capacity.topology, gang.demand)
    here = [n for n, _ in seated(topology, gang.seats)] if level else []
    lo, hi = _range(topology, here, level) if level else (0, len(topology.nodes))
    return gang.demand, gang.profile.avoid + draft.snapshot.too_short(gang), lo, hi, bounds


def _more_seats(draft: Draft, demand: Demand, where: Where, extra: int, most: Most) -> tuple[Seat, ...]:
    capacity, topology = draft.capacity, draft.capacity.topology
    _, avoid, lo, hi, bounds = where
    column = bounded_slots(capacity, demand, avoid, bounds)
    nearby = [count if lo <= n < hi else 0 for n, count in enumerate(column)]
    most[where] = sum(nearby)
    if not fits(topology, nearby, _loose(demand), extra):
        return ()
    counts = choose(topology, nearby, _loose(demand), extra)
    return () if counts is None else seats_on(capacity, demand, counts, bounds)
