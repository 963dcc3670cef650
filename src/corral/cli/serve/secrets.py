"""Values of secrets, taken along when a journal is copied: files in a data folder, or a table of a database.

Knows both places. Nothing is shown.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.store.moving import JournalPlace


def copy_secrets(source: JournalPlace, target: JournalPlace, key_file: str = "") -> int:
    """Copy the value of every secret that there is. Returns how many. ``key_file``: the keys of both places."""
    reader = _reader(source)
    try:
        from corral.server.start import load

        names = list(load(reader).accounts.secrets)
    finally:
        reader.close()
    before, after, copied = _Values(source, key_file), _Values(target, key_file), 0
    try:
        for queue, name in names:
            value = before.store.get(queue, name)
            if value is not None:
                after.store.put(queue, name, value)
                copied += 1
    finally:
        before.close()
        after.close()
    return copied


class _Values:
    """Where the values of one place are."""

    def __init__(self, place: JournalPlace, key_file: str) -> None:
        from corral.server.vault import secrets_of

        self._reader: Any = None
        self.store: Any
        if isinstance(place, Path):
            self.store = secrets_of(place, key_file)
        else:
            from corral.store.address import postgres

            self._reader = postgres().PostgresReader(place)
            self.store = secrets_of(Path(), key_file, postgres().PostgresSecrets(self._reader.readers))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def _reader(place: JournalPlace) -> Any:
    if isinstance(place, Path):
        from corral.store.sqlite.reader import SqliteReader

        return SqliteReader(place)
    from corral.store.address import postgres

    return postgres().PostgresReader(place)
