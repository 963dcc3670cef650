"""The store of secret values, encrypted: in files of the data folder, or in a shared database.

Names and times are in the journal, values are not. Rights are checked elsewhere.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Protocol

import structlog

from corral.core.accounts.accounts import Accounts
from corral.io.files import write_file
from corral.server.vault.sealing import CannotOpen, Sealer

log = structlog.get_logger(__name__)


class NoKey(Exception):
    """There is no key to encrypt a value with; the text says what to do."""


class Values(Protocol):
    """Stores bytes by queue and name. Each change is durable when it returns."""

    def put(self, queue: str, name: str, value: bytes) -> None: ...
    def get(self, queue: str, name: str) -> bytes | None: ...
    def drop(self, queue: str, name: str) -> None: ...


class SecretStore:
    def __init__(self, values: Values, sealer: Sealer) -> None:
        self._values, self._sealer = values, sealer

    def put(self, queue: str, name: str, value: str) -> None:
        """Store a value durably. An old one is replaced atomically."""
        if not self._sealer.can_seal:
            raise NoKey(
                "this server has no key for secrets. Servers on a shared database need a common one: create it with "
                "`corral secret new-key FILE`, copy it to every server, and set it in the configuration: "
                "secrets: {key_file: FILE}"
            )
        self._values.put(queue, name, self._sealer.seal(queue, name, value))

    def get(self, queue: str, name: str) -> str | None:
        """The value; None if there is none. Raises `CannotOpen`."""
        kept = self._values.get(queue, name)
        return None if kept is None else self._sealer.open(queue, name, kept)

    def drop(self, queue: str, name: str) -> None:
        self._values.drop(queue, name)

    def reveal(self, accounts: Accounts, queue: str, name: str) -> str | None:
        """The value that a job of this queue gets: of the queue itself, or of the nearest one above it. A value that
        cannot be decrypted is treated as missing and logged as an error."""
        while (queue, name) not in accounts.secrets:
            if not queue:
                return None
            queue = queue.rpartition("/")[0]
        try:
            return self.get(queue, name)
        except (CannotOpen, UnicodeDecodeError) as wrong:
            log.error("secret_unreadable", queue=queue, secret=name, error=str(wrong))
            return None

    def seal_again(self, accounts: Accounts) -> int:
        """Encrypt with the newest key all values of older keys, and plain values. Returns their number."""
        found = 0
        for queue, name in list(accounts.secrets):
            kept = self._values.get(queue, name)
            if kept is None or self._sealer.is_current(kept):
                continue
            try:
                self._values.put(queue, name, self._sealer.seal(queue, name, self._sealer.open(queue, name, kept)))
                found += 1
            except (CannotOpen, UnicodeDecodeError) as wrong:
                log.error("secret_unreadable", queue=queue, secret=name, error=str(wrong))
        return found


class FileValues:
    """One file for each value, readable by the server only."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, queue: str, name: str, value: bytes) -> None:
        write_file(self._file(queue, name), value)

    def get(self, queue: str, name: str) -> bytes | None:
        try:
            return self._file(queue, name).read_bytes()
        except FileNotFoundError:
            return None

    def drop(self, queue: str, name: str) -> None:
        self._file(queue, name).unlink(missing_ok=True)

    def _file(self, queue: str, name: str) -> Path:
        return self._folder / sha256(f"{queue}\0{name}".encode()).hexdigest()
