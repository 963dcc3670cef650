"""The tree of queues: quotas, usage and borrowing.

A few short functions on a tree. ``used`` is what gangs are charged: from their claim or placement until they have
stopped or, if they are preempted, until they are warned. What a queue does not set (no guarantee, no limit) is not
limited; it is not zero. Does not know nodes or placement.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field

from corral.core.cluster.resources import GPU_MILLI, SHARE_DIMENSIONS, amount_of
from corral.core.model import QueueSpec
from corral.core.queues import budget as budgets
from corral.core.queues import lending
from corral.core.queues.budget import Run
from corral.core.queues.terms import Terms, changed, contested, next_change, terms_of
from corral.core.queues.usage import Usage
from corral.core.undo import ABSENT, ADDED, Log, Undoable

ROOT = ""
_NOTHING: Mapping[str, int] = {}


class Shortfall(Struct, frozen=True, gc=False):
    """One limit that would be exceeded: ``kind``, and the numbers."""

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
    committed_gpu_ms: int = 0  # expected need of running gangs
    loss_caused_gpu_ms: int = 0
    loss_suffered_gpu_ms: int = 0
    used_gpu_ms: int = 0  # for ever
    elements: int = 0  # unfinished jobs, here and in queues below
    user_elements: dict[str, int] = field(default_factory=dict)

    def twin(self) -> Queue:
        """A copy of the queue that can be charged separately. Everything except charges is shared."""
        return Queue(
            self.spec,
            self.parent,
            self.children,
            self.used.copy(),
            self.user_used.copy(),
            self.jobs,
            self.user_jobs,
            self.usage,
            self.user_usage,
            self.window,
            self.spent_gpu_ms,
            self.committed_gpu_ms,
            self.loss_caused_gpu_ms,
            self.loss_suffered_gpu_ms,
            self.used_gpu_ms,
            self.elements,
            self.user_elements,
        )


class QueueTree(Undoable):
    """All queues. The root, named by the empty string, is the cluster itself and always exists."""

    def __init__(self, half_life_ms: int, entry_charge_ms: int) -> None:
        self.half_life_ms = half_life_ms
        self.entry_charge_ms = entry_charge_ms
        self.queues: dict[str, Queue] = {ROOT: Queue(QueueSpec(name=ROOT), None)}
        self.total: dict[str, int] = {}  # capacity of the cluster, without lost nodes
        self._paths: dict[str, tuple[str, ...]] = {ROOT: (ROOT,)}
        self._known_terms: Terms | None = None  # None: to be computed again
        self._bounded: dict[str, bool] = {}
        self.derived: dict[tuple[str, str], Any] = {}  # cache of others: what follows from the settings along a path
        self._next_change_ms = 0  # no scheduled change before; 0: unknown
        self._own: set[str] = set()  # of a copy: the queues that are no longer shared with the original
        self.charges: list[str] = []  # of a copy: the queues that were charged, in order
        self._own_users: set[tuple[str, str]] = set()  # of a copy: (queue, user) that were charged
        #: computed guarantees and limits. With scheduled changes, a copy has its own, because time
        #: does not advance in it, and the original has none
        self._guarantees: dict[tuple[str, str], int | None] | None = None
        self._unlent: dict[tuple[str, str, int], int] = {}  # until the next charge
        self.runs: dict[str, dict[tuple[str, bool], Run]] = {}  # of a copy: by queue with a budget; (gang, is next)
        self._bounds: dict[tuple[str, str], list[tuple[str, int]]] | None = None

    # ---- shape of the tree -------------------------------------------------------------------------------------

    def put(self, spec: QueueSpec) -> None:
        if spec.name in self.queues:
            self._to_change(spec.name).spec = spec
        else:
            self.queues[spec.name] = Queue(spec, spec.parent)
            insort(self.queues[spec.parent].children, spec.name)
            self._paths[spec.name] = (*self._paths[spec.parent], spec.name)
        self._bounded = {}
        self.derived = {}
        self._next_change_ms = 0
        self._terms_changed()

    def _terms_changed(self) -> None:
        """Drop what was computed from the settings of queues; it is computed again when needed."""
        self._known_terms = self._guarantees = self._bounds = None
        self._unlent = {}
        if self._log is not None:
            self._guarantees, self._bounds = {}, {}

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
    def _terms(self) -> Terms:
        """Properties of the settings of all queues together. Computed once after any number of changes."""
        if self._known_terms is None:
            specs = [queue.spec for queue in self.queues.values()]
            self._known_terms = terms_of(specs)
            if self._log is None and not any(each.changes for each in specs):
                self._guarantees, self._bounds = {}, {}
        return self._known_terms

    @property
    def guaranteed(self) -> tuple[str, ...]:
        """The shared resources of which some queue has a guarantee."""
        return self._terms.guaranteed

    @property
    def has_budgets(self) -> bool:
        return self._terms.has_budgets

    @property
    def kept_back(self) -> frozenset[str]:
        """The dimensions of which some queue does not lend everything."""
        return self._terms.kept_back

    @property
    def bounds_models(self) -> bool:
        """Whether some queue is bounded in a dimension that depends on the GPU model."""
        return self._terms.bounds_models

    def guarantee(self, name: str, dimension: str, now_ms: int) -> int | None:
        """What is always obtainable. A queue without a setting has the sum of its children's guarantees."""
        if self._guarantees is not None and (name, dimension) in self._guarantees:
            return self._guarantees[name, dimension]
        guarantee = self._guarantee(name, dimension, now_ms)
        if self._guarantees is not None:
            self._guarantees[name, dimension] = guarantee
        return guarantee

    def _guarantee(self, name: str, dimension: str, now_ms: int) -> int | None:
        queue = self.queues[name]
        stated = amount_of(queue.spec.guarantee, dimension)
        if stated is None and queue.children:
            below = [self.guarantee(child, dimension, now_ms) for child in queue.children]
            known = [each for each in below if each is not None]
            stated = sum(known) if known else None
        return changed(stated, queue.spec, dimension, now_ms, is_limit=False)

    def limit(self, name: str, dimension: str, now_ms: int) -> int | None:
        spec = self.queues[name].spec
        return changed(amount_of(spec.limit, dimension), spec, dimension, now_ms, is_limit=True)

    def _limits(self, name: str, dimension: str, now_ms: int) -> list[tuple[str, int]]:
        """The limits along a queue's path, if any."""
        if self._bounds is not None and (name, dimension) in self._bounds:
            return self._bounds[name, dimension]
        stated = [(each, self.limit(each, dimension, now_ms)) for each in self._paths[name]]
        found = [(each, limit) for each, limit in stated if limit is not None]
        if self._bounds is not None:
            self._bounds[name, dimension] = found
        return found

    def unlent(self, name: str, dimension: str, now_ms: int) -> int:
        """How much must stay free for a queue and its children, because they do not lend it."""
        known = self._unlent.get((name, dimension, now_ms))
        if known is None:
            known = self._unlent[name, dimension, now_ms] = lending.unlent(self, name, dimension, now_ms)
        return known

    def next_change_ms(self, now_ms: int) -> int:
        """The next scheduled change of the settings of any queue."""
        if now_ms >= self._next_change_ms:
            self._next_change_ms = min([next_change(queue.spec, now_ms) for queue in self.queues.values()])
        return self._next_change_ms

    # ---- may it take more --------------------------------------------------------------------------------------

    def room(self, name: str, dimension: str, now_ms: int) -> int | None:
        """How much more a queue may use: its limits, minus what others keep. None: no limit."""
        return lending.room(self, name, dimension, now_ms)

    def shortfalls(
        self, name: str, user: str, charge: Mapping[str, int], gpu_ms: int, now_ms: int
    ) -> Iterator[Shortfall]:
        """Every limit that this charge would exceed; nothing if the queue may have it."""
        if not self.is_bounded(name):
            return
        queue = self.queues[name]
        for dimension, asked in charge.items():
            bound = amount_of(queue.spec.user_limit, dimension)
            mine = 0 if bound is None else queue.user_used.get(user, _NOTHING).get(dimension, 0)
            if bound is not None and mine + asked > bound:
                yield Shortfall("user_limit", name, dimension, mine, bound, asked)
            is_over = False
            for each, limit in self._limits(name, dimension, now_ms):
                used = self.queues[each].used.get(dimension, 0)
                if used + asked > limit:
                    is_over = True
                    yield Shortfall("limit", each, dimension, used, limit, asked)
            if dimension in self._terms.kept_back:  # also of a higher limit, or without any
                most = lending.most(self, name, dimension, asked, now_ms, within_limits=not is_over)
                if most is not None:
                    yield Shortfall("not_lent", name, dimension, queue.used.get(dimension, 0), most, asked)
        if gpu_ms and self._terms.has_budgets:
            gpu_milli = charge.get(GPU_MILLI, 0)
            asked_run = Run(now_ms, now_ms + gpu_ms * 1000 // max(1, gpu_milli), gpu_milli)
            for each in self._paths[name]:
                found = self._over_budget(each, asked_run)
                if found is not None:
                    yield found

    def _over_budget(self, name: str, asked: Run) -> Shortfall | None:
        """The first window that has too little left for its part of a run."""
        budget, runs = self.queues[name].spec.budget, self.runs.get(name, {}).values()
        if budget is not None:
            spent = self.spent_gpu_ms(name, asked.begin_ms)
            for taken, part in budgets.parts(budget, asked, runs, spent):
                if taken + part > budget.gpu_ms:
                    return Shortfall("budget", name, "gpu_ms", taken, budget.gpu_ms, part)
        return None

    def set_run(self, name: str, gang: str, run: Run | None, *, is_next: bool = False) -> None:
        """Commit the current run of a gang, or its next one, to budgets; None: no run."""
        for each in self._paths[name]:
            if self.queues[each].spec.budget is not None:
                if each not in self.runs:
                    self._put(self.runs, each, {})
                if run is not None:
                    self._put(self.runs[each], (gang, is_next), run)
                elif (gang, is_next) in self.runs[each]:
                    self._drop(self.runs[each], (gang, is_next))

    def is_bounded(self, name: str) -> bool:
        """Whether there is any limit on what a queue may use."""
        known = self._bounded.get(name)
        if known is None:
            specs = [self.queues[each].spec for each in self._paths[name]]
            is_stated = specs[-1].user_limit or any(spec.limit or spec.budget for spec in specs)
            known = bool(self._terms.kept_back or is_stated)
            self._bounded[name] = known
        return known

    def has_budget(self, name: str) -> bool:
        """Whether the run time of a gang matters."""
        return self._terms.has_budgets and any(self.queues[each].spec.budget for each in self._paths[name])

    # ---- borrowing ---------------------------------------------------------------------------------------------

    def is_entitled(self, name: str, against: str, charge: Mapping[str, int], now_ms: int) -> bool:
        """Whether a queue stays within its guarantee with this charge, at every level where it differs from another."""
        below = self.below(name, against)  # empty for a queue above the other: it has no separate guarantee there
        return bool(below) and all(self.is_within(each, charge, now_ms) for each in below)

    def is_within(self, name: str, charge: Mapping[str, int], now_ms: int) -> bool:
        """Whether one queue, taken by itself, stays within its guarantee with this charge."""
        dimensions = contested(charge)
        for dimension in dimensions:
            guarantee = self.guarantee(name, dimension, now_ms)
            if guarantee is None or self.queues[name].used.get(dimension, 0) + charge[dimension] > guarantee:
                return False
        return bool(dimensions)  # what is not guaranteed is not reclaimed

    # ---- what if -----------------------------------------------------------------------------------------------

    def copy(self, log: Log | None = None) -> QueueTree:
        """A copy of the tree that can be charged separately, with an undo log: this one, or one of its own. Usage is
        shared: time does not advance in a draft."""
        assert self._terms is not None  # computed here, not in every copy
        twin = object.__new__(QueueTree)
        twin.__dict__.update(self.__dict__)
        twin.queues = self.queues.copy()
        twin._log = [] if log is None else log
        twin._own = set()
        twin._own_users = set()
        twin.charges = []
        twin._unlent = {}
        twin.runs = {}
        if self._guarantees is None:
            twin._guarantees, twin._bounds = {}, {}
        return twin

    def _to_change(self, name: str) -> Queue:
        """The queue, for a change. Copied on write: most queues of a draft are never charged."""
        queue = self.queues[name]
        if self._log is not None and name not in self._own:
            self._own.add(name)
            queue = self.queues[name] = queue.twin()
        return queue

    # ---- bookkeeping -------------------------------------------------------------------------------------------

    def charge(self, name: str, user: str, amounts: Sequence[tuple[str, int]], sign: int) -> None:
        log = self._log
        own, queues = self._own, self.queues
        if log is not None:
            log.append((self.charges, -1, ABSENT))
            self.charges.append(name)
        if not amounts:
            return
        if sign < 0:
            amounts = [(dimension, -amount) for dimension, amount in amounts]
        charged = [
            (queues[each] if log is None or each in own else self._to_change(each)).used for each in self._paths[name]
        ]
        charged.append(self._user_to_change(name, user))
        if log is not None:
            log += ((self.__dict__, "_unlent", self._unlent), (charged, amounts, ADDED))
        self._unlent = {}
        for used in charged:
            for dimension, amount in amounts:
                used[dimension] = used.get(dimension, 0) + amount

    def _user_to_change(self, name: str, user: str) -> dict[str, int]:
        """The charges of a user in a queue, for a change. Copied on write."""
        users = self.queues[name].user_used
        used = users.get(user)
        if used is None:
            used = {}
            self._put(users, user, used)
            self._own_users.add((name, user))
        elif self._log is not None and (name, user) not in self._own_users:
            used = users[user] = used.copy()
            self._own_users.add((name, user))
        return used

    def meter(self, name: str, user: str, amounts: Iterable[tuple[str, int]], sign: int, now_ms: int) -> None:
        """Begin (+1) or end (-1) measuring usage at this rate."""
        rates = dict(amounts)
        deltas = [sign * rates.get(dimension, 0) for dimension in SHARE_DIMENSIONS]
        if not any(deltas):
            return
        for each in self._paths[name][1:]:  # the root has no siblings
            self.queues[each].usage.change(deltas, now_ms, self.half_life_ms)
        users = self.queues[name].user_usage
        mine = users.get(user)
        if mine is None:
            mine = users[user] = Usage.none(len(SHARE_DIMENSIONS))
        mine.change(deltas, now_ms, self.half_life_ms)

    def commit_budget(self, name: str, gpu_ms: int) -> None:
        for each in self._paths[name]:
            self.queues[each].committed_gpu_ms += gpu_ms

    def spend(self, name: str, run: Run, by_window: bool) -> None:
        """A run has ended. ``by_window``: the window in which it ends is charged only for its part."""
        now_ms = run.end_ms
        gpu_ms = run.gpu_ms(run.begin_ms, now_ms)
        for each in self._paths[name]:
            queue = self.queues[each]
            queue.used_gpu_ms += gpu_ms
            budget = queue.spec.budget
            if budget is not None:
                part = run.gpu_ms(budgets.begin_of(budget, budgets.window_of(budget, now_ms)), now_ms)
                queue.spent_gpu_ms = self.spent_gpu_ms(each, now_ms) + (part if by_window else gpu_ms)
                queue.window = _window(queue.spec, now_ms)

    def spent_gpu_ms(self, name: str, now_ms: int) -> int:
        queue = self.queues[name]
        return queue.spent_gpu_ms if queue.window == _window(queue.spec, now_ms) else 0


def _window(spec: QueueSpec, now_ms: int) -> int:
    return 0 if spec.budget is None else budgets.window_of(spec.budget, now_ms)
