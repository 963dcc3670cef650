"""Images in the database: in parts, whole or not at all, checked when read; the last few are kept.

Does not know what an image holds. Needs no right to write: whoever follows the journal may save one, since an image
only saves work that the records could do as well.
"""

from __future__ import annotations

from hashlib import sha256

from corral.store.images import IMAGES_KEPT
from corral.store.journal import NO_SEQ, StoredImage
from corral.store.postgres.database import Link, marked

_PART = 4 << 20


def save(link: Link, image: StoredImage) -> None:
    """Keep an image; older ones but the last few are dropped."""
    parts = [image.body[at : at + _PART] for at in range(0, len(image.body), _PART)] or [b""]
    digest = _checksum(image.seq, image.format, image.body)
    rows = [(image.seq, number, len(parts), image.format, digest, part) for number, part in enumerate(parts)]
    with link.transaction():
        link.execute("DELETE FROM images WHERE seq = ?", (image.seq,))
        insert = "INSERT INTO images (seq, part, parts, format, sha256, body) VALUES (?, ?, ?, ?, ?, ?)"
        link.raw.cursor().executemany(marked(insert), rows)
        for seq in seqs(link)[IMAGES_KEPT:]:
            link.execute("DELETE FROM images WHERE seq = ?", (seq,))


def newest(link: Link, below: int = NO_SEQ) -> StoredImage | None:
    """The newest image that is whole, of a record below that one; a damaged one is passed over."""
    for seq in seqs(link):
        image = load(link, seq) if seq < below else None
        if image is not None:
            return image
    return None


def seqs(link: Link) -> list[int]:
    """The records after which there are images, newest first."""
    return [seq for (seq,) in link.execute("SELECT DISTINCT seq FROM images ORDER BY seq DESC").fetchall()]


def load(link: Link, seq: int) -> StoredImage | None:
    """One image, or None if it is not whole."""
    question = "SELECT parts, format, sha256, body FROM images WHERE seq = ? ORDER BY part"
    rows = link.execute(question, (seq,)).fetchall()
    if not rows or len(rows) != rows[0][0]:
        return None
    format, body = rows[0][1], b"".join(row[3] for row in rows)
    return StoredImage(seq, format, body) if rows[0][2] == _checksum(seq, format, body) else None


def drop_after(link: Link, seq: int) -> None:
    """Drop images of records that are not there. They would pass for images of whatever is written next."""
    link.execute("DELETE FROM images WHERE seq > ?", (seq,))


def _checksum(seq: int, format: int, body: bytes) -> str:
    return sha256(b"%d %d " % (seq, format) + body).hexdigest()
