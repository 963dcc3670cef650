"""The journal on SQLite, for reading: records and images, without the right to write.

For following a server from another process, and for reading the journal of one that does not run. May be used
from several threads at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from corral.store.images import ImageFolder
from corral.store.journal import NO_SEQ, JournalHead, JournalUnusable, Record, StoredImage
from corral.store.sql.record_reader import RECORD, anchor_in, archived_in
from corral.store.sqlite.database import FILE_NAME, SqliteReaders
from corral.store.sqlite.lookup import SqliteLookup


class SqliteReader:
    """Each call sees what is durable at that moment."""

    def __init__(self, folder: Path) -> None:
        if not (folder / FILE_NAME).is_file():
            raise JournalUnusable(f"there is no journal in {folder}")
        self.folder = folder
        self.readers = SqliteReaders(folder / FILE_NAME)
        self.images = ImageFolder(folder / "images")
        self.lookup = SqliteLookup(self.readers)

    def read(self, after: int, limit: int) -> list[Record]:
        """Durable records with a number above ``after``, in order."""
        with self.readers.connection() as connection:
            rows = connection.execute(
                f"SELECT {RECORD} FROM records WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit)
            ).fetchall()
        return [Record(*row) for row in rows]

    def durable_head(self) -> JournalHead:
        with self.readers.connection() as connection:
            return JournalHead(*connection.execute("SELECT seq, hash FROM writer").fetchone())

    def anchor(self) -> JournalHead:
        """The last record that was moved to an archive; number 0 if none was."""
        with self.readers.connection() as connection:
            return anchor_in(connection)

    def archived(self, after: int) -> Iterator[Record]:
        with self.readers.connection() as connection:
            yield from archived_in(connection, self.folder, after)

    def save_image(self, image: StoredImage) -> None:
        self.images.save(image)

    def newest_image(self, below: int = NO_SEQ) -> StoredImage | None:
        return self.images.newest(below)

    def image_seqs(self) -> list[int]:
        """The numbers of the records with images, newest first."""
        return self.images.seqs()

    def size(self) -> int:
        """The size of the database files in bytes."""
        return sum(path.stat().st_size for path in self.folder.glob(f"{FILE_NAME}*"))

    def close(self) -> None:
        self.readers.close()
