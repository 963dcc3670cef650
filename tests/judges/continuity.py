"""Judges of what is held and carried on: seats, claims, repairs, drains, growth."""

from __future__ import annotations

from corral.core.model import CRASH_LOOP, GangState
from corral.core.plan import DropClaim, Evict, Grow, Place, Repair
from tests.judges.case import Case, Violation, told
from tests.judges.facts import Gang, Seat
from tests.judges.occupancy import EVERYTHING, Floor, holds
from tests.judges.queue_rules import bounds_broken
from tests.judges.victims import takes_over


def seats_valid(case: Case) -> list[Violation]:
    """A gang starts whole, on free and healthy GPUs of a kind that it accepts, lying as it asks, with its spares."""
    found = []
    for decision, board in case.moments:
        if not isinstance(decision, Place):
            continue
        gang, facts = case.before.gangs[decision.gang], case.before
        if gang.claim:
            continue
        seats, floor, ask = facts.seats(decision.seats + decision.spares), Floor(board), gang.ask
        wrong = []
        if len(decision.seats) not in ask.sizes or len(decision.spares) != ask.spares:
            wrong.append(f"it gets {len(decision.seats)} tasks and {len(decision.spares)} spares")
        counts = [0] * len(facts.machines)
        for seat in seats:
            n = seat[0]
            if floor.tasks_on(n, ask) < 1 or not _is_free(floor, seat):
                wrong.append(f"a seat on {facts.machines[n].name} is not free for it")
            floor.take([seat], ask.amounts)
            counts[n] += 1
        if not holds(facts, ask, counts, len(seats), None):
            wrong.append("its tasks do not lie as it asks")
        found += [Violation("seats_valid", f"{told(gang)}: {words}") for words in wrong]
    return found


def _is_free(floor: Floor, seat: Seat) -> bool:
    n, gpus, slice_mib = seat
    if not slice_mib:
        return not gpus & ~floor.free[n]
    gpu = gpus.bit_length() - 1
    left = floor.vram.get((n, gpu))
    return bool(gpus & floor.free[n]) if left is None else left >= slice_mib and not floor.claimed[n] & gpus


def claims_used(case: Case) -> list[Violation]:
    """Whoever has seats claimed sits down as soon as they are vacant; a claim on what is gone is dropped, and so is one
    of a gang that would have to leave at once for another, who is served instead."""
    found = []
    placed = {decision.gang for decision, _ in case.moments if isinstance(decision, Place)}
    dropped = {decision.gang for decision, _ in case.moments if isinstance(decision, DropClaim)}
    served = [case.before.gangs[decision.gang] for decision, _ in case.moments if not isinstance(decision, DropClaim)]
    held = {name: gang for name, gang in case.before.gangs.items() if gang.seats}
    for gang in case.before.gangs.values():
        if not gang.claim or gang.state is not GangState.WAITING or gang.blocked:
            continue
        machines = case.before.machines
        is_gone = any(not machines[n].is_open or gpus & ~machines[n].up for n, gpus, _ in gang.claim)
        is_vacant = not any(
            at == n and mask & gpus
            for other in held.values()
            for at, mask, _ in other.seats
            for n, gpus, _ in gang.claim
        )
        has_amounts = not gang.ask.amounts or _has_amounts(case, gang)
        if is_gone and gang.id not in dropped:
            found.append(Violation("claims_used", f"{told(gang)} keeps a claim on what is out of service"))
        elif gang.id in dropped and not is_gone:
            if not any(takes_over(case.start, each, gang) for each in served):
                found.append(Violation("claims_used", f"{told(gang)} loses its claim, which nobody may take over"))
        elif not is_gone and is_vacant and has_amounts and gang.id not in placed:
            found.append(Violation("claims_used", f"{told(gang)} does not sit down on its vacant seats"))
    return found


def _has_amounts(case: Case, gang: Gang) -> bool:
    """Whether what it claims of amounts is there already."""
    left = [machine.has.copy() for machine in case.before.machines]
    for other in case.before.gangs.values():
        for n, _, _ in other.seats:
            for name, amount in other.ask.amounts.items():
                left[n][name] = left[n].get(name, 0) - amount
    wanted: dict[tuple[int, str], int] = {}
    for n, _, _ in gang.claim:
        for name, amount in gang.ask.amounts.items():
            wanted[n, name] = wanted.get((n, name), 0) + amount
    return all(left[n].get(name, -1) >= amount for (n, name), amount in wanted.items())


def drained(case: Case) -> list[Violation]:
    """Everyone who runs on a node or GPU that is to become empty is asked to leave, in the first plan."""
    found = []
    moved = {decision.gang for decision, _ in case.moments if isinstance(decision, Evict | Repair)}
    for gang in case.before.gangs.values():
        if not gang.seats or gang.id in case.after.leaving or gang.id in moved:
            continue
        for n, gpus, _ in gang.seats:
            machine = case.before.machines[n]
            if machine.is_leaving or gpus & machine.draining:
                words = f"{told(gang)} is not asked to leave {machine.name}, which is to become empty"
                found.append(Violation("drained", words))
                break
    return found


def repaired(case: Case) -> list[Violation]:
    """A gang that lost tasks goes on at once on its spares, if they are enough; those who are left keep their seats."""
    found = []
    decided = {decision.gang: decision for decision, _ in case.moments}
    for gang in case.before.gangs.values():
        if gang.state is not GangState.BROKEN or gang.quick >= CRASH_LOOP:
            continue
        decision, ask = decided.get(gang.id), gang.ask
        usable = [_is_usable(case, seat) for seat in gang.seats]
        missing, spares = usable[: gang.ranks].count(False), usable[gang.ranks :].count(True)
        is_free = not (ask.within or ask.spread or ask.tp > 1)
        if is_free and missing <= spares and not isinstance(decision, Repair):
            found.append(Violation("repaired", f"{told(gang)} is not repaired, though it has {spares} spares"))
        if isinstance(decision, Repair) and len(decision.seats) == gang.ranks:
            kept = case.before.seats(decision.seats)
            if any(ok and kept[at] != gang.seats[at] for at, ok in enumerate(usable[: gang.ranks])):
                found.append(Violation("repaired", f"a task of {told(gang)} that was not lost is moved"))
        if decision is None:
            found.append(Violation("repaired", f"{told(gang)} has lost tasks and nothing is decided about it"))
    return found


def _is_usable(case: Case, seat: Seat) -> bool:
    n, gpus, _ = seat
    machine = case.before.machines[n]
    return not machine.is_lost and not gpus & machine.sick


def grows(case: Case) -> list[Violation]:
    """An elastic gang that could use more for long enough grows, where nobody waits for it and nothing is promised."""
    found = []
    decided = {decision.gang for decision, _ in case.moments}
    wanted = {m.model for gang in case.waiting for m in case.before.machines if gang.ask.accepts(m)}
    if any(not gang.ask.wants_gpu for gang in case.waiting):
        return []
    barred = {n: EVERYTHING for n, m in enumerate(case.before.machines) if m.model in wanted}
    for promise in case.plan.reservations:
        for seat in promise.seats:
            n = case.before.number[seat.node]
            barred[n] = EVERYTHING
    for gang in case.after.staying():
        ask = gang.ask
        if gang.id in decided or not ask.is_elastic or gang.state is not GangState.RUNNING or gang.ranks >= ask.tasks:
            continue
        if ask.within or ask.spread or ask.tp > 1 or ask.avoid or ask.slice_mib:
            continue
        if gang.run_ms < max(ask.min_runtime_ms, 10 * ask.restart_ms):
            continue
        size = min((size for size in ask.sizes if size > gang.ranks), default=0)
        extra = size - gang.ranks
        left_ms = max(0, ask.expected_ms - gang.done_ms - gang.run_ms)
        if (
            extra <= 0
            or left_ms * extra // size < 2 * ask.restart_ms
            or any(case.before.queues[q].budget for q in gang.path)
        ):
            continue
        counts = [case.floor.tasks_on(n, ask, barred.get(n, 0)) for n in range(len(case.floor.free))]
        charges = [ask.charge_on(m) for n, m in enumerate(case.before.machines) if counts[n]]
        more = [{name: amount * extra for name, amount in each.items()} for each in charges]
        if sum(counts) >= extra and not any(any(bounds_broken(case.after, gang, each, case.book)) for each in more):
            words = f"{told(gang)} runs with {gang.ranks} tasks and could have {size}: nobody wants what is free"
            found.append(Violation("grows", words))
    return found


def grows_in_peace(case: Case) -> list[Violation]:
    """Nobody grows onto what a gang in line could start on."""
    found = []
    for decision, board in case.moments:
        if isinstance(decision, Grow):
            gang = case.before.gangs[decision.gang]
            have = set(gang.seats)
            extra = [seat for seat in case.before.seats(decision.seats) if seat not in have]
            floor = Floor(board)
            if any(not _is_free(floor, seat) for seat in extra):
                found.append(Violation("grows_in_peace", f"{told(gang)} grows onto what is not free"))
    return found
