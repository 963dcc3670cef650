"""Judges of who is asked to leave: with a right, only if needed, nobody too many, the cheapest, and to some use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

from corral.core.model import Cause
from corral.core.plan import MakeRoom, Place
from tests.judges.case import Case, Violation, told
from tests.judges.facts import GPU, Gang
from tests.judges.occupancy import Board, Floor, least_charge
from tests.judges.queue_rules import is_borrowing, may_start, parting
from tests.judges.starts import is_kept_for_another
from tests.judges.victims import Leaver, is_legal, is_surely_late, legal_set, makes_room, may_ask, right

#: Least disruptive first.
STAGES = (Cause.SHRINK, Cause.RECLAIM, Cause.PRIORITY, Cause.TIME_SHARE)
CANDIDATES_MAX = 7  # sets of more than so many are not compared by price


def _asked(case: Case) -> Iterator[tuple[MakeRoom, Board, Gang]]:
    """Every decision that makes somebody leave, with the board as it was and the gang for which they leave."""
    for decision, board in case.moments:
        if isinstance(decision, MakeRoom) and decision.victims:
            yield decision, board, case.before.gangs[decision.gang]


def _leavers(board: Board, decision: MakeRoom) -> list[Leaver]:
    """Who leaves. By what right one shrinks follows from the table, as if it left."""
    gang, facts = board.facts.gangs[decision.gang], board.facts
    found = []
    for victim in decision.victims:
        other = facts.gangs[victim.gang]
        cause = victim.cause
        if cause is Cause.SHRINK:
            cause = next((cause for cause in _rights(board, gang, other, decision)), Cause.SHRINK)
        found.append(Leaver(other, cause, tuple(facts.seats(victim.keep))))
    return found


def _rights(board: Board, gang: Gang, other: Gang, decision: MakeRoom) -> list[Cause]:
    """By what rights it may be asked: with the least that the gang may be charged, and with what it is on its seats.
    The two differ only for slices, where GPUs are of different sizes."""
    facts, ask = board.facts, gang.ask
    charges = [least_charge(facts, ask, ask.smallest, (model,)) for model in facts.models]
    charges = [facts.charge(ask, facts.seats(decision.seats)), *(each for each in charges if each.get(GPU))]
    found = [right(board, gang, other, charge) for charge in charges]
    return [cause for cause in found if cause is not None]


def _grace_ms(board: Board, names: Iterable[str]) -> int:
    """The longest grace of these: who they leave for starts when it is over."""
    return max((board.facts.gangs[name].ask.grace_ms for name in names), default=0)


def victims_legal(case: Case) -> list[Violation]:
    """Nobody leaves without a right against it (docs/decisions/0006), and the set is legal as a whole."""
    found = []
    for decision, board, gang in _asked(case):
        leavers = _leavers(board, decision)
        for leaver in leavers:
            other = leaver.gang
            fits_right = (
                _may_share_time(board, gang, other)
                if leaver.right is Cause.TIME_SHARE
                else leaver.right in _rights(board, gang, other, decision)
            )
            if not fits_right:
                words = f"{told(other)} leaves for {told(gang)} by {leaver.right}, which it has no right to"
                found.append(Violation("victims_legal", words))
        if not is_legal(board, gang, leavers):
            names = ", ".join(told(leaver.gang) for leaver in leavers)
            words = f"for {told(gang)} a queue is taken below its guarantee by what these give up: {names}"
            found.append(Violation("victims_legal", words))
    return found


def _may_share_time(board: Board, gang: Gang, other: Gang) -> bool:
    """Whether a gang had a turn, saves its work, and is an equal in a queue that shares time."""
    share = board.facts.queues[other.queue].time_share
    ask = other.ask
    return (
        share > 0
        and other.priority == gang.priority
        and (other.queue == gang.queue or is_borrowing(board, other, parting(gang, other)))
        and ask.preemptible
        and other.saves
        and other.run_ms >= max(ask.min_runtime_ms, share * max(1, ask.restart_ms))
    )


def preemption_needed(case: Case) -> list[Violation]:
    """Nobody is asked to leave for a gang that could start without, now or when those have left who leave anyway."""
    found = []
    for decision, board, gang in _asked(case):
        if any(case.is_relied_on(case.before.gangs[victim.gang]) for victim in decision.victims):
            continue
        gone_ms = max((case.before.gangs[name].deadline_ms for name in board.leaving), default=0)
        barred = case.barred(gang, later_ms=max(_grace_ms(board, board.leaving), gone_ms - case.now_ms))
        if may_start(board, gang, case.book, Floor(board), barred) or makes_room(board, gang, (), case.book, barred):
            words = f"others leave for {told(gang)}, who could start without that"
            found.append(Violation("preemption_needed", words))
    return found


def preemption_minimal(case: Case) -> list[Violation]:
    """Without any one of those who leave there would not be room; and nobody shrinks further than is needed."""
    found = []
    for decision, board, gang in _asked(case):
        leavers = _leavers(board, decision)
        barred = case.barred(gang, later_ms=_grace_ms(board, [leaver.gang.id for leaver in leavers]))
        for leaver in leavers:
            if case.is_relied_on(leaver.gang):
                continue
            others = [each for each in leavers if each is not leaver]
            if makes_room(board, gang, others, case.book, barred):
                words = f"{told(leaver.gang)} leaves for {told(gang)} and need not"
                found.append(Violation("preemption_minimal", words))
            elif leaver.keep:
                kept = len(leaver.keep)
                more = [size for size in leaver.gang.ask.sizes if kept < size < leaver.gang.ranks]
                for size in more:
                    less = Leaver(leaver.gang, leaver.right, tuple(leaver.gang.seats[:size]))
                    if makes_room(board, gang, [*others, less], case.book, barred):
                        words = f"{told(leaver.gang)} shrinks to {kept} tasks for {told(gang)}; {size} would do"
                        found.append(Violation("preemption_minimal", words))
                        break
    return found


def preemption_useful(case: Case) -> list[Violation]:
    """Who others leave for has seats claimed that will all be free for it then."""
    found = []
    for decision, board in case.moments:
        if isinstance(decision, MakeRoom):
            gang = case.before.gangs[decision.gang]
            keeps = {v.gang: case.before.seats(v.keep) for v in decision.victims}
            floor = Floor(board, when_left=True, without=keeps)
            seats = case.before.seats(decision.seats)
            taken: dict[int, int] = {}
            tasks: dict[int, int] = {}
            for n, gpus, _ in seats:
                is_there = not gpus & ~floor.free[n] and not gpus & taken.get(n, 0) and case.before.machines[n].is_open
                taken[n] = taken.get(n, 0) | gpus
                tasks[n] = tasks.get(n, 0) + 1
                if not is_there:
                    words = f"{told(gang)} claims GPUs of {case.before.machines[n].name} that will not be free for it"
                    found.append(Violation("preemption_useful", words))
            for n, count in tasks.items():
                for name, each in gang.ask.amounts.items():
                    if floor.left[n].get(name, -1) < each * count:
                        words = f"{told(gang)} claims more {name} of {case.before.machines[n].name} than will be left"
                        found.append(Violation("preemption_useful", words))
    return found


def preemption_cheapest(case: Case) -> list[Violation]:
    """Least disruptive first, and of what is as disruptive the cheapest legal set: no other costs less."""
    found = []
    for decision, board, gang in _asked(case):
        candidates = [
            each
            for each in may_ask(board, gang)
            if each.right is Cause.RECLAIM or is_surely_late(board, gang, each.gang)
        ]
        causes = {victim.cause for victim in decision.victims}
        if len(candidates) > CANDIDATES_MAX or Cause.TIME_SHARE in causes:
            continue
        if any(each.gang.ask.is_elastic for each in candidates):
            continue  # shrinking is judged by itself
        if any(case.is_relied_on(case.before.gangs[victim.gang]) for victim in decision.victims):
            continue
        stage = max(STAGES.index(cause) for cause in causes)
        price = sum(case.before.gangs[victim.gang].price for victim in decision.victims)
        cheaper = _cheaper(case, board, gang, candidates, stage, price)
        if cheaper is not None:
            names = ", ".join(told(leaver.gang) for leaver in cheaper)
            cost = sum(leaver.gang.price for leaver in cheaper)
            victims = ", ".join(victim.gang.removesuffix("/main") for victim in decision.victims)
            words = f"for {told(gang)} leave {victims} at {price} GPU-ms, though these would do for {cost}: {names}"
            found.append(Violation("preemption_cheapest", words))
    return found


def _cheaper(
    case: Case, board: Board, gang: Gang, candidates: list[Leaver], stage: int, price: int
) -> tuple[Leaver, ...] | None:
    """A legal set that is less disruptive, or as disruptive and cheaper."""
    barred = case.barred(gang, later_ms=_grace_ms(board, [each.gang.id for each in candidates]))
    for size in range(1, len(candidates) + 1):
        for each in combinations(candidates, size):
            most = max(STAGES.index(leaver.right) for leaver in each)
            cost = sum(leaver.gang.price for leaver in each)
            is_better = most < stage or (most == stage and cost < price)
            if is_better and is_legal(board, gang, each) and makes_room(board, gang, each, case.book, barred):
                return each
    return None


def priority_served(case: Case) -> list[Violation]:
    """A more important gang is not left waiting while lower priorities that may be asked hold enough for it."""
    found = []
    lowest = min((gang.priority for gang in case.after.staying()), default=None)
    for gang in case.waiting:
        if lowest is None or gang.priority <= lowest or gang.ask.slice_mib or case.is_choosy(gang):
            continue
        already = {each.gang.id for each in may_ask(case.start, gang)}  # else the next plan asks
        candidates = [
            each
            for each in may_ask(case.after, gang)
            if each.gang.id in already
            if each.right is Cause.RECLAIM or is_surely_late(case.after, gang, each.gang)
        ]
        barred = case.barred(gang, later_ms=_grace_ms(case.after, [each.gang.id for each in candidates]))
        victims = legal_set(case.after, gang, candidates, case.book, barred) if candidates else None
        if victims and not is_kept_for_another(case, gang):
            names = ", ".join(told(leaver.gang) for leaver in victims)
            words = f"{told(gang)} waits, though it could start if these made room, whom it may ask: {names}"
            found.append(Violation("priority_served", words))
    return found


def no_turn_in_vain(case: Case) -> list[Violation]:
    """Nobody is placed and asked to leave for another at one instant, in one plan or in two."""
    found = []
    placed = {decision.gang for decision, _ in case.moments if isinstance(decision, Place)}
    for decision, _, gang in _asked(case):
        for victim in decision.victims:
            other = case.before.gangs[victim.gang]
            is_old = gang.since_ms < case.now_ms  # who came since may not have been known of
            if victim.gang in placed or (is_old and other.seats and other.placed_ms == case.now_ms):
                words = f"{told(other)} was placed at this very moment and is told to leave for {told(gang)}"
                found.append(Violation("no_turn_in_vain", words))
    return found
