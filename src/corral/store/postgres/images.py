"""Images in the database: in parts, written atomically, checked when read; the last few are kept.

Does not know the content of an image. Needs no leadership: every server that follows the journal may save one, since an
image only saves folding the records.
"""

from __future__ import annotations

from hashlib import sha256

from corral.store.images import IMAGES_KEPT
from corral.store.journal import NO_SEQ, StoredImage
from corral.store.postgres.database import PostgresConnection, marked

_PART = 4 << 20


def save(link: PostgresConnection, image: StoredImage) -> None:
    """Save an image and drop all but the last few."""
    parts = [image.body[at : at + _PART] for at in range(0, len(image.body), _PART)] or [b""]
    digest = _checksum(image.seq, image.format, image.body)
    rows = [(image.seq, number, len(parts), image.format, digest, part) for number, part in enumerate(parts)]
    with link.transaction():
        link.execute("DELETE FROM images WHERE seq = ?", (image.seq,))
        insert = "INSERT INTO images (seq, part, parts, format, sha256, body) VALUES (?, ?, ?, ?, ?, ?)"
        link.raw.cursor().executemany(marked(insert), rows)
        for seq in seqs(link)[IMAGES_KEPT:]:
            link.execute("DELETE FROM images WHERE seq = ?", (seq,))


def newest(link: PostgresConnection, below: int = NO_SEQ) -> StoredImage | None:
    """The newest intact image of a record below that number; damaged ones are skipped."""
    for seq in seqs(link):
        image = load(link, seq) if seq < below else None
        if image is not None:
            return image
    return None


def seqs(link: PostgresConnection) -> list[int]:
    """The numbers of the records with images, newest first."""
    return [seq for (seq,) in link.execute("SELECT DISTINCT seq FROM images ORDER BY seq DESC").fetchall()]


def load(link: PostgresConnection, seq: int) -> StoredImage | None:
    """One image; None if it is damaged."""
    question = "SELECT parts, format, sha256, body FROM images WHERE seq = ? ORDER BY part"
    rows = link.execute(question, (seq,)).fetchall()
    if not rows or len(rows) != rows[0][0]:
        return None
    format, body = rows[0][1], b"".join(row[3] for row in rows)
    return StoredImage(seq, format, body) if rows[0][2] == _checksum(seq, format, body) else None


def drop_after(link: PostgresConnection, seq: int) -> None:
    """Drop images of records that do not exist. They would be taken for images of later records."""
    link.execute("DELETE FROM images WHERE seq > ?", (seq,))


def _checksum(seq: int, format: int, body: bytes) -> str:
    return sha256(b"%d %d " % (seq, format) + body).hexdigest()
