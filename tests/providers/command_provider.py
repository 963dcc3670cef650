"""Your own commands as a harness for providers: those of the example, on a folder."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from corral.providers.base import Provider
from corral.providers.command import CommandSettings, opened

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "hooks" / "folder.py"
_words = count(1)


def hook_settings(folder: Path, nodes: int, gpus: str = "2xH100") -> CommandSettings:
    package = str(Path(sys.modules["corral"].__file__ or "").resolve().parents[1])
    words = {what: (sys.executable, str(SCRIPT), what, str(folder)) for what in ("acquire", "release", "look")}
    env = {"FOLDER_NODES": str(nodes), "FOLDER_GPUS": gpus, "PYTHONPATH": package}
    return CommandSettings(acquire=words["acquire"], release=words["release"], look=words["look"], env=env)


class CommandHarness:
    def __init__(self, folder: Path) -> None:
        self.folder, self.word = folder / "cloud", f"t{os.getpid()}x{next(_words)}"
        self.folder.mkdir()

    def provider(self) -> Provider:
        return opened(hook_settings(self.folder, 2), self.word)

    def lose_next_answer(self) -> None:
        (self.folder / "lose").touch()

    def go_away(self) -> None:
        (self.folder / "away").touch()

    def come_back(self) -> None:
        (self.folder / "away").unlink()

    def take_away(self, pilot: str) -> None:
        os.kill(self._told(pilot)["pid"], signal.SIGKILL)

    def count(self, pilot: str) -> int:
        found = (self.folder / f"{self.word}-{pilot}" / "told").exists()
        return int(found and self._told(pilot)["phase"] != "ended")

    def _told(self, pilot: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / f"{self.word}-{pilot}" / "told").read_text())
        return found

    def close(self) -> None:
        end_all(self.folder)


def end_all(folder: Path) -> None:
    """Every process of the cloud."""
    pids = [pid for told in folder.glob("*/told") if (pid := json.loads(told.read_text()).get("pid"))]
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
    time.sleep(0.1)
