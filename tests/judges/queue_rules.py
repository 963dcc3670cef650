"""What the documents promise about queues, written down once more for the judges: bounds, lending, rights, order.

Sources: docs/configuration.md (queues), docs/decisions/0006 (who may make whom leave), docs/engine.md (order). Shares
no code with the engine; slow and plain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tests.judges.facts import GPU, SHARED, Ask, Charge, Facts, Gang, contested
from tests.judges.gpu_time import Book
from tests.judges.occupancy import NOTHING_BARRED, Barred, Board, Floor, least_charge, model_sets

# ---- bounds --------------------------------------------------------------------------------------------------------


def bounds_broken(
    board: Board,
    gang: Gang,
    charge: Charge,
    book: Book,
    less: Mapping[str, Charge] | None = None,
    owners_too: bool = False,
) -> Iterator[str]:
    """In words, every bound of the gang's queue, user or relatives that this charge would break, a budget by the
    strictest reading.

    ``less``: what is no longer charged to queues, because others have left. ``owners_too``: what others do not lend
    counts also for who is within its guarantee; both have their right where borrowers can give back enough.
    """
    facts, less = board.facts, less or {}
    for name, asked in charge.items():
        bound = facts.queues[gang.queue].user_limit.get(name)
        mine = board.user_used.get((gang.queue, gang.user), {}).get(name, 0) - _less_of(less, f"@{gang.user}", name)
        if bound is not None and mine + asked > bound:
            yield f"user limit of {gang.queue}: {gang.user} has {mine} of {bound} {name}, asks {asked}"
        for each in gang.path:
            limit = facts.queues[each].limit.get(name)
            used = board.used[each].get(name, 0) - _less_of(less, each, name)
            if limit is not None and used + asked > limit:
                yield f"limit of {each}: {used} of {limit} {name}, asks {asked}"
    yield from not_lent(board, gang, charge, less, owners_too)
    yield from over_budget(board, gang, charge, book, is_sure=False)


def _less_of(less: Mapping[str, Charge], queue: str, name: str) -> int:
    return less.get(queue, {}).get(name, 0)


def unlent(board: Board, queue: str, name: str, less: Mapping[str, Charge] | None = None) -> int:
    """What a subtree keeps free for itself: its guarantee less what it lends and has, or what its parts keep."""
    record, less = board.facts.queues[queue], less or {}
    own = 0
    if name in record.kept:
        own = max(0, record.kept[name] - board.used[queue].get(name, 0) + _less_of(less, queue, name))
    return max(own, sum(unlent(board, child, name, less) for child in record.children))


def not_lent(
    board: Board, gang: Gang, charge: Charge, less: Mapping[str, Charge] | None = None, owners_too: bool = False
) -> Iterator[str]:
    """Whoever takes from outside a subtree leaves free what that subtree keeps for itself: of the cluster, and of the
    limit of every queue that is above both. An owner within its guarantee from the outermost queue down takes nothing
    that is anybody else's, unless it is its children's."""
    facts, less = board.facts, less or {}
    dimensions = {d for queue in facts.queues.values() for d in queue.kept if d in charge}
    for name in dimensions:
        wanted = {name: charge[name]} if name in SHARED else charge  # the right to GPUs is a right to GPUs
        is_owner = not owners_too and is_entitled(board, gang, 0, wanted, less)
        kept = 0  # by those beside it, from the innermost queue outwards
        for each in reversed(("", *gang.path)):
            if each == gang.queue or not is_owner:
                beside = [child for child in facts.queues[each].children if child not in gang.path]
                kept += sum(unlent(board, child, name, less) for child in beside)
            bound = facts.queues[each].limit.get(name) if each else facts.total.get(name, 0)
            if kept and bound is not None:
                free = bound - board.used[each].get(name, 0) + _less_of(less, each, name)
                if free - charge[name] < kept:
                    where = f"of the limit of {each}" if each else "of the cluster"
                    yield f"not lent: {free} {name} {where} are not in use, others keep {kept}, asks {charge[name]}"


def over_budget(board: Board, gang: Gang, charge: Charge, book: Book, is_sure: bool) -> Iterator[str]:
    facts, now = board.facts, board.facts.now_ms
    for each in gang.path:
        budget = facts.queues[each].budget
        if budget is None:
            continue
        window = (now - budget.anchor_ms) // budget.window_ms
        end = budget.anchor_ms + (window + 1) * budget.window_ms
        spent = book.spent(each, budget.window_ms, window)
        for name, other in board.charges.items():
            if name != gang.id and each in facts.gangs[name].path:
                spent += other.get(GPU, 0) * _still(board, facts.gangs[name], end if is_sure else None) // 1000
        asked = charge.get(GPU, 0) * _still(board, gang, end if is_sure else None, True) // 1000
        if asked and spent + asked > budget.gpu_ms:
            yield f"budget of {each}: {spent} GPU-ms of {budget.gpu_ms} are spent or spoken for, asks {asked}"


def _still(board: Board, gang: Gang, end_ms: int | None, is_new: bool = False) -> int:
    """How long a gang is thought to be charged from now on; with an end, within the window and less what it ran."""
    now, length = board.facts.now_ms, gang.ask.expected_ms
    if end_ms is None:
        return length
    if not is_new and gang.id not in board.served and gang.seats:
        length = 0 if gang.is_leaving else max(0, length - (now - gang.placed_ms))
    return min(length, end_ms - now)


# ---- may it start --------------------------------------------------------------------------------------------------


def may_start(
    board: Board, gang: Gang, book: Book, floor: Floor | None = None, barred: Barred = NOTHING_BARRED
) -> bool:
    """Whether a gang in line fits on what is free, at its smallest, within every bound."""
    floor = Floor(board) if floor is None else floor
    ask = gang.ask
    if not floor.fits(ask, ask.smallest, barred):
        return False
    return any(_fits_on(board, gang, book, floor, barred, models) for models in model_sets(board.facts, ask))


def _fits_on(board: Board, gang: Gang, book: Book, floor: Floor, barred: Barred, models: tuple[str, ...]) -> bool:
    facts, ask = board.facts, gang.ask
    charge = least_charge(facts, ask, ask.smallest, models)
    if next(bounds_broken(board, gang, charge, book, owners_too=True), None) is not None:
        return False
    if not models:
        return True
    most = {m.model: most_of(board, gang, m.model, ask) for m in facts.machines if m.model in models}
    return floor.fits(ask, ask.smallest, barred, {m.model: most.get(m.model, 0) for m in facts.machines})


def most_of(board: Board, gang: Gang, model: str, ask: Ask) -> int:
    """How many tasks of a gang its queue and user may have on GPUs of one model."""
    facts, name = board.facts, f"{GPU}:{model}"
    each = max(ask.charge_on(m).get(name, 0) for m in facts.machines if m.model == model)
    if not each:
        return ask.tasks + ask.spares
    rooms = []
    bound = facts.queues[gang.queue].user_limit.get(name)
    if bound is not None:
        rooms.append(bound - board.user_used.get((gang.queue, gang.user), {}).get(name, 0))
    for queue in gang.path:
        limit = facts.queues[queue].limit.get(name)
        if limit is not None:
            rooms.append(limit - board.used[queue].get(name, 0))
    if any(name in queue.kept for queue in facts.queues.values()):
        probe = {name: each}
        if next(not_lent(board, gang, probe, owners_too=True), None) is not None:
            return 0
    return max(0, min(rooms, default=each * (ask.tasks + ask.spares))) // each


# ---- rights --------------------------------------------------------------------------------------------------------


def parting(one: Gang, other: Gang) -> int:
    """How many queues, outermost first, two gangs have in common."""
    shared = 0
    for mine, theirs in zip(one.path, other.path, strict=False):
        if mine != theirs:
            break
        shared += 1
    return shared


def is_entitled(board: Board, gang: Gang, level: int, charge: Charge, less: Mapping[str, Charge] | None = None) -> bool:
    """Whether every queue of the gang's path from this level down stays within its guarantee with this charge."""
    below, less = gang.path[level:], less or {}
    return bool(below) and all(
        queue.guarantee.get(name) is not None
        and board.used[queue.name].get(name, 0) - _less_of(less, queue.name, name) + charge[name]
        <= queue.guarantee[name]
        for queue in (board.facts.queues[each] for each in below)
        for name in contested(charge)
    )


def is_borrowing(board: Board, gang: Gang, level: int) -> bool:
    """Whether every queue of the gang's path from this level down has more than its guarantee."""
    return all(_has_more(board, name) for name in gang.path[level:])


def _has_more(board: Board, name: str) -> bool:
    """Of GPUs, of what somebody is guaranteed or, for a queue that has none of these, of anything that is shared."""
    used, guarantee = board.used[name], board.facts.queues[name].guarantee
    queues = board.facts.queues.values()
    promised = {dimension for queue in queues for dimension, amount in queue.guarantee.items() if amount}
    for at, dimension in enumerate(SHARED):
        counts = dimension in promised or not any(used.get(before, 0) for before in SHARED[:at])
        if counts and used.get(dimension, 0) > guarantee.get(dimension, 0):
            return True
    return False


def asked_charge(facts: Facts, ask: Ask) -> Charge:
    """What a gang is charged at its smallest, wherever it may sit."""
    return least_charge(facts, ask, ask.smallest, facts.models)


# ---- order ---------------------------------------------------------------------------------------------------------


def share(board: Board, queue: str, extra: Charge | None = None) -> float:
    """Where it is largest: what a queue has had, and what it has as if for a while, by its weight."""
    record, facts = board.facts.queues[queue], board.facts
    return _share(facts, record.past, board.used[queue], record.weight, extra)


def user_share(board: Board, gang: Gang, extra: Charge | None = None) -> float:
    past = board.facts.queues[gang.queue].user_past.get(gang.user, ())
    return _share(board.facts, past, board.user_used.get((gang.queue, gang.user), {}), 1, extra)


def _share(facts: Facts, past: Iterable[int], used: Charge, weight: int, extra: Charge | None) -> float:
    had = dict(zip(SHARED, past, strict=False))
    return max(
        (
            (had.get(d, 0) + (used.get(d, 0) + (extra or {}).get(d, 0)) * facts.entry_ms) / (facts.total[d] * weight)
            for d in SHARED
            if facts.total.get(d)
        ),
        default=0.0,
    )
