"""The kinds of backfill, as values: which gangs may start before a blocked one. Makes no reservations."""

from __future__ import annotations

from msgspec import Struct


class Backfill(Struct, frozen=True):
    """Whether later gangs may start before a blocked one. ``depth``: blocked gangs of a pool with a reservation.

    ``keeps``: reservations are kept from plan to plan, and no later gang delays them.
    """

    may_pass: bool = True
    depth: int = 1
    keeps: bool = False


STRICT = Backfill(may_pass=False, depth=0)
GREEDY = Backfill(depth=0)
EASY = Backfill(depth=1)
CONSERVATIVE = Backfill(depth=1 << 30, keeps=True)
