"""What queues do not lend: how much all other queues must leave free, over whole subtrees.

``lend`` is the most of a guarantee that others may use while it is idle; the rest stays free for its owner, against all
queues outside the subtree, anywhere in the tree. Reads the tree; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from corral.core.cluster.resources import amount_of

if TYPE_CHECKING:
    from corral.core.queues.quota import QueueTree


def kept(tree: QueueTree, name: str, dimension: str, now_ms: int) -> int:
    """The part of its guarantee that a queue itself does not lend, even when it is idle."""
    lend = amount_of(tree.queues[name].spec.lend, dimension)
    if lend is None:
        return 0
    return max(0, (tree.guarantee(name, dimension, now_ms) or 0) - lend)


def unlent(tree: QueueTree, name: str, dimension: str, now_ms: int) -> int:
    """How much has to stay free for a queue and those below it."""
    queue = tree.queues[name]
    below = sum([unlent(tree, child, dimension, now_ms) for child in queue.children])
    return max(below, kept(tree, name, dimension, now_ms) - queue.used.get(dimension, 0))


def most(tree: QueueTree, name: str, dimension: str, asked: int, now_ms: int, within_limits: bool = True) -> int | None:
    """The most that a queue may use in total because of what others keep, if it wants more than that; else None.
    If others keep nothing, only the nodes limit it. ``within_limits``: also of the limits of its path."""
    left = room(tree, name, dimension, now_ms, within_limits)
    if left is None or asked <= left or not unlent_beside(tree, name, dimension, now_ms):
        return None
    if not binds(tree, name, dimension, asked, now_ms):  # its children always do: it has no guarantee against them
        inside = _unlent_of(tree, tree.queues[name].children, dimension, now_ms)
        left = tree.total.get(dimension, 0) - tree.queues[tree.path(name)[0]].used.get(dimension, 0) - inside
        if not inside or asked <= left:
            return None
    return max(0, tree.queues[name].used.get(dimension, 0) + left)


def room(tree: QueueTree, name: str, dimension: str, now_ms: int, within_limits: bool = True) -> int | None:
    """How much more a queue may use: the limits of all on its path, minus what its siblings keep."""
    bound = _room(tree, name, dimension, now_ms, within_limits)
    return None if bound is None else bound - _unlent_of(tree, tree.queues[name].children, dimension, now_ms)


def _room(tree: QueueTree, name: str, dimension: str, now_ms: int, within_limits: bool) -> int | None:
    """The same for a whole subtree."""
    queue = tree.queues[name]
    used = queue.used.get(dimension, 0)
    if queue.parent is None:
        total = tree.total.get(dimension)
        return None if total is None else total - used
    bound = _room(tree, queue.parent, dimension, now_ms, within_limits)
    if bound is not None:
        siblings = [sibling for sibling in tree.queues[queue.parent].children if sibling != name]
        bound -= _unlent_of(tree, siblings, dimension, now_ms)
    limit = tree.limit(name, dimension, now_ms) if within_limits else None
    if limit is None:
        return bound
    return limit - used if bound is None else min(bound, limit - used)


def _unlent_of(tree: QueueTree, names: Sequence[str], dimension: str, now_ms: int) -> int:
    if dimension not in tree.kept_back:
        return 0
    return sum([tree.unlent(name, dimension, now_ms) for name in names])


def unlent_beside(tree: QueueTree, name: str, dimension: str, now_ms: int) -> int:
    """How much the gangs of a queue itself must leave free for all others."""
    return sum([tree.unlent(each, dimension, now_ms) for each in _beside(tree, name)])


def never_lent(tree: QueueTree, name: str, dimension: str, now_ms: int) -> int:
    """How much all others keep from the gangs of a queue itself, used or not."""
    return sum([_always_kept(tree, each, dimension, now_ms) for each in _beside(tree, name)])


def binds(tree: QueueTree, name: str, dimension: str, asked: int, now_ms: int) -> bool:
    """Whether what others keep, except its children, binds a queue that wants this much. Not within its guarantee, if
    the cluster has become too small for both: then the guarantee takes precedence."""
    for each in tree.path(name)[1:]:
        if tree.queues[each].used.get(dimension, 0) + asked > (tree.guarantee(each, dimension, now_ms) or 0):
            return True
    children = [_always_kept(tree, child, dimension, now_ms) for child in tree.queues[name].children]
    outside = never_lent(tree, name, dimension, now_ms) - sum(children)  # the children's part is in its guarantee
    return (tree.guarantee(name, dimension, now_ms) or 0) + outside <= tree.total.get(dimension, 0)


def is_guaranteed(tree: QueueTree, name: str, dimension: str, asked: int, now_ms: int) -> bool:
    """Whether an amount is within the guarantees of a queue and of all above it, regardless of current use."""
    return all(asked <= (tree.guarantee(each, dimension, now_ms) or 0) for each in tree.path(name)[1:])


def _beside(tree: QueueTree, name: str) -> list[str]:
    """The gangs of a queue that has children count beside these, as one more child."""
    path = tree.path(name)
    found = list(tree.queues[name].children)
    for parent, child in pairwise(path):
        found += [sibling for sibling in tree.queues[parent].children if sibling != child]
    return found


def _always_kept(tree: QueueTree, name: str, dimension: str, now_ms: int) -> int:
    below = sum([_always_kept(tree, child, dimension, now_ms) for child in tree.queues[name].children])
    return max(below, kept(tree, name, dimension, now_ms))
