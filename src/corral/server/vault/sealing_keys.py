"""Keys that encrypt the values of secrets: from a key file, or from a credential of systemd.

Knows files and modes. A key file has one key of 32 bytes in base64 on each line. The first encrypts, all of them
decrypt, so that a new key can be added in front while values of older keys exist. Lines that start with # are comments.
"""

from __future__ import annotations

import base64
import binascii
import os
import stat
from pathlib import Path

from corral.io.files import write_file

KEY_FILE = "secrets.key"  # in the data folder, if no other file is configured
CREDENTIAL = "corral-secrets-key"  # the name of systemd's credential
KEY_BYTES = 32
_FILE_BYTES_MAX = 64 << 10


class BadKey(Exception):
    """What is wrong with a key file, and what to do."""


def load_keys(stated: str, data: Path, *, is_shared: bool) -> tuple[bytes, ...]:
    """The keys of a server: from the configured file, from systemd's credential, or from the data folder, where one is
    created if there is none. Servers that share a database must share their keys, so none is created for them."""
    if stated:
        return read_keys(Path(stated))
    handed = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if handed and (Path(handed) / CREDENTIAL).exists():
        return read_keys(Path(handed) / CREDENTIAL)
    own = data / KEY_FILE
    if own.exists():
        return read_keys(own)
    if is_shared:
        return ()
    add_key(own)
    return read_keys(own)


def read_keys(path: Path) -> tuple[bytes, ...]:
    """All keys of a file; the first one encrypts."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_FILE_BYTES_MAX)
    except OSError as wrong:
        raise BadKey(
            f"the key file of secrets, {path}, cannot be read: {wrong.strerror}. Check secrets.key_file"
        ) from None
    if mode & 0o077:
        raise BadKey(f"the key file of secrets, {path}, can be read by other users (mode {mode:04o}): chmod 600 {path}")
    keys = tuple(_decoded(line, path) for line in text.splitlines() if line.strip() and not line.startswith(b"#"))
    if not keys:
        raise BadKey(f"the key file {path} contains no key. Create one: corral secret new-key {path}")
    return keys


def _decoded(line: bytes, path: Path) -> bytes:
    try:
        key = base64.b64decode(line.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise BadKey(f"the key file {path} has an invalid line: each key is {KEY_BYTES} bytes in base64")
    return key


def add_key(path: Path) -> None:
    """Add a new key in front of the keys of a file; the file is created if there is none."""
    before = path.read_bytes() if path.exists() else b""
    if before:
        read_keys(path)  # raises if it is not a key file
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_file(path, base64.b64encode(os.urandom(KEY_BYTES)) + b"\n" + before)
