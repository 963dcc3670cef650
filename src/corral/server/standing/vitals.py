"""How a server is doing, as it tells everybody who asks for its health. Values only.

Says nothing that would help a stranger: no address, no name, no error text.
"""

from __future__ import annotations

from msgspec import Struct

#: What a server waits for, by what is wrong with its database (``JournalAway.kind``).
WAITS_FOR = {
    "away": "the database to be reachable",
    "silent": "the database to answer",
    "locked": "a lock on the database's tables to be released",
    "slow": "the database to answer in time",
    "read_only": "the database to be writable: it is read-only",
    "full": "room on the database's disk",
    "crowded": "a free connection to the database",
}


class Vitals(Struct, frozen=True, kw_only=True):
    """``database``: "" for a file, "ok", or one word for what is wrong. ``waits_for``: that in words. ``following``:
    whether what this server answers is what is durable; ``followed_s_ago``: when a standby last knew that. ``seq``: the
    newest record it knows. Of a leader: ``committed_s_ago`` and for how long it leads without another renewal."""

    database: str = ""
    waits_for: str = ""
    following: bool = True
    followed_s_ago: float | None = None
    seq: int = 0
    committed_s_ago: float | None = None
    leading_for_s: float | None = None
