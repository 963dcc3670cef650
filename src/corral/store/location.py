"""The location of a journal: a folder of this machine, or the address of a PostgreSQL database.

Imports the driver of PostgreSQL only when a database is used, and says what to install if it is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from corral.store.journal import JournalUnusable
from corral.wire.address import is_postgres

if TYPE_CHECKING:
    from types import ModuleType

    from corral.store.sql.findings import Finding


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
    """All errors found in a journal, wherever it is; empty if it is intact."""
    if isinstance(place, str) and is_postgres(place):
        findings: list[Finding] = postgres().verify(place)
        return findings
    from corral.store.verify import verify as verify_folder

    return verify_folder(Path(place))
