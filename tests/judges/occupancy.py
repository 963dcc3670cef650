"""Who holds what while a plan is carried out, decision by decision, and what would fit beside it.

``Board`` is what is charged and held; ``Floor`` is what is free on it, counted from nothing each time. Exhaustive and
simple, for small clusters. Shares no code with the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from corral.core.model import GangState
from corral.core.plan import Decision, DropClaim, Evict, Grow, MakeRoom, Place, Repair
from tests.judges.facts import GPU, NODE, Ask, Charge, Facts, Gang, Seat

Barred = Mapping[int, int]  # node -> GPUs that may not be used
NOTHING_BARRED: Barred = {}
EVERYTHING = -1  # a mask of all GPUs; a node of which everything is barred takes nothing at all
_NOBODY: Mapping[str, Sequence[Seat]] = {}


class Board:
    """Seats, claims and charges. Starts as the facts have it; ``do`` carries out one decision."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.seats: dict[str, list[Seat]] = {}
        self.leaving: set[str] = set()
        self.claims: dict[str, list[Seat]] = {}
        self.charges: dict[str, Charge] = {}
        self.used: dict[str, Charge] = {name: {} for name in facts.queues}
        self.user_used: dict[tuple[str, str], Charge] = {}
        self.in_line: set[str] = set()
        self.served: set[str] = set()  # got seats or a claim, or gave a claim back, in this plan
        for gang in facts.gangs.values():
            if gang.seats:
                self.seats[gang.id] = gang.seats
            if gang.is_leaving:
                self.leaving.add(gang.id)
            if gang.claim:
                self.claims[gang.id] = gang.claim
            if gang.waits:
                self.in_line.add(gang.id)
            self.set_charge(gang, gang.charge)

    def copy(self) -> Board:
        twin = object.__new__(Board)
        twin.facts = self.facts
        twin.seats, twin.leaving, twin.claims = self.seats.copy(), self.leaving.copy(), self.claims.copy()
        twin.charges = self.charges.copy()
        twin.used = {name: used.copy() for name, used in self.used.items()}
        twin.user_used = {key: used.copy() for key, used in self.user_used.items()}
        twin.in_line, twin.served = self.in_line.copy(), self.served.copy()
        return twin

    def set_charge(self, gang: Gang, charge: Charge) -> None:
        before = self.charges.pop(gang.id, {})
        if charge:
            self.charges[gang.id] = charge
        mine = self.user_used.setdefault((gang.queue, gang.user), {})
        for sign, amounts in ((-1, before), (1, charge)):
            if amounts:
                for used in (self.used[""], *(self.used[name] for name in gang.path), mine):
                    for name, amount in amounts.items():
                        used[name] = used.get(name, 0) + sign * amount

    def do(self, decision: Decision) -> None:
        gang = self.facts.gangs[decision.gang]
        match decision:
            case Place() | Repair():
                seats = self.facts.seats(decision.seats + decision.spares)
                self.claims.pop(gang.id, None)
                self._sit(gang, seats)
                self.served.add(gang.id)
            case MakeRoom():
                for victim in decision.victims:
                    self._evict(self.facts.gangs[victim.gang], self.facts.seats(victim.keep))
                self._claim(gang, self.facts.seats(decision.seats))
                self.served.add(gang.id)
            case Grow():
                spares = gang.seats[gang.ranks :]
                self._evict(gang, self.facts.seats(decision.seats) + spares)
            case Evict():
                self._evict(gang, [])
            case DropClaim():
                self.claims.pop(gang.id, None)
                self.set_charge(gang, {})
                if gang.state is GangState.WAITING and not gang.blocked:
                    self.in_line.add(gang.id)  # it is in line again

    def _sit(self, gang: Gang, seats: list[Seat]) -> None:
        self.seats[gang.id] = seats
        self.in_line.discard(gang.id)
        self.set_charge(gang, self.facts.charge(gang.ask, seats))

    def _claim(self, gang: Gang, seats: list[Seat]) -> None:
        self.claims[gang.id] = seats
        self.in_line.discard(gang.id)
        self.set_charge(gang, self.facts.charge(gang.ask, seats))

    def _evict(self, gang: Gang, keep: list[Seat]) -> None:
        self.leaving.add(gang.id)
        self.set_charge(gang, {})
        if keep:
            self._claim(gang, keep)

    def waiting(self) -> list[Gang]:
        """Who is still in line."""
        return [gang for gang in self.facts.gangs.values() if gang.id in self.in_line]

    def staying(self) -> list[Gang]:
        """Who could be told to leave: has seats that it was not given just now, and is not about to leave or move."""
        gangs, now = self.facts.gangs, self.facts.now_ms
        return [
            gangs[name]
            for name in self.seats
            if name not in self.leaving and name not in self.served and gangs[name].state in ("running", "starting")
            if gangs[name].placed_ms < now
        ]


class Floor:
    """What is free: GPUs as masks, VRAM of shared GPUs, amounts."""

    def __init__(self, board: Board, when_left: bool = False, without: Mapping[str, Sequence[Seat]] = _NOBODY) -> None:
        """``when_left``: as it will be when everyone has left who was told to. ``without``: these others have left,
        too, but for the seats that they keep."""
        self.facts = facts = board.facts
        self.free = [machine.up for machine in facts.machines]
        self.left = [machine.has.copy() for machine in facts.machines]
        self.vram: dict[tuple[int, int], int] = {}
        self.claimed = [0] * len(self.free)
        promised: dict[tuple[int, str], int] = {}
        for name, seats in board.seats.items():
            is_leaving = name in board.leaving
            if when_left and is_leaving:
                continue
            amounts = facts.gangs[name].ask.amounts
            self.take(without.get(name, seats), amounts)
            if is_leaving:
                for n, _, _ in seats:
                    for key, amount in amounts.items():
                        promised[n, key] = promised.get((n, key), 0) - amount
        for name, seats in board.claims.items():
            for n, gpus, _ in seats:
                self.claimed[n] |= gpus
                self.free[n] &= ~gpus
                for key, amount in facts.gangs[name].ask.amounts.items():
                    promised[n, key] = promised.get((n, key), 0) + amount
        for (n, key), amount in promised.items():
            # what is claimed beyond what those who leave will give back is not there for others
            if amount > 0:
                self.left[n][key] = self.left[n].get(key, 0) - amount

    def take(self, seats: Iterable[Seat], amounts: Mapping[str, int]) -> None:
        for n, gpus, slice_mib in seats:
            self.free[n] &= ~gpus
            if slice_mib:
                key = (n, gpus.bit_length() - 1)
                self.vram[key] = self.vram.get(key, self.facts.machines[n].vram) - slice_mib
            for name, amount in amounts.items():
                self.left[n][name] = self.left[n].get(name, 0) - amount

    def tasks_on(self, n: int, ask: Ask, barred: int = 0, as_claim: bool = False) -> int:
        """How many tasks fit on a node. ``as_claim``: a slice takes a whole GPU, as it does while it is claimed."""
        machine = self.facts.machines[n]
        if not machine.is_open or machine.name in ask.avoid or barred == EVERYTHING:
            return 0
        usable = self.free[n] & ~barred
        if not ask.wants_gpu:
            count = ask.tasks + ask.spares
        elif not ask.accepts(machine):
            return 0
        elif ask.slice_mib:
            count = usable.bit_count() * (1 if as_claim else machine.vram // ask.slice_mib)
            if not as_claim:
                blocked = barred | self.claimed[n]
                count += sum(
                    left // ask.slice_mib
                    for (at, gpu), left in self.vram.items()
                    if at == n and not blocked >> gpu & 1 and machine.up >> gpu & 1
                )
        elif ask.tp == 1:
            count = usable.bit_count() // ask.gpus
        else:
            count = _grouped(ask, usable, machine.islands)
        for name, each in ask.amounts.items():
            left = self.left[n].get(name)
            count = 0 if left is None else min(count, max(0, left) // each) if each else count
        return count

    def fits(
        self,
        ask: Ask,
        size: int,
        barred: Barred = NOTHING_BARRED,
        most: Mapping[str, int] | None = None,
        as_claim: bool = False,
    ) -> bool:
        """Whether so many tasks and the spares fit. ``most``: no more tasks than this on GPUs of a model."""
        counts = [self.tasks_on(n, ask, barred.get(n, 0), as_claim) for n in range(len(self.free))]
        return holds(self.facts, ask, counts, size + ask.spares, most)


def _grouped(ask: Ask, usable: int, islands: list[int]) -> int:
    """Tasks whose tensor-parallel groups lie inside islands."""
    group = min(ask.tp, ask.gpus) if ask.tp <= ask.gpus else ask.tp
    groups = sum((usable & island).bit_count() // group for island in islands)
    if ask.tp <= ask.gpus:
        return groups // (ask.gpus // group)
    return groups * (ask.tp // ask.gpus)


def holds(facts: Facts, ask: Ask, counts: list[int], wanted: int, most: Mapping[str, int] | None) -> bool:
    """Whether nodes that take so many tasks each can take all that are wanted, lying as the gang asks."""
    machines = facts.machines
    if sum(counts) < wanted:
        return False
    if ask.within:
        places: dict[str, list[int]] = {}
        for n, machine in enumerate(machines):
            places.setdefault(machine.name if ask.within == NODE else machine.rack, []).append(n)
        domains = list(places.values())
    else:
        domains = [list(range(len(machines)))]
    return any(_room(facts, ask, counts, here, most) >= wanted for here in domains)


def _room(facts: Facts, ask: Ask, counts: list[int], here: list[int], most: Mapping[str, int] | None) -> int:
    machines = facts.machines
    if not ask.spread and most is None:
        return sum(counts[n] for n in here)
    groups: dict[tuple[str, str], int] = {}  # (domain of the spread, model) -> tasks
    for n in here:
        apart = "" if not ask.spread else machines[n].name if ask.spread == NODE else machines[n].rack
        key = (apart, machines[n].model)
        groups[key] = groups.get(key, 0) + counts[n]
    if most is None:
        by_domain: dict[str, int] = {}
        for (apart, _), count in groups.items():
            by_domain[apart] = by_domain.get(apart, 0) + count
        return sum(min(count, ask.spread_max) for count in by_domain.values())
    by_model: dict[str, int] = {}  # a lower bound where both are asked for; exact otherwise
    for (_, model), count in groups.items():
        by_model[model] = by_model.get(model, 0) + (min(count, ask.spread_max) if ask.spread else count)
    return sum(min(count, most.get(model, count)) for model, count in by_model.items())


def model_sets(facts: Facts, ask: Ask) -> list[tuple[str, ...]]:
    """All sets of GPU models on which a gang might sit, small ones first."""
    models = sorted({m.model for m in facts.machines if m.size and ask.accepts(m)}) if ask.wants_gpu else []
    return [()] if not models else [each for k in range(1, len(models) + 1) for each in combinations(models, k)]


def least_charge(facts: Facts, ask: Ask, size: int, models: tuple[str, ...]) -> Charge:
    """What so many tasks and the spares are charged at most on these models; of one model, also in GPUs of it."""
    known = ask.memo.get((size, models))
    if known is None:
        known = ask.memo[size, models] = _charge(facts, ask, size, models)
    return known


def _charge(facts: Facts, ask: Ask, size: int, models: tuple[str, ...]) -> Charge:
    count = size + ask.spares
    charge = {name: amount * count for name, amount in ask.amounts.items()}
    if ask.wants_gpu:
        accepted = [m for m in facts.machines if m.size and m.model in models and ask.accepts(m)]
        each = [ask.charge_on(m)[GPU] for m in accepted]
        charge[GPU] = max(each, default=0) * count
        if len(models) == 1:
            charge[f"{GPU}:{models[0]}"] = charge[GPU]
    return charge
