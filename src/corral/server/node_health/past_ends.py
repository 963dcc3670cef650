"""Reads recent ends of gangs from the journal, for the history of failures. Reads a bounded number of records."""

from __future__ import annotations

from collections.abc import Iterator

from corral.core import events as e
from corral.store.journal import Journal
from corral.wire.codec import AnyEvent, decode

_AT_ONCE = 2_000
_RECORDS_MAX = 50_000  # older records are not read, so that the start is fast
#: The events that `EndHistory` folds; other records are not decoded.
_MARKS = tuple(
    f'"type":"{kind.__name__}"'.encode()
    for kind in (
        e.GangPlaced,
        e.GangRepaired,
        e.TasksLost,
        e.GangEvicted,
        e.GangStopped,
        e.NodeLost,
        e.NodeUndrained,
        e.NodeRemoved,
        e.JobSubmitted,
    )
)


def read_recent(journal: Journal, since_ms: int) -> list[AnyEvent]:
    """Events about ends of gangs and losses of nodes since then, oldest first."""
    return list(_events(journal, since_ms))


def _events(journal: Journal, since_ms: int) -> Iterator[AnyEvent]:
    after = max(0, journal.head.seq - _RECORDS_MAX)
    while records := journal.read(after, _AT_ONCE):
        for record in records:
            if record.at_ms >= since_ms and any(mark in record.body[:40] for mark in _MARKS):
                yield decode(record.format, record.body)
        after = records[-1].seq
