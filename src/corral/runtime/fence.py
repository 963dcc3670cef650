"""The highest epoch ever seen here, stored on disk: servers of an earlier epoch are refused.

Knows a file and a number.
"""

from __future__ import annotations

from pathlib import Path

from corral.io.files import write_file
from corral.runtime.base import StaleEpoch


class Fence:
    """``epoch``: the highest that this object has seen. Another process may have stored a higher one meanwhile."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.epoch = self.stored()

    def stored(self) -> int:
        """The highest epoch on disk. 0: there is none."""
        try:
            return int(self._path.read_bytes())
        except (FileNotFoundError, ValueError):
            return 0

    def pass_through(self, epoch: int) -> None:
        """Refuse every earlier epoch from now on, also after a restart of this machine."""
        if epoch < self.epoch:
            raise StaleEpoch(epoch, self.epoch)
        if epoch > self.epoch:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(self._path, f"{epoch}\n".encode())
            self.epoch = epoch
