"""Everyone who waits, in order of rank, kept from one plan to the next.

Equivalent to sorting the whole backlog for every plan. The rank of a gang that waits depends on its record alone, so
only those who have come since the last plan are ranked anew. Knows nothing of seats.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from msgspec import Struct

from corral.core.model import Gang, GangState
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.repack.ranks import Rank

#: (rank, place in line, attempt so far, gang): sorts by rank, then by place in line.
Entry = tuple[tuple[Any, ...], int, int, Gang]


class _Standing(Struct):
    entries: list[Entry]
    elsewhere: list[Gang]  # who held or claimed seats when this was written down: they may be back
    known: int  # so many gangs there were


def waiting_in_order(snapshot: Snapshot, rank: Rank) -> list[Entry]:
    state = snapshot.state
    last = state.memory.get(("standing", rank))
    entries = [] if last is None else _still_here(last, snapshot, rank)
    if len(entries) != state.backlog.count:
        entries = [entry_of(snapshot, rank, state.gangs[name]) for line in state.backlog.lines() for name in line]
    entries.sort()
    elsewhere = [*state.holders.values(), *state.claimants.values()]
    state.memory["standing", rank] = _Standing(entries, elsewhere, len(state.gangs))
    return entries


def entry_of(snapshot: Snapshot, rank: Rank, gang: Gang) -> Entry:
    return rank(snapshot, gang), gang.rank, gang.attempt, gang


def _still_here(last: _Standing, snapshot: Snapshot, rank: Rank) -> list[Entry]:
    """Those of last time who still wait, and the likely newcomers. All of these wait; some may be missing."""
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
