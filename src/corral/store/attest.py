"""Attestations: signed heads of the journal (number and hash of a record, Ed25519), to be stored elsewhere.

A journal that was rolled back, or rewritten by a user who can write its files, does not contain the heads that were
attested before. Knows bytes and lines; knows no journal and no clock. The cryptographic library is loaded on first use:
a server that does not attest starts without it.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from corral.io.files import write_file
from corral.store.journal import JournalHead

KEY_FILE = "attest.key"  # in the data folder, if no other file is configured
LINE_MAX = 4096
_WHAT = b"corral journal head\0"


class BadAttestation(Exception):
    """Why a line, or a key, cannot be used."""


class Attestation(Struct, frozen=True):
    """One signed head, as it is written: hash, key and signature in hexadecimal."""

    seq: int
    hash: str
    at_ms: int
    key: str
    signature: str

    @property
    def head(self) -> JournalHead:
        return JournalHead(self.seq, bytes.fromhex(self.hash))


class Signer:
    def __init__(self, secret: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        self.public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex()

    def attest(self, head: JournalHead, at_ms: int) -> Attestation:
        signature = self._key.sign(_signed(head.seq, head.hash.hex(), at_ms)).hex()
        return Attestation(head.seq, head.hash.hex(), at_ms, self.public, signature)


def signer_of(path: Path) -> Signer:
    """The signer whose secret key is in a file; the file is created if there is none."""
    if not path.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(path, base64.b64encode(os.urandom(32)) + b"\n")
    try:
        mode, text = stat.S_IMODE(path.stat().st_mode), path.read_bytes()[:LINE_MAX]
    except OSError as wrong:
        raise BadAttestation(f"the key {path} cannot be read: {wrong.strerror}") from None
    try:
        secret = base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        secret = b""
    if len(secret) != 32:
        raise BadAttestation(f"{path} is not a key: a key is 32 bytes in base64")
    if mode & 0o077:
        raise BadAttestation(f"the key {path} can be read by other users (mode {mode:04o}): chmod 600 {path}")
    return Signer(secret)


def line_of(attestation: Attestation) -> bytes:
    return msgspec.json.encode(attestation) + b"\n"


def read_lines(lines: Iterable[bytes], public: str = "") -> Iterator[Attestation]:
    """The attestations of a file, each checked. ``public``: the only key that may have signed them, in hexadecimal.
    Raises `BadAttestation`."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    for number, line in enumerate(lines, 1):
        try:
            found = msgspec.json.decode(line[:LINE_MAX], type=Attestation)
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(found.key))
            key.verify(bytes.fromhex(found.signature), _signed(found.seq, found.hash, found.at_ms))
        except (msgspec.DecodeError, ValueError, InvalidSignature):
            raise BadAttestation(f"line {number} does not match its signature") from None
        if public and found.key != public:
            raise BadAttestation(f"line {number} was signed with another key: {found.key}")
        yield found


def _signed(seq: int, hash: str, at_ms: int) -> bytes:
    return _WHAT + f"{seq} {hash} {at_ms}".encode()
