"""The tree of queues: who may take how much, who has how much, and who has borrowed.

A few short functions on a tree. ``used`` is what gangs are charged: from their claim or placement until they have
stopped or, where they make room for others, are told to leave. What a queue does not state (no guarantee, no limit)
is not governed; it is not zero. Knows nothing of nodes or placement.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from corral.core.cluster.resources import GPU_MILLI, SHARE_DIMENSIONS, amount_of
from corral.core.model import NEVER_MS, QueueSpec
from corral.core.queues.usage import Usage

ROOT = ""
_NOTHING: Mapping[str, int] = {}


class Shortfall(Struct, frozen=True, gc=False):
    """One bound that would be broken: ``kind`` says which, the numbers how."""

    kind: str  # limit, user_limit, not_lent, budget
    queue: str
    name: str
    used: int
    bound: int
    asked: int


class Queue(Struct, gc=False):
    """A queue as the state knows it."""

    spec: QueueSpec
    parent: str | None
    children: list[str] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=dict)
    user_used: dict[str, dict[str, int]] = field(default_factory=dict)  # user -> dimension -> amount
    jobs: int = 0
    user_jobs: dict[str, int] = field(default_factory=dict)
    usage: Usage = field(default_factory=lambda: Usage.none(len(SHARE_DIMENSIONS)))  # of what is shared
    user_usage: dict[str, Usage] = field(default_factory=dict)
    window: int = 0
    spent_gpu_ms: int = 0  # within the budget window
    committed_gpu_ms: int = 0  # what the running are expected to need
    loss_caused_gpu_ms: int = 0
    loss_suffered_gpu_ms: int = 0
    used_gpu_ms: int = 0  # for ever
    elements: int = 0  # unfinished ones, here and in queues below
    user_elements: dict[str, int] = field(default_factory=dict)

    def twin(self) -> Queue:
        """The same queue, to be charged apart. Everything but what is charged is shared."""
        return Queue(
            self.spec, self.parent, self.children, self.used.copy(), self.user_used.copy(), self.jobs, self.user_jobs,
            self.usage, self.user_usage, self.window, self.spent_gpu_ms, self.committed_gpu_ms,
            self.loss_caused_gpu_ms, self.loss_suffered_gpu_ms, self.used_gpu_ms, self.elements, self.user_elements,
        )  # fmt: skip


class _Terms(Struct, frozen=True):
    """Of all queues together."""

    kept_back: frozenset[str]  # dimensions of which some queue does not lend everything
    has_budgets: bool
    bounds_models: bool


class QueueTree:
    """All queues. The root, named by the empty string, is the cluster itself and always exists."""

    def __init__(self, half_life_ms: int, entry_charge_ms: int) -> None:
        self.half_life_ms = half_life_ms
        self.entry_charge_ms = entry_charge_ms
        self.queues: dict[str, Queue] = {ROOT: Queue(QueueSpec(name=ROOT), None)}
        self.total: dict[str, int] = {}  # what the cluster has, nodes that are lost left out
        self._paths: dict[str, tuple[str, ...]] = {ROOT: (ROOT,)}
        self._known_terms: _Terms | None = None  # None: to be looked for anew
        self._bounded: dict[str, bool] = {}
        self._next_change_ms = 0  # nothing changes by itself before; 0: not known
        self._own: set[str] | None = None  # of a copy: the queues that are no longer shared with the original
        self.charges: list[str] = []  # of a copy: the queues that were charged, in order
        self._own_users: set[tuple[str, str]] = set()  # of a copy: (queue, user) of whom the same is true
        #: guarantees and limits that were worked out. Where terms change by themselves, a copy has its own, for time
        #: stands still in it, and the original none
        self._promised: dict[tuple[str, str], int | None] | None = None
        self._bounds: dict[tuple[str, str], list[tuple[str, int]]] | None = None

    # ---- shape of the tree -------------------------------------------------------------------------------------

    def put(self, spec: QueueSpec) -> None:
        if spec.name in self.queues:
            self._to_change(spec.name).spec = spec
        else:
            self.queues[spec.name] = Queue(spec, spec.parent)
            insort(self.queues[spec.parent].children, spec.name)
            self._paths[spec.name] = (*self._paths[spec.parent], spec.name)
        self._bounded, self._next_change_ms = {}, 0
        self._terms_changed()

    def _terms_changed(self) -> None:
        """What was worked out of the terms of queues is worked out anew, when it is asked for."""
        self._known_terms = self._promised = self._bounds = None
        if self._own is not None:
            self._promised, self._bounds = {}, {}

    def drop(self, name: str) -> None:
        queue = self.queues.pop(name)
        del self._paths[name]
        self.queues[queue.parent or ROOT].children.remove(name)
        self._terms_changed()

    def count_elements(self, name: str, user: str, change: int) -> None:
        """More or fewer unfinished elements of a user, in a queue and all above it."""
        for each in self._paths[name] if change else ():
            queue = self.queues[each]
            queue.elements += change
            mine = queue.user_elements.get(user, 0) + change
            if mine:
                queue.user_elements[user] = mine
            else:
                del queue.user_elements[user]

    def path(self, name: str) -> tuple[str, ...]:
        """From the root down to the queue."""
        return self._paths[name]

    def below(self, name: str, other: str) -> tuple[str, ...]:
        """The part of a queue's path that it does not share with another queue, outermost first."""
        mine, theirs = self._paths[name], self._paths[other]
        shared = 0
        while shared < len(mine) and shared < len(theirs) and mine[shared] == theirs[shared]:
            shared += 1
        return mine[shared:]

    # ---- terms -------------------------------------------------------------------------------------------------

    @property
    def _terms(self) -> _Terms:
        """What is true of the terms of all queues together. Looked for once after any number of changes."""
        if self._known_terms is None:
            specs = [queue.spec for queue in self.queues.values()]
            names = [name for each in specs for name, _ in (*each.limit, *each.user_limit, *each.lend)]
            self._known_terms = _Terms(
                frozenset(name for each in specs for name, _ in each.lend),
                any(each.budget is not None for each in specs),
                any(":" in name for name in names),
            )
            if self._own is None and not any(each.changes for each in specs):
                self._promised, self._bounds = {}, {}
        return self._known_terms

    @property
    def bounds_models(self) -> bool:
        """Whether some queue is bounded in a dimension that depends on the GPU model."""
        return self._terms.bounds_models

    def guarantee(self, name: str, dimension: str, now_ms: int) -> int | None:
        """What is always obtainable. A queue that states nothing has what its children are promised together."""
        if self._promised is not None and (name, dimension) in self._promised:
            return self._promised[name, dimension]
        promised = self._guarantee(name, dimension, now_ms)
        if self._promised is not None:
            self._promised[name, dimension] = promised
        return promised

    def _guarantee(self, name: str, dimension: str, now_ms: int) -> int | None:
        queue = self.queues[name]
        stated = amount_of(queue.spec.guarantee, dimension)
        if stated is None and queue.children:
            promised = [self.guarantee(child, dimension, now_ms) for child in queue.children]
            known = [each for each in promised if each is not None]
            stated = sum(known) if known else None
        return _changed(stated, queue.spec, dimension, now_ms, is_limit=False)

    def limit(self, name: str, dimension: str, now_ms: int) -> int | None:
        spec = self.queues[name].spec
        return _changed(amount_of(spec.limit, dimension), spec, dimension, now_ms, is_limit=True)

    def _limits(self, name: str, dimension: str, now_ms: int) -> list[tuple[str, int]]:
        """The limits along a queue's path, where there are any."""
        if self._bounds is not None and (name, dimension) in self._bounds:
            return self._bounds[name, dimension]
        stated = [(each, self.limit(each, dimension, now_ms)) for each in self._paths[name]]
        found = [(each, limit) for each, limit in stated if limit is not None]
        if self._bounds is not None:
            self._bounds[name, dimension] = found
        return found

    def kept(self, name: str, dimension: str, now_ms: int) -> int:
        """The part of the guarantee that is not lent to anyone, even when idle."""
        lend = amount_of(self.queues[name].spec.lend, dimension)
        if lend is None:
            return 0
        return max(0, (self.guarantee(name, dimension, now_ms) or 0) - lend)

    def next_change_ms(self, now_ms: int) -> int:
        """When the terms of some queue change next by themselves."""
        if now_ms < self._next_change_ms:
            return self._next_change_ms
        times = [NEVER_MS]
        for queue in self.queues.values():
            times += [t for change in queue.spec.changes for t in (change.from_ms, change.until_ms) if t > now_ms]
            budget = queue.spec.budget
            if budget is not None:
                times.append(
                    budget.anchor_ms + ((now_ms - budget.anchor_ms) // budget.window_ms + 1) * budget.window_ms
                )
        self._next_change_ms = min(times)
        return self._next_change_ms

    # ---- may it take more --------------------------------------------------------------------------------------

    def room(self, name: str, dimension: str, now_ms: int) -> int | None:
        """How much more a subtree may take: its limits, less what its relatives keep for themselves. None: no bound."""
        queue = self.queues[name]
        used = queue.used.get(dimension, 0)
        if queue.parent is None:
            total = self.total.get(dimension)
            return None if total is None else total - used
        bound = self.room(queue.parent, dimension, now_ms)
        if bound is not None:
            for sibling in self.queues[queue.parent].children:
                if sibling != name and self.queues[sibling].spec.lend:
                    bound -= max(0, self.kept(sibling, dimension, now_ms) - self.queues[sibling].used.get(dimension, 0))
        limit = self.limit(name, dimension, now_ms)
        if limit is None:
            return bound
        return limit - used if bound is None else min(bound, limit - used)

    def shortfalls(
        self, name: str, user: str, charge: Mapping[str, int], gpu_ms: int, now_ms: int
    ) -> Iterator[Shortfall]:
        """Every bound that this charge would break; nothing if the queue may take it."""
        if not self.is_bounded(name):
            return
        queue = self.queues[name]
        for dimension, asked in charge.items():
            bound = amount_of(queue.spec.user_limit, dimension)
            mine = 0 if bound is None else queue.user_used.get(user, _NOTHING).get(dimension, 0)
            if bound is not None and mine + asked > bound:
                yield Shortfall("user_limit", name, dimension, mine, bound, asked)
            for each, limit in self._limits(name, dimension, now_ms):
                used = self.queues[each].used.get(dimension, 0)
                if used + asked > limit:
                    yield Shortfall("limit", each, dimension, used, limit, asked)
            if dimension in self._terms.kept_back:
                room = self.room(name, dimension, now_ms)
                used = queue.used.get(dimension, 0)
                own = self.limit(name, dimension, now_ms)
                if room is not None and asked > room and (own is None or used + asked <= own):
                    yield Shortfall("not_lent", name, dimension, used, used + room, asked)
        for each in self._paths[name]:
            budget = self.queues[each].spec.budget
            if budget is not None:
                spent = self.spent_gpu_ms(each, now_ms) + self.queues[each].committed_gpu_ms
                if spent + gpu_ms > budget.gpu_ms:
                    yield Shortfall("budget", each, "gpu_ms", spent, budget.gpu_ms, gpu_ms)

    def is_bounded(self, name: str) -> bool:
        """Whether there is any bound on what a queue may take."""
        known = self._bounded.get(name)
        if known is None:
            specs = [self.queues[each].spec for each in self._paths[name]]
            is_stated = specs[-1].user_limit or any(spec.limit or spec.budget for spec in specs)
            known = bool(self._terms.kept_back or is_stated)
            self._bounded[name] = known
        return known

    # ---- borrowing ---------------------------------------------------------------------------------------------

    def is_entitled(self, name: str, against: str, charge: Mapping[str, int], now_ms: int) -> bool:
        """Whether a queue stays within its guarantee with this charge, at every level where it differs from another."""
        below = self.below(name, against)  # nothing, for a queue above the other: it has no guarantee of its own there
        return bool(below) and all(self.is_within(each, charge, now_ms) for each in below)

    def is_borrowing(self, name: str, against: str, dimensions: Iterable[str], now_ms: int) -> bool:
        """Whether a queue has more than its guarantee, at every level where it differs from another."""
        return all(
            any(self.queues[each].used.get(d, 0) > (self.guarantee(each, d, now_ms) or 0) for d in dimensions)
            for each in self.below(name, against)
        )

    def is_within(self, name: str, charge: Mapping[str, int], now_ms: int) -> bool:
        """Whether one queue, taken by itself, stays within its guarantee with this charge."""
        for dimension in contested(charge):
            guarantee = self.guarantee(name, dimension, now_ms)
            if guarantee is None or self.queues[name].used.get(dimension, 0) + charge[dimension] > guarantee:
                return False
        return True

    # ---- what if -----------------------------------------------------------------------------------------------

    def copy(self) -> QueueTree:
        """A tree that can be charged without anyone noticing. Usage is shared: a draft does not let time pass."""
        assert self._terms is not None  # looked for here, and not in every copy
        twin = object.__new__(QueueTree)
        twin.__dict__.update(self.__dict__)
        twin.queues = self.queues.copy()
        twin._own, twin._own_users, twin.charges = set(), set(), []
        if self._promised is None:
            twin._promised, twin._bounds = {}, {}
        return twin

    def _to_change(self, name: str) -> Queue:
        """The queue, for a change. A copy takes its own only now: most queues of a draft are never charged."""
        queue = self.queues[name]
        if self._own is not None and name not in self._own:
            self._own.add(name)
            queue = self.queues[name] = queue.twin()
        return queue

    # ---- bookkeeping -------------------------------------------------------------------------------------------

    def charge(self, name: str, user: str, amounts: Sequence[tuple[str, int]], sign: int) -> None:
        if self._own is not None:
            self.charges.append(name)
        if not amounts:
            return
        if sign < 0:
            amounts = [(dimension, -amount) for dimension, amount in amounts]
        own, queues = self._own, self.queues
        for each in self._paths[name]:
            used = (queues[each] if own is None or each in own else self._to_change(each)).used
            for dimension, amount in amounts:
                used[dimension] = used.get(dimension, 0) + amount
        used = self._user_to_change(name, user)
        for dimension, amount in amounts:
            used[dimension] = used.get(dimension, 0) + amount

    def _user_to_change(self, name: str, user: str) -> dict[str, int]:
        """What a user is charged in a queue that is there to be changed. A copy takes its own only now."""
        users = self.queues[name].user_used
        used = users.get(user)
        if used is None or (self._own is not None and (name, user) not in self._own_users):
            used = users[user] = {} if used is None else used.copy()
            self._own_users.add((name, user))
        return used

    def meter(self, name: str, user: str, amounts: Iterable[tuple[str, int]], sign: int, now_ms: int) -> None:
        """Begin (+1) or end (-1) measuring usage at this rate."""
        rates = dict(amounts)
        deltas = [sign * rates.get(dimension, 0) for dimension in SHARE_DIMENSIONS]
        if not any(deltas):
            return
        for each in self._paths[name][1:]:  # the root shares with nobody
            self.queues[each].usage.change(deltas, now_ms, self.half_life_ms)
        users = self.queues[name].user_usage
        mine = users.get(user)
        if mine is None:
            mine = users[user] = Usage.none(len(SHARE_DIMENSIONS))
        mine.change(deltas, now_ms, self.half_life_ms)

    def commit_budget(self, name: str, gpu_ms: int) -> None:
        if self._own is not None and not self._terms.has_budgets:
            return  # nobody will look
        for each in self._paths[name]:
            self._to_change(each).committed_gpu_ms += gpu_ms

    def spend(self, name: str, gpu_ms: int, now_ms: int) -> None:
        for each in self._paths[name]:
            queue = self.queues[each]
            queue.used_gpu_ms += gpu_ms
            if queue.spec.budget is not None:
                queue.spent_gpu_ms = self.spent_gpu_ms(each, now_ms) + gpu_ms
                queue.window = _window(queue.spec, now_ms)

    def spent_gpu_ms(self, name: str, now_ms: int) -> int:
        queue = self.queues[name]
        return queue.spent_gpu_ms if queue.window == _window(queue.spec, now_ms) else 0


def contested(charge: Mapping[str, int]) -> tuple[str, ...]:
    """The dimensions over which a guarantee is argued: GPUs for whoever wants GPUs, whatever else is borrowed."""
    return (GPU_MILLI,) if charge.get(GPU_MILLI) else tuple(d for d in charge if d in SHARE_DIMENSIONS)


def _changed(stated: int | None, spec: QueueSpec, dimension: str, now_ms: int, is_limit: bool) -> int | None:
    for change in spec.changes:
        if change.from_ms <= now_ms < change.until_ms:
            delta = amount_of(change.limit if is_limit else change.guarantee, dimension)
            if delta is not None and not (is_limit and stated is None):
                stated = (stated or 0) + delta
    return stated


def _window(spec: QueueSpec, now_ms: int) -> int:
    return 0 if spec.budget is None else (now_ms - spec.budget.anchor_ms) // spec.budget.window_ms
