"""Snapshots: the state at one time, for a policy to read, with a draft to try decisions.

A snapshot is a view, not a copy; it is valid until the next event is applied. The draft is a copy and may be changed:
it contains what a plan under construction has already decided.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import itemgetter

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import GPU_MILLI, Amounts, Seat, amount_of
from corral.core.intake.never_fits import why_never
from corral.core.model import Gang, GangState, Job
from corral.core.queues.budget import Run
from corral.core.state import State, need_ms, seated
from corral.core.undo import ABSENT, Log, Undoable

#: A gang that never reports a checkpoint gets no higher price for that: at most this much unsaved work is counted.
SILENT_MS = 5 * 60_000
#: A gang that preempts others is expected to start this much later: victims may use their grace periods.
ROOM_MS = 60_000


class Snapshot:
    def __init__(self, state: State, now_ms: int) -> None:
        self.state = state
        self.now_ms = now_ms

    def job(self, gang: Gang) -> Job:
        return self.state.jobs[gang.job]

    def draft(self) -> Draft:
        return Draft(self)

    @cached_property
    def emptied(self) -> Capacity:
        """All nodes that accept tasks, as if they were empty. Read-only."""
        capacity = Capacity(self.state.topology)
        for n, is_open in enumerate(self.state.capacity.open):
            capacity.set_up(n, is_open, self.state.capacity.up[n])
        return capacity

    def avoid(self, gang: Gang, later_ms: int = 0) -> tuple[str, ...]:
        """The nodes a gang must avoid: those that end too early for it, and those on which it failed, unless it could
        not run elsewhere. ``later_ms``: it starts this much later."""
        return self.kept_off(gang) + self.too_short(gang, later_ms) if self.state.ending else self.kept_off(gang)

    def kept_off(self, gang: Gang) -> tuple[str, ...]:
        """The nodes on which it failed before; none if it could not run without them."""
        nodes = gang.profile.avoid
        return () if nodes and why_never(self.state, gang.demand, nodes) is not None else nodes

    def too_short(self, gang: Gang, later_ms: int = 0) -> tuple[str, ...]:
        """The nodes that are withdrawn before the gang would finish or save a checkpoint."""
        if not self.state.ending:
            return ()
        until = self.now_ms + later_ms + need_ms(self.state, gang)
        return tuple([node for node, end in self._ends[: bisect_left(self._ends, until, key=itemgetter(1))]])

    @cached_property
    def _ends(self) -> list[tuple[str, int]]:
        return sorted(self.state.ending.items(), key=itemgetter(1))

    def is_choosy(self, gang: Gang) -> bool:
        """Whether other gangs with the same demand may use nodes that this one may not."""
        return bool(gang.profile.avoid or self.too_short(gang))

    def expected_ms(self, gang: Gang) -> int:
        return gang.profile.expected_ms or self.state.settings.default_expected_ms

    def hold_ms(self, gang: Gang) -> int:
        """How long a gang that starts now is expected to hold its seats: at its limit it may use its grace, too."""
        spec, expected = self.job(gang).spec, self.expected_ms(gang)
        return expected + spec.grace_ms if expected == spec.time_limit_ms else expected

    def expected_end_ms(self, gang: Gang) -> int:
        """When a gang that holds seats is expected to release them.

        A gang past its limit is expected to end now; one past its estimate is expected to run for the same time again.
        """
        if gang.state is GangState.STOPPING and gang.eviction is not None:
            return max(self.now_ms + 1, gang.eviction.deadline_ms)
        begun, hold = gang.started_ms or gang.placed_ms, self.hold_ms(gang)
        if begun + hold <= self.now_ms and self.job(gang).spec.time_limit_ms == self.expected_ms(gang):
            return self.now_ms + 1
        while begun + hold <= self.now_ms:
            hold *= 2
        return begun + hold

    def run_ms(self, gang: Gang) -> int:
        """How long the current attempt has run."""
        return self.now_ms - gang.started_ms if gang.started_ms and gang.holds_seats else 0

    def remaining_ms(self, gang: Gang) -> int:
        """The expected remaining run time: the estimate less what was done and not lost."""
        return max(0, self.expected_ms(gang) - gang.done_ms - self.run_ms(gang))

    def served_gpu_ms(self, gang: Gang) -> int:
        """The GPU time of a gang in all its attempts."""
        held = self.now_ms - gang.placed_ms if gang.holds_seats else 0
        return gang.served_gpu_ms + gang.gpu_milli * held // 1000

    def shares_time(self, priority: int) -> bool:
        """Whether gangs of a priority take turns: at least half of the GPUs they hold are held by gangs that yield to
        others, and enough is known of run times."""
        return priority in self._sharing

    @cached_property
    def _sharing(self) -> frozenset[int]:
        return frozenset([priority for priority, (yielding, held) in self.yielding.items() if 2 * yielding >= held > 0])

    @cached_property
    def yielding(self) -> dict[int, tuple[int, int]]:
        """By priority: the GPUs held by gangs that yield to equals once they have had their turn, and by all, in
        thousandths. Empty until enough is known of run times."""
        found: dict[int, tuple[int, int]] = {}
        for (queue, priority), (saving, held) in self.state.held_milli.items():
            if self.state.predictions.is_ready:
                so_far, in_all = found.get(priority, (0, 0))
                is_shared = self.state.queues.queues[queue].spec.time_share > 0
                found[priority] = so_far + (saving if is_shared else 0), in_all + held
        return found

    def price_gpu_ms(self, gang: Gang) -> int:
        """The price of evicting a gang: work since its last committed checkpoint, and the restart."""
        saved = gang.saved_ms
        started = gang.started_ms
        unsaved = 0
        if started:
            unsaved = self.now_ms - (saved if saved > started else started)
        if not saved:
            unsaved = min(unsaved, SILENT_MS)
        return gang.gpu_milli * (unsaved + self.state.jobs[gang.job].spec.restart_cost_ms) // 1000


#: Seats on one node, and the gangs that they are for.
Seated = tuple[tuple[Gang, Seat], ...]


class Draft(Undoable):
    """The cluster and the queues after the decisions made so far. Everything in it changes and is undone together."""

    def __init__(self, snapshot: Snapshot) -> None:
        log: Log = []
        self._log = log
        self.snapshot = snapshot
        self.state = snapshot.state
        self.now_ms = snapshot.now_ms
        self.capacity = self.state.capacity.copy(log)
        self.queues = self.state.queues.copy(log)
        self.leaving: dict[str, None] = {}  # gangs evicted by this draft
        self.served: dict[str, None] = {}  # gangs that got or claimed seats in this draft
        self.dropped: dict[str, None] = {}  # gangs whose claims this draft has dropped: they may be served again
        self.seated: dict[str, Seated] = {}  # by node: seats taken in this draft
        self.claimed_seats: dict[str, Seated] = {}  # by node: claimed seats
        self.touched: dict[str, None] = {}  # nodes that differ from the state
        for gang in self.state.claimants.values():
            for seat in gang.claim:
                self.claimed_seats[seat.node] = (*self.claimed_seats.get(seat.node, ()), (gang, seat))
        if self.queues.has_budgets:
            for gang in self.state.holders.values():
                self.count_run(gang)
            for gang in self.state.claimants.values():
                self.count_next_run(gang, self.state.charge_for(gang.demand.task, gang.claim))
            self.keep()

    def count_run(self, gang: Gang) -> None:
        """Count the run of a gang that holds seats in budgets: for its expected time, or until it has stopped."""
        end_ms = gang.placed_ms + self.snapshot.expected_ms(gang)
        if self.is_leaving(gang):
            end_ms = self.now_ms if gang.eviction is None else gang.eviction.deadline_ms
        self.queues.set_run(gang.queue, gang.id, Run(gang.placed_ms, max(self.now_ms, end_ms), gang.gpu_milli))

    def count_next_run(self, gang: Gang, charge: Amounts) -> None:
        """The same for a gang that will get seats; an empty charge removes it."""
        milli = amount_of(charge, GPU_MILLI) or 0
        run = Run(self.now_ms, self.now_ms + self.snapshot.expected_ms(gang), milli) if milli else None
        self.queues.set_run(gang.queue, gang.id, run, is_next=True)

    def place(self, gang: Gang, seats: Sequence[Seat], charge: Amounts) -> None:
        self._sit(gang, seats)
        self._charge(gang, charge)

    def place_on_claim(self, gang: Gang, seats: Sequence[Seat]) -> None:
        """The claim turns into seats; its charge stays."""
        self._unclaim(gang)
        self._sit(gang, seats)

    def claim(self, gang: Gang, seats: Sequence[Seat], charge: Amounts) -> None:
        for n, seat in seated(self.capacity.topology, seats):
            self.capacity.claim(n, seat.gpus, gang.amounts)
            self._put(self.claimed_seats, seat.node, (*self.claimed_seats.get(seat.node, ()), (gang, seat)))
            self._touch(seat.node)
        self._put(self.served, gang.id, None)
        self._charge(gang, charge)

    def drop_claim(self, gang: Gang) -> None:
        self._unclaim(gang)
        self.queues.charge(gang.queue, gang.user, gang.charged, -1)
        self.count_next_run(gang, ())
        self._put(self.dropped, gang.id, None)

    def evict(self, gang: Gang) -> None:
        """Evict a gang: its charge ends, but its seats are not free yet."""
        for n, seat in seated(self.capacity.topology, gang.all_seats):
            self.capacity.pledge(n, gang.amounts, -1)
            self._touch(seat.node)
        self._put(self.leaving, gang.id, None)
        self.queues.charge(gang.queue, gang.user, gang.charged, -1)
        if self.queues.has_budgets:
            self.count_run(gang)

    def move(self, gang: Gang, seats: Sequence[Seat], charge: Amounts) -> None:
        """Move a broken gang to these seats."""
        self.capacity.give_back_all(seated(self.capacity.topology, gang.all_seats), gang.amounts)
        for seat in gang.all_seats:
            self._touch(seat.node)
        self._sit(gang, seats)
        self.queues.charge(gang.queue, gang.user, gang.charged, -1)
        self.queues.charge(gang.queue, gang.user, charge, 1)

    def is_leaving(self, gang: Gang) -> bool:
        return gang.state is GangState.STOPPING or gang.id in self.leaving

    def leaving_masks(self, nodes: Iterable[str]) -> dict[str, int]:
        """By node, the GPUs held by gangs that are stopping."""
        masks: dict[str, int] = {}
        for node in nodes:
            leaving = staying = 0
            for name in self.state.tenants.get(node, ()):
                gang = self.state.gangs[name]
                held = 0
                for seat in gang.all_seats:
                    held |= seat.gpus if seat.node == node else 0
                if self.is_leaving(gang):
                    leaving |= held
                else:
                    staying |= held
            for _, seat in self.seated.get(node, ()):
                staying |= seat.gpus
            masks[node] = leaving & ~staying  # a shared GPU is free when all gangs that share it have stopped
        return masks

    def _sit(self, gang: Gang, seats: Sequence[Seat]) -> None:
        self.capacity.take_all(seated(self.capacity.topology, seats), gang.amounts)
        log = self._log
        here, touched = self.seated, self.touched
        assert log is not None
        for seat in seats:  # equivalent to _put for each
            node = seat.node
            others = here.get(node)
            if others is None:
                log.append((here, node, ABSENT))
                here[node] = ((gang, seat),)
            else:
                log.append((here, node, others))
                here[node] = (*others, (gang, seat))
            if node not in touched:
                log.append((touched, node, ABSENT))
                touched[node] = None
        self._put(self.served, gang.id, None)

    def _unclaim(self, gang: Gang) -> None:
        for n, seat in seated(self.capacity.topology, gang.claim):
            self.capacity.unclaim(n, seat.gpus, gang.amounts)
            others = tuple([each for each in self.claimed_seats[seat.node] if each[0] is not gang])
            self._put(self.claimed_seats, seat.node, others)
            self._touch(seat.node)

    def _touch(self, node: str) -> None:
        if node not in self.touched:
            self._put(self.touched, node, None)

    def _charge(self, gang: Gang, charge: Amounts) -> None:
        self.queues.charge(gang.queue, gang.user, charge, 1)
        if self.queues.has_budgets:
            self.count_next_run(gang, charge)
