"""One plan to be judged: what was true before, the decisions one by one, and what is true after them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from msgspec import Struct

from corral.core.plan import Decision, MakeRoom, Plan
from tests.judges.facts import Facts, Gang
from tests.judges.gpu_time import Book
from tests.judges.occupancy import EVERYTHING, Board, Floor


class Violation(Struct, frozen=True):
    """A promise that was not kept: which, and in words what was expected."""

    judge: str
    words: str


class Case:
    """A plan, what was true before it, and what it does, decision by decision."""

    def __init__(
        self, before: Facts, plan: Plan, book: Book, patience_ms: int, reserved: frozenset[str] = frozenset()
    ) -> None:
        """``reserved``: gangs with a reservation by the plan before this one."""
        self.before, self.plan, self.book, self.reserved = before, plan, book, reserved
        self.patience_ms = patience_ms
        self.now_ms = before.now_ms
        #: each decision with the board as it was when it was made
        self.moments: list[tuple[Decision, Board]] = []
        self.start = board = Board(before)
        for decision in plan.decisions:
            self.moments.append((decision, board))
            board = board.copy()
            board.do(decision)
        self.after = board

    @cached_property
    def waiting(self) -> list[Gang]:
        """Who is still in line after the plan."""
        return self.after.waiting()

    @cached_property
    def floor(self) -> Floor:
        """What is free after the plan."""
        return Floor(self.after)

    def barred(
        self, gang: Gang, except_for: Callable[[Gang], bool] = lambda _: False, later_ms: int = 0
    ) -> dict[int, int]:
        """By node, the GPUs that promised starts need before a gang that starts now, or so much later, would be gone.
        Where amounts are promised too, or GPUs are shared, the whole node: rather too much than too little."""
        found: dict[int, int] = {}
        until = self.now_ms + later_ms + gang.ask.hold_ms
        for promise in self.plan.reservations:
            if promise.gang == gang.id or promise.at_ms >= until:
                continue
            holder = self.before.gangs.get(promise.gang)
            if holder is not None and except_for(holder):
                continue
            is_counted = holder is None or bool(holder.ask.amounts or holder.ask.slice_mib or gang.ask.slice_mib)
            for seat in promise.seats:
                n = self.before.number[seat.node]
                found[n] = found.get(n, 0) | (EVERYTHING if is_counted else seat.gpus)
        return found

    def is_relied_on(self, gang: Gang) -> bool:
        """Whether other gangs get what a gang gives up: a start is reserved there, or a later decision claims it
        with no more victims. What it leaves over is needed, too: without it, they would have to be elsewhere."""
        reserved = [seat for each in self.plan.reservations for seat in each.seats]
        rooms = [each for each in self.plan.decisions if isinstance(each, MakeRoom) and not each.victims]
        seats = {(self.before.number[seat.node], seat.gpus) for seat in reserved}
        seats |= {(self.before.number[seat.node], seat.gpus) for each in rooms for seat in each.seats}
        return any(n == at and (gpus & mask or not mask or not gpus) for n, gpus in seats for at, mask, _ in gang.seats)

    def is_choosy(self, gang: Gang) -> bool:
        """It would rather wait for seats that lie closer together, or keeps off nodes: it is not judged for waiting."""
        is_hoping = bool(gang.ask.prefer) and self.now_ms < gang.since_ms + gang.ask.prefer_ms
        return is_hoping or bool(gang.ask.avoid)

    def is_overdue(self, gang: Gang) -> bool:
        return self.now_ms - gang.since_ms >= self.patience_ms


Judge = Callable[[Case], list[Violation]]


def told(gang: Gang) -> str:
    """A gang in a few words."""
    ask = gang.ask
    size = f"{ask.slice_mib} MiB" if ask.slice_mib else f"{ask.gpus} GPUs"
    return f"{gang.id.removesuffix('/main')} ({gang.queue}, priority {gang.priority}, {ask.smallest} x {size})"
