"""Who is next: a total order over all who wait, walked lazily and kept right while the draft changes.

Looks only at lines that are still open: a demand that does not fit is closed once for everybody, so a cycle costs what
can happen, not what waits. Starts nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from heapq import heapify, heappop, heapreplace

from corral.core.cluster.resources import GPU_MILLI, Demand, SizeClass
from corral.core.model import NEVER_MS, Gang
from corral.core.queues.backlog import Desk, Line
from corral.core.snapshot import Draft
from corral.policy.fairness import Shares
from corral.policy.order import Key, Order

Best = tuple[Key, Line, int]  # key, line, how far the line has moved on
Top = tuple[Desk, int, Best | None]  # desk, rights and, where the order asks for that, the first at it
Family = list[tuple[Key, int, tuple[int, str]]]  # a heap: key, rights, desk

OWNER, BORROWER = 0, 1
HEADS_MAX = 16  # who comes first of all is asked for at once; the others are looked for when it is their turn


def family_of(queue: str) -> str:
    """The outermost queue above a queue, or itself."""
    return queue.partition("/")[0]


def _gpu_milli(demand: Demand) -> int:
    """The least a gang would be charged; more than any headroom for one that wants no whole GPUs."""
    return demand.task.gpus * 1000 * (demand.smallest + demand.spares) or NEVER_MS


class Turn:
    """Whose turn it is: a line, and the gang that is first in it."""

    __slots__ = ("desk", "gang", "line")

    def __init__(self, desk: Desk, line: Line, gang: Gang) -> None:
        self.desk, self.line, self.gang = desk, line, gang


class _Users:
    """Who waits at a desk: a heap of the users, each with the first of his lines once he came to the top, and for each
    user who did a heap of his lines. Keys only grow, so a stale one is found on top."""

    __slots__ = ("heap", "heaps", "lines")

    def __init__(self) -> None:
        self.heap: list[tuple[Key, str, Best | None]] = []
        self.lines: dict[str, list[Line]] = {}
        self.heaps: dict[str, list[tuple[Key, int, Line]]] = {}


class Walk:
    """One pass over the backlog in order. Whoever walks says after each turn who need not have another one.

    Desks that may have others make room are treated one by one. All other desks are alike: what does not fit for one of
    them fits for none, so it is closed for all at once; ``full`` is closed from the beginning.
    """

    def __init__(
        self,
        draft: Draft,
        order: Order,
        first: Iterable[Gang] = (),
        may_insist: Callable[[str, int], bool] = lambda _queue, _priority: False,
        full: Set[Demand] = frozenset(),
    ) -> None:
        self._draft, self._order = draft, order
        self._shares = Shares(draft)
        self._backlog = draft.state.backlog
        self._default_ms = draft.state.settings.default_expected_ms
        self._first = list(first)[::-1]  # gangs that go before everyone else
        self._heads = order.heads(self._backlog, HEADS_MAX)[::-1]  # then these, unless they have been dealt with
        self._may_insist = may_insist
        self._is_narrowed = False
        self._rooms: dict[str, int] = {}  # queue -> what it may still have within its guarantee
        self._borrowing_above: dict[str, tuple[bool, ...]] = {}  # parent -> along its path, what has all of its own
        self._passed: dict[Line, int] = {}
        self._skipped: set[str] = set()
        self._closed_lines: set[Line] = set()
        #: demands of which nobody has another turn, at desks that may not insist; all others are open
        self._closed: set[Demand] = set(self._backlog.demands.keys() & full) if full else set()
        self._limits: dict[Demand, int] = {}  # demand -> the same, for runs of so long or longer
        #: demands that have nobody to ask and no room, class by class: (the desk, or none for all that may not insist)
        self._closed_classes: set[tuple[int, str, SizeClass] | SizeClass] = set()
        #: the same at every desk, whether it may insist or not, for those who avoid no nodes
        self._hopeless: dict[Demand, int] = {}
        #: the same for single desks: (desk, demand) -> shorter than this
        self._open_at: dict[tuple[int, str, Demand], int] = {}
        self._users: dict[tuple[int, int, str], _Users] = {}
        #: outermost queue -> a heap of the desks below it, each under a key that is no greater than its own: that is
        #: worked out when it comes up. What one of them is charged counts for all of them alike, so their order among
        #: themselves stays: only the one on top has to be looked at again
        self._families: dict[str, Family] = {}
        #: outermost queue -> its first desk, for as long as that is certain: until one of the family is charged or,
        #: where the order looks inside, until anything at all has happened
        self._tops: dict[str, Top] = {}
        self._looks_inside, self._owners_first = order.looks_inside, order.owners_first
        self._heap: list[tuple[Key, str]] | None = None  # of the families, once it is needed

    def next(self) -> Turn | None:
        """The first gang in order that may still have a turn."""
        while self._first:
            gang = self._first.pop()
            if gang.id not in self._draft.served and gang.id not in self._skipped:
                if self._looks_inside:
                    self._tops.clear()
                return self._turn_of(gang)
        while self._heads:
            gang = self._heads.pop()
            if gang.id not in self._draft.served and gang.id not in self._skipped:
                turn = self._turn_of(gang)
                if self._is_open(turn.desk, BORROWER, turn.line):
                    return turn
        if self._is_closed and not self._is_narrowed:
            self._narrow()
        heap = self._heap
        if heap is None:
            heap = self._heap = self._lined_up()
        while heap:
            key, name = heap[0]
            top = self._tops.get(name)
            if top is None:
                top = self._first_in(self._families[name])
                if top is None:
                    heappop(heap)
                    continue
                self._tops[name] = top
                fresh = self._key(*top)
                if fresh > key:
                    heapreplace(heap, (fresh, name))
                    continue
            desk, rights, best = top
            best = best or self._best(desk, rights)
            if best is None:
                heappop(self._families[name])
                del self._tops[name]
                continue
            if self._looks_inside:
                self._tops.clear()
            _, line, place = best
            return Turn(desk, line, self._draft.state.gangs[line.gang(place)])
        return None

    def _lined_up(self) -> list[tuple[Key, str]]:
        """All desks, by family, and a heap of the families. They stand under what their keys begin with, as far as that
        is known without looking at shares or at who is first; what desks of one queue share is worked out once."""
        is_closed, seen = self._is_closed, dict[str, tuple[Family, Key, Key | None]]()
        for at, desk in self._backlog.desks.items():
            if is_closed and not self._may_insist(desk.queue, desk.priority):
                continue
            if (queue := desk.queue) not in seen:
                owns = self._owners_first and self._headroom(queue) > 0
                family = self._families.setdefault(family_of(queue), [])
                seen[queue] = (family, self._standing(queue, BORROWER), self._standing(queue, OWNER) if owns else None)
            family, borrower, owner = seen[queue]
            least = self._order.desk_at_least(desk)
            family.append(((*borrower, *least), BORROWER, at))
            if owner is not None:
                family.append(((*owner, *least), OWNER, at))
        for family in self._families.values():
            heapify(family)
        heap = [(family[0][0], name) for name, family in self._families.items()]
        heapify(heap)
        return heap

    def _turn_of(self, gang: Gang) -> Turn:
        return Turn(self._backlog.desks[gang.priority, gang.queue], self._backlog.line(gang), gang)

    def _first_in(self, family: Family) -> Top | None:
        """The first desk of a family, with the first at it where the order asks for that."""
        while family:
            key, rights, at = family[0]
            desk, best = self._backlog.desks[at], None
            if self._looks_inside:
                best = self._best(desk, rights)
                if best is None:
                    heappop(family)
                    continue
            fresh = self._key(desk, rights, best, 1)
            if not fresh > key:
                return desk, rights, best
            heapreplace(family, (fresh, rights, at))
        return None

    def _narrow(self) -> None:
        """Nothing fits any more for those who may not insist: go on with the others alone."""
        self._tops.clear()
        for name, family in self._families.items():
            self._families[name] = [each for each in family if self._may_insist(each[2][1], each[2][0])]
            heapify(self._families[name])
        self._is_narrowed = True

    def skip(self, turn: Turn) -> None:
        """It has had its turn; who stands behind it may have one."""
        self._skipped.add(turn.gang.id)

    def close(self, turn: Turn, from_ms: int = 0) -> None:
        """It does not fit for a run of so long or longer: not here, and not at any other desk that may not insist."""
        self.close_at_desk(turn, from_ms)
        if not self._may_insist(turn.desk.queue, turn.desk.priority):
            self.close_demand(turn.gang.demand, from_ms)

    @property
    def _is_closed(self) -> bool:
        """Whether nobody has another turn at desks that may not insist."""
        return len(self._closed) == len(self._backlog.demands)

    def close_demand(self, demand: Demand, from_ms: int = 0) -> None:
        """It does not fit for a run of so long or longer, at any desk that may not insist."""
        if all((expected or self._default_ms) >= from_ms for expected in self._backlog.demands[demand]):
            self._closed.add(demand)
        else:
            self._limits[demand] = min(self._limits.get(demand, NEVER_MS), from_ms)

    def close_demands(self, demands: Set[Demand]) -> None:
        """Equivalent to closing one after the other."""
        self._closed |= demands

    def close_class(self, turn: Turn) -> None:
        """There is no room for anything of this class, and nobody to ask at this desk. Equivalent to giving a turn to
        each of its demands, as long as nobody is told to leave: ``reopen`` when that happens."""
        kind = self._backlog.class_of[turn.gang.demand]
        self._closed_classes.add((turn.desk.priority, turn.desk.queue, kind))
        if not self._may_insist(turn.desk.queue, turn.desk.priority):
            self._closed_classes.add(kind)

    def reopen(self) -> None:
        """Somebody was told to leave, and what will be free then may be claimed: classes have their turns after all."""
        if self._closed_classes:
            self._closed_classes.clear()
            self._users.clear()
            self._families.clear()
            self._tops.clear()
            self._heap, self._is_narrowed = None, False

    def close_everywhere(self, demand: Demand, from_ms: int = 0) -> None:
        """Nobody who wants this on any nodes, for so long or longer, has another turn: it would be in vain.

        Unless somebody wants it for just a moment less: it is for ``close`` to say when that one has had its chance.
        """
        if all((expected or self._default_ms) != from_ms - 1 for expected in self._backlog.demands[demand]):
            self._hopeless[demand] = min(self._hopeless.get(demand, NEVER_MS), from_ms)

    def close_at_desk(self, turn: Turn, from_ms: int = 0) -> None:
        """Nobody at this desk who wants this, for so long or longer, has another turn."""
        key = (turn.desk.priority, turn.desk.queue, turn.gang.demand)
        self._open_at[key] = min(self._open_at.get(key, NEVER_MS), from_ms)

    def close_line(self, turn: Turn) -> None:
        self._closed_lines.add(turn.line)

    def served(self, turn: Turn) -> None:
        """The draft has seats for it; its queue and user have had more now."""
        queue = turn.gang.queue
        self._tops.pop(family_of(queue), None)
        self._shares.charged(queue, turn.gang.user)
        for name in self._draft.queues.path(queue):
            self._rooms.pop(name, None)
        self._borrowing_above.clear()

    def leaves(self, gang: Gang) -> None:
        """A gang is about to be told to leave. What it gives back counts in the next plan, as if all knew."""
        self._shares.remember(gang.queue)

    def _key(self, desk: Desk, rights: int, best: Best | None = None, below: int = 0) -> Key:
        """The key of a desk among all, or, ``below`` its outermost queue, among its family."""
        rank = self._order.desk(self._shares, desk, best[0] if best is not None else (), below)
        return (*self._standing(desk.queue, rights), *rank, desk.queue)

    def _standing(self, queue: str, rights: int) -> Key:
        """Level by level: whoever is within its guarantee could take it back from a relative who is not."""
        if not self._owners_first:
            return ()
        path = self._draft.queues.path(queue)
        above = self._borrowing_above.get(path[-2])
        if above is None:
            above = self._borrowing_above[path[-2]] = tuple([self._headroom(name) <= 0 for name in path[1:-1]])
        return ((*above, rights),)

    def _best(self, desk: Desk, rights: int) -> Best | None:
        """The first at a desk: of the users by order, the first of that user's lines."""
        if self._is_closed and not self._may_insist(desk.queue, desk.priority):
            return None
        users = self._users.get((rights, desk.priority, desk.queue))
        if users is None:
            users = self._users[rights, desk.priority, desk.queue] = self._users_at(desk, rights)
        heap = users.heap
        while heap:
            key, user, found = heap[0]
            if found is None or self._place(found[1]) != found[2] or not self._is_open(desk, rights, found[1]):
                found = self._first_of(desk, rights, users, user)
                if found is None:
                    heappop(heap)
                    continue
            fresh = (*self._order.user(self._shares, desk.queue, user), *found[0])
            if fresh == key:
                return (key, found[1], found[2])
            heapreplace(heap, (fresh, user, found))
        return None

    def _users_at(self, desk: Desk, rights: int) -> _Users:
        users = _Users()
        by_user = users.lines
        for lines in self._open_lines(desk, rights):
            for user, line in lines.items():
                mine = by_user.get(user)
                if mine is None:
                    by_user[user] = [line]
                else:
                    mine.append(line)
        users.heap = [(self._order.user(self._shares, desk.queue, user), user, None) for user in by_user]
        heapify(users.heap)
        return users

    def _first_of(self, desk: Desk, rights: int, users: _Users, user: str) -> Best | None:
        """The first of a user's lines at a desk."""
        order, heap = self._order, users.heaps.get(user)
        if heap is None:
            lines = users.lines[user]
            heap = [(order.line(line, line.rank(0)), at, line) for at, line in enumerate(lines)]
            heapify(heap)
            users.heaps[user] = heap
        while heap:
            key, at, line = heap[0]
            place = self._place(line)
            if place >= len(line) or not self._is_open(desk, rights, line):
                heappop(heap)
                continue
            fresh = order.line(line, line.rank(place)) if place else key
            if fresh == key:
                return key, line, place
            heapreplace(heap, (fresh, at, line))
        return None

    def _open_lines(self, desk: Desk, rights: int) -> list[Mapping[str, Line]]:
        """The lines at a desk that may still have a turn, by profile: user -> line."""
        headroom = self._headroom(desk.queue) if rights == OWNER else NEVER_MS
        here, limits, default = desk.by_demand, self._limits, self._default_ms
        # while everything is open, nobody has to insist
        insists = bool(self._closed or limits) and self._may_insist(desk.queue, desk.priority)
        found: list[Mapping[str, Line]] = []
        for demand in here if insists or not self._closed else here.keys() - self._closed:
            if (rights == OWNER and _gpu_milli(demand) > headroom) or self._is_class_closed(desk, demand, insists):
                continue
            profiles = here[demand]
            shortest = NEVER_MS if insists else limits.get(demand, NEVER_MS)
            if self._open_at:
                shortest = min(shortest, self._open_at.get((desk.priority, desk.queue, demand), NEVER_MS))
            if shortest > 0:
                hopeless = self._hopeless.get(demand, NEVER_MS)
                for profile, lines in profiles.items():
                    expected = profile.expected_ms or default
                    if expected < shortest and (expected < hopeless or profile.avoid):
                        found.append(lines)
        return found

    def _is_open(self, desk: Desk, rights: int, line: Line) -> bool:
        profile = line.profile
        demand, expected = profile.demand, profile.expected_ms or self._default_ms
        if self._hopeless and expected >= self._hopeless.get(demand, NEVER_MS) and not profile.avoid:
            return False
        is_closed = demand in self._closed or (self._limits and expected >= self._limits.get(demand, NEVER_MS))
        insists = bool(is_closed or self._closed_classes) and self._may_insist(desk.queue, desk.priority)
        if (is_closed and not insists) or self._is_class_closed(desk, demand, insists):
            return False
        if rights == OWNER and _gpu_milli(demand) > self._headroom(desk.queue):
            return False
        if self._open_at and expected >= self._open_at.get((desk.priority, desk.queue, demand), NEVER_MS):
            return False
        return line not in self._closed_lines

    def _is_class_closed(self, desk: Desk, demand: Demand, insists: bool) -> bool:
        closed = self._closed_classes
        if not closed:
            return False
        kind = self._backlog.class_of[demand]
        return (desk.priority, desk.queue, kind) in closed or (not insists and kind in closed)

    def _headroom(self, queue: str) -> int:
        """How much more a queue may have within its own guarantee; 0 if it has none."""
        known = self._rooms.get(queue)
        if known is None:
            tree = self._draft.queues
            guarantee = tree.guarantee(queue, GPU_MILLI, self._draft.now_ms) or 0
            known = self._rooms[queue] = max(0, guarantee - tree.queues[queue].used.get(GPU_MILLI, 0))
        return known

    def _place(self, line: Line) -> int:
        """How far the line has moved on in this draft."""
        before = self._passed.get(line, 0)
        place = line.next_place(before, self._draft.served, self._skipped)
        if place > before:
            self._passed[line] = place
        return place
