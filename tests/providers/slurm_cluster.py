"""Slurm as a harness for providers: one for all tests of a run, each with a word of its own for its pilots."""

from __future__ import annotations

import atexit
import os
import sys
import time
from itertools import count
from pathlib import Path

import pytest

from corral.providers.base import Provider
from corral.providers.slurm import SlurmSettings, opened
from tests.providers.private_slurm import PrivateSlurm, why_not

_NODES = 2
_words = count(1)
_shared: list[PrivateSlurm] = []

#: Slurm's sbatch, except for an answer that gets lost where a file says so.
_SBATCH = """#!/bin/sh
PATH=${PATH#*:}
answer=$(sbatch "$@") || exit
if rm "$(dirname "$0")/lose" 2>/dev/null; then
    echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2
    exit 1
fi
echo "$answer"
"""


def shared_slurm() -> PrivateSlurm:
    if why := why_not():
        pytest.skip(f"Slurm: {why}")
    if not _shared:
        slurm = PrivateSlurm(_NODES, gpus=4)
        slurm.start()
        atexit.register(slurm.stop)
        script = slurm.folder / "bin" / "sbatch"
        script.write_text(_SBATCH)
        script.chmod(0o755)
        _shared.append(slurm)
    return _shared[0]


def pilot_settings(slurm: PrivateSlurm, user: str = "", **said: object) -> SlurmSettings:
    """As the account that runs the tests: the program they try, from where they have it."""
    package = Path(sys.modules["corral"].__file__ or "").resolve().parents[1]
    common = {
        "slurm_conf": str(slurm.conf), "folder": str(slurm.folder / "spool"), "pythonpath": str(package),
        "corral": (sys.executable, "-m", "corral"), "fake_gpus": f"{slurm.gpus}xH100", "user": user,
    }  # fmt: skip
    return SlurmSettings(**{**common, **said})  # type: ignore[arg-type]


class SlurmHarness:
    def __init__(self, _folder: Path) -> None:
        self.slurm = shared_slurm()
        self.word = f"t{os.getpid()}x{next(_words)}"
        self._path = os.environ["PATH"]
        os.environ["PATH"] = self.slurm.env["PATH"]

    def provider(self) -> Provider:
        return opened(pilot_settings(self.slurm), self.word)

    def lose_next_answer(self) -> None:
        (self.slurm.folder / "bin" / "lose").touch()

    def go_away(self) -> None:
        self.slurm.stop_controller()

    def come_back(self) -> None:
        self.slurm.start_controller()

    def take_away(self, pilot: str) -> None:
        self.slurm.command("scancel", f"--name=corral-{self.word}-{pilot}")

    def count(self, pilot: str) -> int:
        told = self.slurm.command("squeue", "--noheader", f"--name=corral-{self.word}-{pilot}", "--format=%i")
        return len(told.split())

    def close(self) -> None:
        self.slurm.command("scancel", "--signal=KILL", "--full", "--user=root")
        self.slurm.command("scancel", "--user=root")
        end = time.monotonic() + 30
        while self.slurm.command("squeue", "--noheader", "--format=%i").strip() and time.monotonic() < end:
            time.sleep(0.1)
        os.environ["PATH"] = self._path
