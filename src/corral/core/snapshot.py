"""The state as a policy sees it: at one moment, to be read, with a draft to try things on.

A snapshot is a view, not a copy; it is good until the next event is applied. The draft is a copy and may be changed at
will: it holds what a plan under construction has already decided.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import itemgetter

from corral.core.cluster.resources import Amounts, Seat
from corral.core.intake.submission import why_never
from corral.core.model import Gang, GangState, Job
from corral.core.state import State, need_ms, seated

#: A gang that never reports a checkpoint is not dearer for its silence: so much unsaved work is the most it counts for.
SILENT_MS = 5 * 60_000
#: So much later than now a gang for which room is made is thought to start: whoever leaves may use its grace.
ROOM_MS = 60_000


class Snapshot:
    def __init__(self, state: State, now_ms: int) -> None:
        self.state = state
        self.now_ms = now_ms

    def job(self, gang: Gang) -> Job:
        return self.state.jobs[gang.job]

    def draft(self) -> Draft:
        return Draft(self)

    def avoid(self, gang: Gang, later_ms: int = 0) -> tuple[str, ...]:
        """The nodes a gang must keep off, because they end too early for it; and those it should, unless the cluster
        has shrunk so far that it could not run elsewhere. ``later_ms``: it starts only then."""
        return self.kept_off(gang) + self.too_short(gang, later_ms) if self.state.ending else self.kept_off(gang)

    def kept_off(self, gang: Gang) -> tuple[str, ...]:
        """The nodes on which it failed before."""
        nodes = gang.profile.avoid
        return () if nodes and why_never(self.state, gang.demand, nodes) is not None else nodes

    def too_short(self, gang: Gang, later_ms: int = 0) -> tuple[str, ...]:
        """The nodes that are taken away before the gang would be done, or have saved anything."""
        if not self.state.ending:
            return ()
        until = self.now_ms + later_ms + need_ms(self.state, gang)
        return tuple([node for node, end in self._ends[: bisect_left(self._ends, until, key=itemgetter(1))]])

    @cached_property
    def _ends(self) -> list[tuple[str, int]]:
        return sorted(self.state.ending.items(), key=itemgetter(1))

    def is_choosy(self, gang: Gang) -> bool:
        """Whether others who want the same may take what this one may not."""
        return bool(gang.profile.avoid or self.too_short(gang))

    def expected_ms(self, gang: Gang) -> int:
        return gang.profile.expected_ms or self.state.settings.default_expected_ms

    def hold_ms(self, gang: Gang) -> int:
        """How long a gang that starts now is thought to keep its seats: at its limit it may use its grace, too."""
        spec, expected = self.job(gang).spec, self.expected_ms(gang)
        return expected + spec.grace_ms if expected == spec.time_limit_ms else expected

    def expected_end_ms(self, gang: Gang) -> int:
        """When a gang that holds seats is thought to give them back.

        One that is past its limit will be gone at once; one that overran a mere estimate is thought to run as long
        again.
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
        """How long the present attempt has run."""
        return self.now_ms - gang.started_ms if gang.started_ms and gang.holds_seats else 0

    def remaining_ms(self, gang: Gang) -> int:
        """What is thought to be left to run: the estimate less what was done and not lost."""
        return max(0, self.expected_ms(gang) - gang.done_ms - self.run_ms(gang))

    def served_gpu_ms(self, gang: Gang) -> int:
        """What a gang has received in all its attempts."""
        held = self.now_ms - gang.placed_ms if gang.holds_seats else 0
        return gang.served_gpu_ms + gang.gpu_milli * held // 1000

    def price_gpu_ms(self, gang: Gang) -> int:
        """What evicting a gang costs: work since its last committed checkpoint, and starting it again."""
        saved, started, unsaved = gang.saved_ms, gang.started_ms, 0
        if started:
            unsaved = self.now_ms - (saved if saved > started else started)
        if not saved:
            unsaved = min(unsaved, SILENT_MS)
        return gang.gpu_milli * (unsaved + self.state.jobs[gang.job].spec.restart_cost_ms) // 1000


class Draft:
    """What the cluster and the queues look like once the decisions made so far are carried out."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.state = snapshot.state
        self.now_ms = snapshot.now_ms
        self.capacity = self.state.capacity.copy()
        self.queues = self.state.queues.copy()
        self.leaving: dict[str, None] = {}  # evicted by this draft
        self.served: dict[str, None] = {}  # placed, or promised seats, by this draft
        self.seated: dict[str, list[tuple[Gang, Seat]]] = {}  # by node: who sat down here in this draft
        self.promised: dict[str, list[tuple[Gang, Seat]]] = {}  # by node: who claims seats here
        self.touched: set[str] = set()  # nodes that are no longer as the state has them
        for gang in self.state.claimants.values():
            for seat in gang.claim:
                self.promised.setdefault(seat.node, []).append((gang, seat))

    def place(self, gang: Gang, seats: Sequence[Seat], charge: Amounts, gpu_ms: int) -> None:
        self._sit(gang, seats)
        self.served[gang.id] = None
        self.queues.charge(gang.queue, gang.user, charge, 1)
        self.queues.commit_budget(gang.queue, gpu_ms)

    def place_on_claim(self, gang: Gang, seats: Sequence[Seat]) -> None:
        """The claim turns into seats; its charge stays."""
        for n, seat in seated(self.capacity.topology, gang.claim):
            self.capacity.unclaim(n, seat.gpus, gang.amounts)
            self.promised[seat.node] = [each for each in self.promised[seat.node] if each[0] is not gang]
        self._sit(gang, seats)
        self.served[gang.id] = None

    def claim(self, gang: Gang, seats: Sequence[Seat], charge: Amounts) -> None:
        for n, seat in seated(self.capacity.topology, seats):
            self.capacity.claim(n, seat.gpus, gang.amounts)
            self.promised.setdefault(seat.node, []).append((gang, seat))
            self.touched.add(seat.node)
        self.served[gang.id] = None
        self.queues.charge(gang.queue, gang.user, charge, 1)

    def drop_claim(self, gang: Gang) -> None:
        for n, seat in seated(self.capacity.topology, gang.claim):
            self.capacity.unclaim(n, seat.gpus, gang.amounts)
            self.promised[seat.node] = [each for each in self.promised[seat.node] if each[0] is not gang]
            self.touched.add(seat.node)
        self.queues.charge(gang.queue, gang.user, gang.charged, -1)
        self.served[gang.id] = None

    def evict(self, gang: Gang) -> None:
        """It is told to leave: its charge ends, its seats do not become free."""
        for n, seat in seated(self.capacity.topology, gang.all_seats):
            self.capacity.pledge(n, gang.amounts, -1)
            self.touched.add(seat.node)
        self.leaving[gang.id] = None
        self.queues.charge(gang.queue, gang.user, gang.charged, -1)

    def move(self, gang: Gang, seats: Sequence[Seat], charge: Amounts) -> None:
        """A broken gang goes on elsewhere."""
        self._rise(gang)
        self._sit(gang, seats)
        self.served[gang.id] = None
        self.queues.charge(gang.queue, gang.user, gang.charged, -1)
        self.queues.charge(gang.queue, gang.user, charge, 1)

    def is_leaving(self, gang: Gang) -> bool:
        return gang.state is GangState.STOPPING or gang.id in self.leaving

    def leaving_masks(self, nodes: Iterable[str]) -> dict[str, int]:
        """By node, the GPUs held by gangs that are on their way out."""
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
            masks[node] = leaving & ~staying  # a GPU that is shared is left when all who share it have left
        return masks

    def _sit(self, gang: Gang, seats: Sequence[Seat]) -> None:
        self.capacity.take_all(seated(self.capacity.topology, seats), gang.amounts)
        for seat in seats:
            self.seated.setdefault(seat.node, []).append((gang, seat))
            self.touched.add(seat.node)

    def _rise(self, gang: Gang) -> None:
        self.capacity.give_back_all(seated(self.capacity.topology, gang.all_seats), gang.amounts)
        self.touched.update(seat.node for seat in gang.all_seats)
