"""The health of a server, as its health endpoint shows it to all clients. Values only.

Contains nothing confidential: no address, no name, no error text.
"""

from __future__ import annotations

from msgspec import Struct

#: What a server waits for, by the problem of its database (``JournalAway.kind``).
WAITS_FOR = {
    "away": "the database to be reachable",
    "silent": "the database to answer",
    "locked": "a lock on the database's tables to be released",
    "slow": "the database to answer in time",
    "read_only": "the database to be writable: it is read-only",
    "full": "free space on the database's disk",
    "crowded": "a free connection to the database",
}


class Vitals(Struct, frozen=True, kw_only=True):
    """``database``: "" for a file, "ok", or one word for its problem. ``waits_for``: the problem as a phrase.
    ``following``: whether this server is up to date; ``followed_s_ago``: when a standby last was. ``seq``: the newest
    record it has. Of a leader: ``committed_s_ago``, and ``leading_for_s``: until its leadership must be renewed."""

    database: str = ""
    waits_for: str = ""
    following: bool = True
    followed_s_ago: float | None = None
    seq: int = 0
    committed_s_ago: float | None = None
    leading_for_s: float | None = None
