"""Images on disk: one file each, written atomically, checked when read; the last few are kept.

Knows files and checksums. Does not know the content of an image. Needs no lease: every server that follows the journal
may save one, since an image only saves folding the records.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path

import msgspec

from corral.io.files import make_folder, write_file
from corral.store.journal import NO_SEQ, StoredImage

IMAGES_KEPT = 3

_NAME = re.compile(r"(\d{20})\.image")


class _Front(msgspec.Struct):
    """The first line of the file; the encoded state follows."""

    seq: int
    format: int
    size: int
    sha256: str


class ImageFolder:
    """The images of one journal."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def save(self, image: StoredImage) -> None:
        """Save an image and drop all but the last few."""
        front = _Front(image.seq, image.format, len(image.body), _checksum(image.seq, image.format, image.body))
        make_folder(self._folder)
        write_file(self._path(image.seq), msgspec.json.encode(front) + b"\n" + image.body)
        for seq in self.seqs()[IMAGES_KEPT:]:
            self._path(seq).unlink(missing_ok=True)

    def newest(self, below: int = NO_SEQ) -> StoredImage | None:
        """The newest intact image of a record below that number; damaged ones are skipped."""
        for seq in self.seqs():
            image = self.load(seq) if seq < below else None
            if image is not None:
                return image
        return None

    def drop_after(self, seq: int) -> None:
        """Drop images of records that do not exist. They would be taken for images of later records."""
        for other in self.seqs():
            if other > seq:
                self._path(other).unlink(missing_ok=True)

    def seqs(self) -> list[int]:
        """The numbers of the records with images, newest first."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return sorted((int(found[1]) for name in names if (found := _NAME.fullmatch(name))), reverse=True)

    def load(self, seq: int) -> StoredImage | None:
        """One image; None if it is damaged."""
        try:
            content = self._path(seq).read_bytes()
            line, _, body = content.partition(b"\n")
            front = msgspec.json.decode(line, type=_Front)
        except (OSError, msgspec.DecodeError):
            return None
        if (front.seq, front.size, front.sha256) != (seq, len(body), _checksum(seq, front.format, body)):
            return None
        return StoredImage(seq, front.format, body)

    def _path(self, seq: int) -> Path:
        return self._folder / f"{seq:020}.image"


def _checksum(seq: int, format: int, body: bytes) -> str:
    digest = sha256(b"%d %d " % (seq, format))
    digest.update(body)
    return digest.hexdigest()
