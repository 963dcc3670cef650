"""The journal on PostgreSQL, for reading: records, images and the leader, without the right to write.

For standby servers and tools. May be used from several threads at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from corral.store.journal import NO_SEQ, JournalHead, JournalUnusable, Record, StoredImage
from corral.store.postgres import images
from corral.store.postgres.database import LOOK_UP_S, PostgresReaders, open_database, schema_version
from corral.store.postgres.leader_lease import Leadership, leadership
from corral.store.postgres.lookup import PostgresLookup
from corral.store.sql.record_reader import RECORD, anchor_in, archived_in
from corral.wire.address import shown


class PostgresReader:
    """Each call sees what is durable at that moment. ``prepare``: create the tables in an empty database."""

    def __init__(self, address: str, *, prepare: bool = False, silence_s: float = LOOK_UP_S) -> None:
        self.address = address
        self.readers = PostgresReaders(address, silence_s)
        self.lookup = PostgresLookup(self.readers)
        if prepare:
            open_database(address).close()
        with self.readers.connection() as link:
            if not schema_version(link, address):
                raise JournalUnusable(f"there is no journal in {shown(address)}. Name the database of a server.")

    def read(self, after: int, limit: int) -> list[Record]:
        """Durable records with a number above ``after``, in order."""
        with self.readers.connection() as link:
            question = f"SELECT {RECORD} FROM records WHERE seq > ? ORDER BY seq LIMIT ?"
            return [Record(*row) for row in link.execute(question, (after, limit)).fetchall()]

    def durable_head(self) -> JournalHead:
        with self.readers.connection() as link:
            return JournalHead(*link.execute("SELECT seq, hash FROM writer").fetchone() or ())

    def anchor(self) -> JournalHead:
        """The last record that was moved to an archive; number 0 if none was."""
        with self.readers.connection() as link:
            return anchor_in(link)

    def archived(self, after: int) -> Iterator[Record]:
        with self.readers.connection() as link:
            yield from archived_in(link, Path.cwd(), after)

    def leadership(self) -> Leadership:
        with self.readers.connection() as link:
            return leadership(link)

    def save_image(self, image: StoredImage) -> None:
        with self.readers.connection() as link:
            images.save(link, image)

    def newest_image(self, below: int = NO_SEQ) -> StoredImage | None:
        with self.readers.connection() as link:
            return images.newest(link, below)

    def image_seqs(self) -> list[int]:
        """The numbers of the records with images, newest first."""
        with self.readers.connection() as link:
            return images.seqs(link)

    def size(self) -> int:
        """The size of the whole database in bytes."""
        with self.readers.connection() as link:
            found = link.execute("SELECT pg_database_size(current_database())").fetchone()
        assert found is not None
        return int(found[0])

    def close(self) -> None:
        self.readers.close()
