"""Encryption of secret values: AES-256-GCM, bound to the queue and name of the secret.

Knows bytes. A sealed value begins with a mark and the id of its key; a value without the mark was stored by an older
server and is read as it is. A value that was moved to another name does not open. The library is loaded when the first
value is sealed or opened: many servers have no secrets, and a start should be fast.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_MARK = b"\x00corral-sealed-1\x00"
_NUMBER_BYTES, _NONCE_BYTES = 8, 12


class CannotOpen(Exception):
    """Why a sealed value cannot be decrypted."""


class Sealer:
    """``keys``: the first encrypts, all of them decrypt. Without any, only values that are not sealed can be read."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {_number(key): key for key in keys}
        self._newest = _number(keys[0]) if keys else b""

    @property
    def can_seal(self) -> bool:
        return bool(self._newest)

    def seal(self, queue: str, name: str, value: str) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        body = _cipher(self._keys[self._newest]).encrypt(nonce, value.encode(), _place(queue, name))
        return b"".join((_MARK, self._newest, nonce, body))

    def open(self, queue: str, name: str, kept: bytes) -> str:
        if not kept.startswith(_MARK):
            return kept.decode()
        at = len(_MARK)
        number, nonce = kept[at : at + _NUMBER_BYTES], kept[at + _NUMBER_BYTES : at + _NUMBER_BYTES + _NONCE_BYTES]
        key = self._keys.get(number)
        if key is None:
            raise CannotOpen(f"the value is encrypted with key {number.hex()}, which is not in the key file")
        from cryptography.exceptions import InvalidTag

        try:
            return _cipher(key).decrypt(nonce, kept[at + len(number) + len(nonce) :], _place(queue, name)).decode()
        except (InvalidTag, ValueError):
            raise CannotOpen("the value is damaged, or belongs to another secret") from None

    def is_current(self, kept: bytes) -> bool:
        """Whether it is sealed with the newest key."""
        return kept.startswith(_MARK + self._newest) if self._newest else True


def _cipher(key: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    return AESGCM(key)


def _number(key: bytes) -> bytes:
    return sha256(b"corral key " + key).digest()[:_NUMBER_BYTES]


def _place(queue: str, name: str) -> bytes:
    return f"{queue}\0{name}".encode()
