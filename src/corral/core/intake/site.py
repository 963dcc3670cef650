"""Limits of the site, which apply where a queue has none, and checks of the settings of queues.

Limits protect other users: a priority counts across queues, and a preempted job keeps its GPUs for its grace period.
The caller decides which users are bound by the limits of the site, and which may give guarantees.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from corral.amount_text import quantity
from corral.core.intake.refusal import Refusal
from corral.core.model import JobSpec, QueueSpec
from corral.core.queues.quota import QueueTree

MINUTE_MS = 60_000
_BOUNDS = ("priority_ceiling", "grace_max_ms")  # what queues state of them


class SiteRules(Struct, frozen=True, gc=False, kw_only=True):
    """Limits on jobs of queues without limits on their path, and on the size of one request."""

    priority_ceiling: int = 0
    grace_max_ms: int = 10 * MINUTE_MS
    preemptible: bool = True  # of a job that does not specify it
    gangs_per_job: int = 10_000  # array elements times gangs
    gangs_per_request: int = 10_000
    tasks_per_request: int = 1_000_000
    pending_per_user: int = 300_000  # unfinished elements, in all queues
    pending_per_queue: int = 1_000_000  # in a queue and those below it, if it has no max_jobs


def over_ceiling(tree: QueueTree, queue: str, priority: int, rules: SiteRules | None) -> Refusal | None:
    """Refuse a priority that is too high for the queue. ``rules`` None: only limits of queues count."""
    name, ceiling = _smallest(tree, queue, "priority_ceiling")
    if ceiling is None and rules is not None:
        name, ceiling = "", rules.priority_ceiling
    if ceiling is None or priority <= ceiling:
        return None
    limit = f"the limit of queue {name}" if name else f"the limit of the site, which applies to queue {queue},"
    hint = f"an administrator can raise it: corral queue set {name or queue} --priority-ceiling {priority}"
    return Refusal("priority_too_high", f"priority {priority} is too high: {limit} is {ceiling}", hint, "priority")


def over_grace(tree: QueueTree, spec: JobSpec, rules: SiteRules | None) -> Refusal | None:
    """Refuse a grace period that is too long for the queue."""
    name, most = _smallest(tree, spec.queue, "grace_max_ms")
    if most is None and rules is not None:
        name, most = "", rules.grace_max_ms
    if most is None or spec.grace_ms <= most:
        return None
    who = f"queue {name}" if name else "this site"
    why = f"a grace period of {spec.grace_ms // 1000} s is longer than {who} allows: {most // 1000} s"
    hint = f"request less, or ask an administrator to raise it: corral queue set {name or spec.queue} --grace-max TIME"
    return Refusal("grace_too_long", why, hint, "grace")


def over_bounds(tree: QueueTree, spec: JobSpec, rules: SiteRules | None) -> Refusal | None:
    """Why the priority or the grace of a job is more than its queue or the site allows."""
    key = (spec.queue, "bounds")
    known = tree.derived.get(key)
    if known is None:
        known = tree.derived[key] = tuple([_smallest(tree, spec.queue, name)[1] for name in _BOUNDS])
    ceiling, grace_ms = known
    if rules is not None:
        ceiling = rules.priority_ceiling if ceiling is None else ceiling
        grace_ms = rules.grace_max_ms if grace_ms is None else grace_ms
    if (ceiling is None or spec.priority <= ceiling) and (grace_ms is None or spec.grace_ms <= grace_ms):
        return None
    return over_ceiling(tree, spec.queue, spec.priority, rules) or over_grace(tree, spec, rules)


def is_preemptible(tree: QueueTree, queue: str, rules: SiteRules) -> bool:
    """Whether a job that does not specify it may be preempted: by the nearest queue on its path, else by the site."""
    if queue not in tree.queues:
        return rules.preemptible
    key = (queue, "preemptible")
    if key not in tree.derived:
        stated = [tree.queues[name].spec.preemptible for name in tree.path(queue)]
        tree.derived[key] = next((each for each in reversed(stated) if each is not None), None)
    nearest: bool | None = tree.derived[key]
    return rules.preemptible if nearest is None else nearest


def lifts_bound(tree: QueueTree, spec: QueueSpec, rules: SiteRules) -> Refusal | None:
    """Refuse settings that allow more than the parent queue does; a queue may always be stricter."""
    for field in _BOUNDS:
        stated = getattr(spec, field)
        known = tree.queues.get(spec.name)
        if stated is None or (known is not None and getattr(known.spec, field) == stated):
            continue
        _, above = _smallest(tree, spec.parent, field)
        most = getattr(rules, field) if above is None else above
        if stated > most:
            why = f"{field} {stated} is above the limit of queue {spec.parent or 'cluster'}: {most}"
            return Refusal("bound_not_given", why, "ask an administrator of the cluster", field)
    return None


def _smallest(tree: QueueTree, queue: str, field: str) -> tuple[str, int | None]:
    """The strictest limit of the queues on the path, and the queue that has it."""
    key = (queue, field)
    if key not in tree.derived:
        stated = [(getattr(tree.queues[name].spec, field), name) for name in tree.path(queue)]
        known = [(bound, name) for bound, name in stated if bound is not None]
        tree.derived[key] = (min(known)[1], min(known)[0]) if known else ("", None)
    strictest: tuple[str, int | None] = tree.derived[key]
    return strictest


# ---- guarantees ----------------------------------------------------------------------------------------------------


class _Trial:
    """The tree of queues with one queue changed, for checks. The real tree is not changed."""

    def __init__(self, tree: QueueTree, spec: QueueSpec) -> None:
        self._tree, self._spec = tree, spec

    def spec(self, name: str) -> QueueSpec:
        return self._spec if name == self._spec.name else self._tree.queues[name].spec

    def children(self, name: str) -> list[str]:
        known = self._tree.queues.get(name)
        found = [] if known is None else list(known.children)
        is_new = self._spec.parent == name and self._spec.name not in found
        return [*found, self._spec.name] if is_new else found

    def given(self, name: str, dimension: str, now_ms: int) -> int:
        """The guarantee of a queue at that time: its own, or else the sum of its children."""
        spec = self.spec(name)
        stated = dict(spec.guarantee).get(dimension)
        if stated is None:
            stated = self.given_below(name, dimension, now_ms)
        changes = (c for c in spec.changes if c.from_ms <= now_ms < c.until_ms)
        return max(0, stated + sum(dict(change.guarantee).get(dimension, 0) for change in changes))

    def given_below(self, name: str, dimension: str, now_ms: int) -> int:
        return sum(self.given(child, dimension, now_ms) for child in self.children(name))

    def states(self, name: str, dimension: str) -> bool:
        return any(each == dimension for each, _ in self.spec(name).guarantee)

    def moments(self, path: tuple[str, ...], now_ms: int) -> list[int]:
        """Now, and all times at which a scheduled change of these queues starts or ends."""
        found = {now_ms}
        waiting = [path[0]]
        while waiting:
            name = waiting.pop()
            found.update(at for change in self.spec(name).changes for at in (change.from_ms, change.until_ms))
            waiting += self.children(name)
        return sorted(at for at in found if at >= now_ms)


def guarantee_fault(tree: QueueTree, spec: QueueSpec, may_create: bool, now_ms: int) -> Refusal | None:
    """Refuse a guarantee that exceeds what the parent has, at any time, including scheduled changes. ``may_create``:
    allow guarantees where no queue above has one to divide."""
    trial = _Trial(tree, spec)
    path = (*tree.path(spec.parent), spec.name)
    for dimension in sorted(set(_dimensions(tree, spec))):
        stating = [name for name in path if trial.states(name, dimension)]
        top = stating[0] if stating else spec.name
        for at_ms in trial.moments(tuple(path[path.index(top) :]), now_ms):
            for name in stating:
                below, has = trial.given_below(name, dimension, at_ms), trial.given(name, dimension, at_ms)
                if below > has:
                    why = (
                        f"the guarantees below queue {name} would be {quantity(dimension, below)}, "
                        f"but it has {quantity(dimension, has)}"
                    )
                    return Refusal(
                        "guarantees_exceed_parent",
                        why,
                        f"guarantee less, or first raise the guarantee of {name}",
                        "guarantee",
                    )
            is_shared_out = any(name != spec.name for name in stating)
            if (
                not may_create
                and not is_shared_out
                and trial.given(spec.name, dimension, at_ms) > _has_now(tree, spec.name, dimension, at_ms)
            ):
                given = quantity(dimension, trial.given(spec.name, dimension, at_ms))
                why = f"a guarantee of {given} cannot be given: no queue above {spec.name} has one to divide"
                return Refusal("guarantee_not_given", why, "ask an administrator of the cluster", "guarantee")
    return None


def _has_now(tree: QueueTree, name: str, dimension: str, at_ms: int) -> int:
    return _Trial(tree, tree.queues[name].spec).given(name, dimension, at_ms) if name in tree.queues else 0


def _dimensions(tree: QueueTree, spec: QueueSpec) -> Iterator[str]:
    """The dimensions in which the guarantee of the queue may change."""
    known = tree.queues.get(spec.name)
    for each in (spec, *([known.spec] if known is not None else ())):
        yield from (name for name, _ in each.guarantee)
        yield from (name for change in each.changes for name, _ in change.guarantee)
