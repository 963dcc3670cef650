"""Values of secrets: one file each, readable by the server alone. Names and times are in the journal, values are not.

Knows files. Who may set or use a secret is decided by others.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from corral.core.people.accounts import Accounts


class SecretStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, queue: str, name: str, value: str) -> None:
        """Keep a value, durably. The old one, if any, is replaced in one step."""
        target = self._file(queue, name)
        draft = target.with_suffix(".new")
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(handle, value.encode())
            os.fsync(handle)
        finally:
            os.close(handle)
        draft.replace(target)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def get(self, queue: str, name: str) -> str | None:
        try:
            return self._file(queue, name).read_text()
        except FileNotFoundError:
            return None

    def drop(self, queue: str, name: str) -> None:
        self._file(queue, name).unlink(missing_ok=True)

    def reveal(self, accounts: Accounts, queue: str, name: str) -> str | None:
        """The value that a job of this queue gets: of the queue itself, or of the nearest above it that has one."""
        while True:
            if (queue, name) in accounts.secrets:
                return self.get(queue, name)
            if not queue:
                return None
            queue = queue.rpartition("/")[0]

    def _file(self, queue: str, name: str) -> Path:
        return self._folder / sha256(f"{queue}\0{name}".encode()).hexdigest()
