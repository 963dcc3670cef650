"""All waiting gangs in order of rank, kept from one plan to the next.

Equivalent to sorting the whole backlog for every plan. The rank of a waiting gang depends only on its record, so only
gangs that were added since the last plan are ranked. Does not know seats.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from msgspec import Struct

from corral.core.model import Gang, GangState
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.sim.research.repack.ranks import Rank

#: (rank, queue position, attempt so far, gang): sorts by rank, then by queue position.
Entry = tuple[tuple[Any, ...], int, int, Gang]


class _LastOrder(Struct):
    entries: list[Entry]
    elsewhere: list[Gang]  # gangs that held or claimed seats at that time: they may be requeued
    known: int  # number of gangs at that time


def waiting_in_order(snapshot: Snapshot, rank: Rank) -> list[Entry]:
    state = snapshot.state
    last = state.memory.get(("waiting_order", rank))
    entries = [] if last is None else _still_here(last, snapshot, rank)
    if len(entries) != state.backlog.count:
        entries = [entry_of(snapshot, rank, state.gangs[name]) for line in state.backlog.entries() for name in line]
    entries.sort()
    elsewhere = [*state.holders.values(), *state.claimants.values()]
    state.memory["waiting_order", rank] = _LastOrder(entries, elsewhere, len(state.gangs))
    return entries


def entry_of(snapshot: Snapshot, rank: Rank, gang: Gang) -> Entry:
    return rank(snapshot, gang), gang.rank, gang.attempt, gang


def _still_here(last: _LastOrder, snapshot: Snapshot, rank: Rank) -> list[Entry]:
    """Gangs of the last time that still wait, and likely new ones. All of these wait; some may be missing."""
    found: list[Entry] = []
    back: list[Gang] = []
    for entry in last.entries:
        gang = entry[3]
        if gang.state is GangState.WAITING and not gang.blockers and not gang.claim:
            if gang.attempt == entry[2]:
                found.append(entry)
            else:
                back.append(gang)
    found += [
        entry_of(snapshot, rank, gang)
        for gang in (*back, *last.elsewhere, *_newest(snapshot.state, last.known))
        if gang.state is GangState.WAITING and not gang.blockers and not gang.claim
    ]
    return found


def _newest(state: State, known: int) -> Iterator[Gang]:
    return islice(reversed(state.gangs.values()), max(0, len(state.gangs) - known))
