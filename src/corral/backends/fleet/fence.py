"""The highest epoch that was ever heard of here, kept on disk: whoever speaks for an earlier one is refused.

Knows a file and a number.
"""

from __future__ import annotations

from pathlib import Path

from corral.backends.base import StaleEpoch
from corral.backends.local.task import records


class Fence:
    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.epoch = int(path.read_bytes())
        except (FileNotFoundError, ValueError):
            self.epoch = 0

    def pass_through(self, epoch: int) -> None:
        """Nobody of an earlier epoch passes from here on, whatever happens to this machine."""
        if epoch < self.epoch:
            raise StaleEpoch(epoch, self.epoch)
        if epoch > self.epoch:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            records.write_whole(str(self._path), f"{epoch}\n".encode())
            records.make_durable(str(self._path))
            self.epoch = epoch
