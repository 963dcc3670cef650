"""Sets of victims, by brute force: who may be asked by what right, whether a set is legal and makes enough room.

The table of docs/decisions/0006 once more. Small cases are searched completely, large ones node by node: a set that is
found is certainly legal and enough; that none is found proves nothing when there are many candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from msgspec import Struct

from corral.core.model import Cause
from tests.judges.facts import Charge, Gang, Seat, contested
from tests.judges.gpu_time import Book
from tests.judges.occupancy import NOTHING_BARRED, Barred, Board, Floor, least_charge, model_sets
from tests.judges.queue_rules import asked_charge, bounds_broken, is_borrowing, is_entitled, most_of, parting

SUBSETS_MAX = 4_096


class Leaver(Struct, frozen=True):
    """A gang that leaves, by what right, and the seats that it keeps (it shrinks)."""

    gang: Gang
    right: Cause
    keep: tuple[Seat, ...] = ()

    def freed(self, board: Board) -> Charge:
        """What its queue is no longer charged."""
        charge = board.charges.get(self.gang.id, {})
        if not self.keep:
            return charge
        kept = board.facts.charge(self.gang.ask, list(self.keep))
        return {name: amount - kept.get(name, 0) for name, amount in charge.items()}


# ---- rights --------------------------------------------------------------------------------------------------------


def right(board: Board, gang: Gang, other: Gang, charge: Charge) -> Cause | None:
    """By what right one gang may ask another to leave: reclaim, priority, or none. Time sharing is judged elsewhere."""
    level, is_lower = parting(gang, other), other.priority < gang.priority
    if other.queue == gang.queue:
        return Cause.PRIORITY if is_lower and _minds_not(other) else None
    if not is_borrowing(board, other, level):
        return None
    if is_entitled(board, gang, level, charge):
        return Cause.RECLAIM
    is_late = not any(_sat_before(board, other, name)[0] for name in other.path[level:])
    return Cause.PRIORITY if is_lower and is_late and _minds_not(other) else None


def _sat_before(board: Board, gang: Gang, queue: str) -> tuple[bool, bool]:
    """Of the gangs of a queue, in the order in which they sat down, whether this one lies within its guarantee:
    certainly, and perhaps (a part of it does)."""
    own = board.charges.get(gang.id, {})
    shared = contested(own)
    guarantee = board.facts.queues[queue].guarantee
    if not shared or not all(guarantee.get(name) for name in shared):
        return False, False
    before = dict.fromkeys(shared, 0)
    for each, charge in board.charges.items():
        other = board.facts.gangs[each]
        if queue in other.path and other.turn < gang.turn and each not in board.served:
            for name in shared:
                before[name] += charge.get(name, 0)
    is_within = all(before[name] + own[name] <= guarantee[name] for name in shared)
    return is_within, all(before[name] < guarantee[name] for name in shared)


def is_surely_late(board: Board, gang: Gang, other: Gang) -> bool:
    """Whether it certainly came after the guarantees of its queues were used up; whoever is of the same queue is not
    asked for that."""
    if other.queue == gang.queue:
        return True
    return not any(_sat_before(board, other, name)[1] for name in other.path[parting(gang, other) :])


def _minds_not(gang: Gang) -> bool:
    """``preemptible: false`` and ``min_runtime`` protect from everyone but owners."""
    return gang.ask.preemptible and gang.run_ms >= gang.ask.min_runtime_ms


def may_ask(board: Board, gang: Gang) -> list[Leaver]:
    """All who may be asked to leave for a gang, by owner's right or priority."""
    charge = asked_charge(board.facts, gang.ask)
    found = [(other, right(board, gang, other, charge)) for other in board.staying()]
    return [Leaver(other, cause) for other, cause in found if cause is not None]


def takes_over(board: Board, gang: Gang, claimant: Gang) -> bool:
    """Whether a gang in line may have the seats that are claimed for another: it could make it leave if it sat down."""
    return gang.waits and right(board, gang, claimant, asked_charge(board.facts, gang.ask)) is not None


def is_legal(board: Board, gang: Gang, leavers: Sequence[Leaver]) -> bool:
    """The set as a whole: when the last gang of a queue gives back what was borrowed, the queue still has more than its
    guarantee; and whoever is merely more important leaves every other queue at least its guarantee.

    What a gang gives up is its GPUs, if it has any, else its CPUs and memory; and what it is made to leave for."""
    wanted = contested(asked_charge(board.facts, gang.ask))
    given: dict[tuple[str, str], list[int]] = {}
    by_priority: set[str] = set()
    for leaver in leavers:
        freed = leaver.freed(board)
        below = leaver.gang.path[parting(gang, leaver.gang) :]
        for name in {*contested(freed), *wanted} if leaver.gang.queue != gang.queue else ():
            for queue in below if freed.get(name) else ():
                given.setdefault((queue, name), []).append(freed[name])
        if leaver.right is not Cause.RECLAIM:
            by_priority.update(below)
    for (queue, name), amounts in given.items():
        above = board.used[queue].get(name, 0) - board.facts.queues[queue].guarantee.get(name, 0)
        if queue in by_priority:
            if sum(amounts) > above:
                return False
        elif sum(amounts) - max(amounts) >= above:
            return False
    return True


# ---- room ----------------------------------------------------------------------------------------------------------


def makes_room(
    board: Board,
    gang: Gang,
    leavers: Sequence[Leaver],
    book: Book,
    barred: Barred = NOTHING_BARRED,
    owners_too: bool = True,
) -> bool:
    """Whether the gang fits, within every bound, once these and all who are leaving have left. ``owners_too``: what is
    not lent binds it also within its guarantee."""
    ask = gang.ask
    floor = Floor(board, when_left=True, without={each.gang.id: each.keep for each in leavers})
    if not floor.fits(ask, ask.smallest, barred, as_claim=True):
        return False
    less = freed_charges(board, gang, leavers)
    for models in model_sets(board.facts, ask):
        most = {model: _most(board, gang, model, models) for model in board.facts.models}
        if floor.fits(ask, ask.smallest, barred, most if models else None, as_claim=True):
            charge = least_charge(board.facts, ask, ask.smallest, models)
            if next(bounds_broken(board, gang, charge, book, less, owners_too), None) is None:
                return True
    return False


def _most(board: Board, gang: Gang, model: str, models: tuple[str, ...]) -> int:
    """How many tasks may sit on a model. Of one alone it is looked at what others give back; of several rather not."""
    if model not in models:
        return 0
    return gang.ask.tasks + gang.ask.spares if len(models) == 1 else most_of(board, gang, model, gang.ask)


def freed_charges(board: Board, gang: Gang, leavers: Sequence[Leaver]) -> dict[str, Charge]:
    """What queues, the cluster and, if they are of the same user and queue, the user are no longer charged."""
    less: dict[str, Charge] = {}
    for leaver in leavers:
        keys = ["", *leaver.gang.path]
        if (leaver.gang.queue, leaver.gang.user) == (gang.queue, gang.user):
            keys.append(f"@{gang.user}")
        freed = leaver.freed(board)
        for key in keys:
            mine = less.setdefault(key, {})
            for name, amount in freed.items():
                mine[name] = mine.get(name, 0) + amount
    return less


def legal_set(
    board: Board, gang: Gang, candidates: Sequence[Leaver], book: Book, barred: Barred = NOTHING_BARRED
) -> Sequence[Leaver] | None:
    """Some legal set of candidates whose leaving lets the gang start; None if none is found."""
    floor = Floor(board, when_left=True, without={each.gang.id: each.keep for each in candidates})
    if not floor.fits(gang.ask, gang.ask.smallest, barred, as_claim=True):
        return None
    for tried in _sets(board, gang, candidates):
        if makes_room(board, gang, tried, book, barred, owners_too=False):
            return tried
    return None


def _sets(board: Board, gang: Gang, candidates: Sequence[Leaver]) -> Iterator[Sequence[Leaver]]:
    """Legal sets to try. Where there are few candidates, all that are not part of another legal set, for who makes
    enough room does so together with others, too; but where somebody keeps something back, all. Else node by node."""
    if 2 ** len(candidates) <= SUBSETS_MAX:
        keeps = any(queue.kept for queue in board.facts.queues.values())
        tried: list[frozenset[str]] = []
        for size in range(len(candidates), -1, -1):
            for each in combinations(candidates, size):
                names = frozenset(leaver.gang.id for leaver in each)
                if not keeps and any(names <= larger for larger in tried):
                    continue
                if is_legal(board, gang, each):
                    tried.append(names)
                    yield each
        return
    yield ()
    nodes = {n for each in candidates for n, _, _ in each.gang.seats}
    by_node = {n: [each for each in candidates if any(n == at for at, _, _ in each.gang.seats)] for n in nodes}
    orders = [sorted(nodes, key=lambda n: (len(by_node[n]), n)), sorted(nodes)]
    orders += [[n, *(m for m in orders[0] if m != n)] for n in sorted(nodes)]
    for order in orders:
        chosen: list[Leaver] = []
        for n in order:
            for leaver in sorted(by_node[n], key=lambda each: (each.gang.price, each.gang.id)):
                if leaver not in chosen and is_legal(board, gang, [*chosen, leaver]):
                    chosen.append(leaver)
                    yield tuple(chosen)
