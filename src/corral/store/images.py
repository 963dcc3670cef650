"""Images on disk: one file each, whole or not at all, checked when read; the last few are kept.

Knows files and checksums. Does not know what an image holds. Needs no lease: whoever follows the journal may save one,
since an image only saves work that the records could do as well.
"""

from __future__ import annotations

import os
import re
from hashlib import sha256
from pathlib import Path

import msgspec

from corral.store.files import make_folder, write_whole
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
        """Keep an image; older ones but the last few are dropped."""
        front = _Front(image.seq, image.format, len(image.body), _checksum(image.seq, image.format, image.body))
        make_folder(self._folder)
        write_whole(self._path(image.seq), msgspec.json.encode(front) + b"\n" + image.body)
        for seq in self.seqs()[IMAGES_KEPT:]:
            self._path(seq).unlink(missing_ok=True)

    def newest(self, below: int = NO_SEQ) -> StoredImage | None:
        """The newest image that is whole, of a record below that one; a damaged one is passed over."""
        for seq in self.seqs():
            image = self.load(seq) if seq < below else None
            if image is not None:
                return image
        return None

    def drop_after(self, seq: int) -> None:
        """Drop images of records that are not there. They would pass for images of whatever is written next."""
        for other in self.seqs():
            if other > seq:
                self._path(other).unlink(missing_ok=True)

    def seqs(self) -> list[int]:
        """The records after which there are images, newest first."""
        try:
            names = os.listdir(self._folder)
        except FileNotFoundError:
            return []
        return sorted((int(found[1]) for name in names if (found := _NAME.fullmatch(name))), reverse=True)

    def load(self, seq: int) -> StoredImage | None:
        """One image, or None if it is not whole."""
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
