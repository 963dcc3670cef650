"""Where a journal is: a folder of this machine, or a PostgreSQL database by its address.

Knows addresses. Imports the driver of PostgreSQL only when a database is named, and says what to install if it is not
there. A password in an address is for the database alone: nothing here gives it to anyone else.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from corral.store.journal import JournalUnusable

if TYPE_CHECKING:
    from types import ModuleType

    from corral.store.sql.findings import Finding

_SCHEMES = ("postgresql://", "postgres://")
_SECRET = re.compile(r"(?<![a-z])(password|passfile|sslpassword)=[^&]*", re.IGNORECASE)


def is_postgres(place: str) -> bool:
    return place.startswith(_SCHEMES)


def shown(address: str) -> str:
    """An address as people may see it: without any password."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "postgresql://..."
    where = parts.netloc.rpartition("@")
    user = where[0].partition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{user}{where[1]}{where[2]}", query=_SECRET.sub(r"\1=...", parts.query)))


def postgres() -> ModuleType:
    """The store on PostgreSQL, if its driver is installed."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise JournalUnusable(
            "a PostgreSQL database needs its driver, which is not installed: pip install 'corral-scheduler[postgres]'"
        ) from None
    from corral.store import postgres as package

    return package


def verify(place: str | Path) -> list[Finding]:
    """All that is wrong with a journal, wherever it is; nothing: it is whole."""
    if isinstance(place, str) and is_postgres(place):
        findings: list[Finding] = postgres().verify(place)
        return findings
    from corral.store.verify import verify as verify_folder

    return verify_folder(Path(place))
