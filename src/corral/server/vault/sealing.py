"""How a value is sealed: AES-256 in Galois/counter mode, bound to the queue and name that it belongs to.

Knows bytes. A sealed value begins with a mark and the number of its key; a value without the mark was kept by an older
server and is read as it is. A value that was moved under another name does not open.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_MARK = b"\x00corral-sealed-1\x00"
_NUMBER_BYTES, _NONCE_BYTES = 8, 12


class CannotOpen(Exception):
    """Why a sealed value cannot be read."""


class Sealer:
    """``keys``: the first seals, all of them open. Without any, only values that were never sealed can be read."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._ciphers = {_number(key): AESGCM(key) for key in keys}
        self._newest = _number(keys[0]) if keys else b""

    @property
    def can_seal(self) -> bool:
        return bool(self._newest)

    def seal(self, queue: str, name: str, value: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        body = self._ciphers[self._newest].encrypt(nonce, value.encode(), _place(queue, name))
        return b"".join((_MARK, self._newest, nonce, body))

    def open(self, queue: str, name: str, kept: bytes) -> str:
        if not kept.startswith(_MARK):
            return kept.decode()
        at = len(_MARK)
        number, nonce = kept[at : at + _NUMBER_BYTES], kept[at + _NUMBER_BYTES : at + _NUMBER_BYTES + _NONCE_BYTES]
        cipher = self._ciphers.get(number)
        if cipher is None:
            raise CannotOpen(f"it is sealed with key {number.hex()}, which is not in the key file")
        try:
            return cipher.decrypt(nonce, kept[at + len(number) + len(nonce) :], _place(queue, name)).decode()
        except (InvalidTag, ValueError):
            raise CannotOpen("it was damaged, or is the value of another secret") from None

    def is_current(self, kept: bytes) -> bool:
        """Whether it is sealed with the newest key."""
        return kept.startswith(_MARK + self._newest) if self._newest else True


def _number(key: bytes) -> bytes:
    return sha256(b"corral key " + key).digest()[:_NUMBER_BYTES]


def _place(queue: str, name: str) -> bytes:
    return f"{queue}\0{name}".encode()
