"""Who may pass whom: the kinds of backfill, as values. Knows nothing of how promises are found or kept."""

from __future__ import annotations

from msgspec import Struct


class Backfill(Struct, frozen=True):
    """Whether later gangs may pass a blocked one. ``depth``: how many blocked gangs of a pool are promised a start.

    ``keeps``: a promise is known to later plans, and nobody who comes later delays it.
    """

    may_pass: bool = True
    depth: int = 1
    keeps: bool = False


STRICT = Backfill(may_pass=False, depth=0)
GREEDY = Backfill(depth=0)
EASY = Backfill(depth=1)
CONSERVATIVE = Backfill(depth=1 << 30, keeps=True)
