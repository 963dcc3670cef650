"""Copies the values of secrets when a journal is copied: files in a data folder, or a table of a database.

Knows both kinds of storage. Shows no value.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral.store.backup import JournalPlace


def copy_secrets(source: JournalPlace, target: JournalPlace, key_file: str = "") -> int:
    """Copy the value of every secret, and return how many. ``key_file``: the keys of source and target."""
    reader = _reader(source)
    try:
        from corral.server.recovery import load

        names = list(load(reader).accounts.secrets)
    finally:
        reader.close()
    before = _Values(source, key_file)
    after = _Values(target, key_file)
    copied = 0
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
    """The store of the values of a data folder or a database."""

    def __init__(self, place: JournalPlace, key_file: str) -> None:
        from corral.server.vault import secrets_of

        self._reader: Any = None
        self.store: Any
        if isinstance(place, Path):
            self.store = secrets_of(place, key_file)
        else:
            from corral.store.location import postgres

            self._reader = postgres().PostgresReader(place)
            self.store = secrets_of(Path(), key_file, postgres().PostgresSecrets(self._reader.readers))

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def _reader(place: JournalPlace) -> Any:
    if isinstance(place, Path):
        from corral.store.sqlite.reader import SqliteReader

        return SqliteReader(place)
    from corral.store.location import postgres

    return postgres().PostgresReader(place)
