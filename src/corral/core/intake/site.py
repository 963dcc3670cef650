"""What a site allows where no queue says otherwise, and what a queue's terms may be made of.

Bounds protect other tenants: a priority counts across queues, and a job that is told to leave keeps its GPUs for its
grace. Which people are bound by the site's defaults, and who may give guarantees, is decided by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from corral.core.intake.refusal import Refusal
from corral.core.model import JobSpec, QueueSpec
from corral.core.queues.quota import QueueTree

MINUTE_MS = 60_000


class SiteRules(Struct, frozen=True, gc=False, kw_only=True):
    """Bounds on jobs of queues whose path states none of its own, and on what one request may bring."""

    priority_ceiling: int = 0
    grace_max_ms: int = 10 * MINUTE_MS
    preemptible: bool = True  # of a job that does not say so itself
    gangs_per_job: int = 10_000  # array elements times gangs
    gangs_per_request: int = 10_000
    tasks_per_request: int = 1_000_000
    pending_per_user: int = 300_000  # elements that are not over, in all queues
    pending_per_queue: int = 1_000_000  # in a queue and those below it, where it states no max_jobs


def over_ceiling(tree: QueueTree, queue: str, priority: int, rules: SiteRules | None) -> Refusal | None:
    """Why the priority is too high there. ``rules`` None: only what queues state counts."""
    name, ceiling = _smallest(tree, queue, "priority_ceiling")
    if ceiling is None and rules is not None:
        name, ceiling = "", rules.priority_ceiling
    if ceiling is None or priority <= ceiling:
        return None
    allows = f"queue {name} allows" if name else f"queue {queue} has no ceiling of its own, and this site allows"
    hint = f"an administrator can raise it: corral queue set {name or queue} --priority-ceiling {priority}"
    return Refusal("priority_too_high", f"priority {priority}: {allows} up to {ceiling}", hint, "priority")


def over_grace(tree: QueueTree, spec: JobSpec, rules: SiteRules | None) -> Refusal | None:
    """Why the grace is too long there."""
    name, most = _smallest(tree, spec.queue, "grace_max_ms")
    if most is None and rules is not None:
        name, most = "", rules.grace_max_ms
    if most is None or spec.grace_ms <= most:
        return None
    who = f"queue {name}" if name else "this site"
    why = f"a grace of {spec.grace_ms // 1000} s is longer than {who} allows: {most // 1000} s"
    hint = f"ask for less, or have an administrator raise it: corral queue set {name or spec.queue} --grace-max TIME"
    return Refusal("grace_too_long", why, hint, "grace")


class Bounds:
    """Whether jobs of one request are over a bound of their queue: asked once for all that are alike in this."""

    def __init__(self, tree: QueueTree, rules: SiteRules | None) -> None:
        self._tree, self._rules = tree, rules
        self._known: dict[tuple[str, int, int], Refusal | None] = {}

    def over(self, spec: JobSpec) -> Refusal | None:
        key = (spec.queue, spec.priority, spec.grace_ms)
        if key not in self._known:
            high = over_ceiling(self._tree, spec.queue, spec.priority, self._rules)
            self._known[key] = high or over_grace(self._tree, spec, self._rules)
        return self._known[key]


def is_preemptible(tree: QueueTree, queue: str, rules: SiteRules) -> bool:
    """Whether a job that does not say so may be preempted: what the nearest queue on its path states, else the site."""
    if queue not in tree.queues:
        return rules.preemptible
    stated = [tree.queues[name].spec.preemptible for name in tree.path(queue)]
    return next((each for each in reversed(stated) if each is not None), rules.preemptible)


def lifts_bound(tree: QueueTree, spec: QueueSpec, rules: SiteRules) -> Refusal | None:
    """Why these terms would allow more than what holds above the queue; a queue may always be stricter."""
    for field in ("priority_ceiling", "grace_max_ms"):
        stated = getattr(spec, field)
        known = tree.queues.get(spec.name)
        if stated is None or (known is not None and getattr(known.spec, field) == stated):
            continue
        _, above = _smallest(tree, spec.parent, field)
        most = getattr(rules, field) if above is None else above
        if stated > most:
            why = f"{field} {stated} is above {most}, which holds for queue {spec.parent or 'cluster'}"
            return Refusal("bound_not_given", why, "ask an administrator of the cluster", field)
    return None


def _smallest(tree: QueueTree, queue: str, field: str) -> tuple[str, int | None]:
    """The strictest bound that queues on the path state, and which queue states it."""
    stated = [(getattr(tree.queues[name].spec, field), name) for name in tree.path(queue)]
    known = [(bound, name) for bound, name in stated if bound is not None]
    return (min(known)[1], min(known)[0]) if known else ("", None)


# ---- guarantees ----------------------------------------------------------------------------------------------------


class _Trial:
    """The tree of queues as it would be with one queue changed. Nothing is changed."""

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
        """What a queue is guaranteed then: what it states, else what those below it are."""
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
        """Now, and whenever a scheduled change begins or ends in what these queues hold."""
        found = {now_ms}
        waiting = [path[0]]
        while waiting:
            name = waiting.pop()
            found.update(at for change in self.spec(name).changes for at in (change.from_ms, change.until_ms))
            waiting += self.children(name)
        return sorted(at for at in found if at >= now_ms)


def guarantee_fault(tree: QueueTree, spec: QueueSpec, may_create: bool, now_ms: int) -> Refusal | None:
    """Why the guarantee cannot be given: queues below one that states a guarantee share it, at every moment, scheduled
    changes counted. ``may_create``: also where no queue above has any to share out."""
    trial = _Trial(tree, spec)
    path = (*tree.path(spec.parent), spec.name)
    for dimension in sorted(set(_dimensions(tree, spec))):
        stating = [name for name in path if trial.states(name, dimension)]
        top = stating[0] if stating else spec.name
        for at_ms in trial.moments(tuple(path[path.index(top) :]), now_ms):
            for name in stating:
                below, has = trial.given_below(name, dimension, at_ms), trial.given(name, dimension, at_ms)
                if below > has:
                    why = f"guarantees of {dimension} under {name} would be {below} of {has}"
                    return Refusal("guarantees_exceed_parent", why, field="guarantee")
            is_shared_out = any(name != spec.name for name in stating)
            if (
                not may_create
                and not is_shared_out
                and trial.given(spec.name, dimension, at_ms) > _has_now(tree, spec.name, dimension, at_ms)
            ):
                why = f"no queue above {spec.name} has a guarantee of {dimension} to share out"
                return Refusal("guarantee_not_given", why, "ask an administrator of the cluster", "guarantee")
    return None


def _has_now(tree: QueueTree, name: str, dimension: str, at_ms: int) -> int:
    return _Trial(tree, tree.queues[name].spec).given(name, dimension, at_ms) if name in tree.queues else 0


def _dimensions(tree: QueueTree, spec: QueueSpec) -> Iterator[str]:
    """Those of which the guarantee of the queue may change."""
    known = tree.queues.get(spec.name)
    for each in (spec, *([known.spec] if known is not None else ())):
        yield from (name for name, _ in each.guarantee)
        yield from (name for change in each.changes for name, _ in change.guarantee)
