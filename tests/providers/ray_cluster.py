"""A Ray of the tests' own, for all tests of a run: made by the first that needs it, used by one test at a time, also
where tests run in several processes. Knows where Ray's environment is; without one, it says how to get it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest

from corral.providers.base import Provider
from corral.providers.hosts import HostProvider
from corral.providers.ray import RaySettings
from corral.providers.ray.bridge import Bridge
from corral.providers.ray.remote_exec import RayExec
from tests.providers.ssh_hosts import Losing, agents_in, pilot_of

ROOT = Path(__file__).resolve().parents[2]
_RAY_PROCESSES = ROOT / "tests/providers/ray_processes.py"
MACHINES = ("m1", "m2", "m3", "m4")
_READY_S = 120.0
_started: list[subprocess.Popen[bytes]] = []  # it ends after us, by itself


def ray_python() -> str:
    """Of the environment that has Ray."""
    stated = os.environ.get("CORRAL_RAY_PYTHON", "")
    usual = ROOT / ".venv-ray" / "bin" / "python"
    if not stated and not usual.exists():
        pytest.skip("Ray is not installed; tools/services.sh ray makes an environment for it")
    return stated or str(usual)


class RayBed:
    """What the bed reports about itself is its first answer. Held by one test at a time, until `let_go`."""

    def __init__(self) -> None:
        python = ray_python()
        owner = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
        self.folder = Path(tempfile.gettempdir()) / f"corral-ray-{owner}"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._lock: IO[str] = (self.folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        if not (self.folder / "bed.json").exists():
            self._start(python, owner)
        self.told: dict[str, Any] = json.loads((self.folder / "bed.json").read_text())
        for machine, raylet in self.told["raylets"].items():  # a test before may have killed it
            if not Path(f"/proc/{raylet}").exists():
                self.do("start", machine)

    def _start(self, python: str, owner: int) -> None:
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                [python, str(_RAY_PROCESSES), str(self.folder), str(len(MACHINES)), str(owner)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        _started.append(process)
        end = time.monotonic() + _READY_S
        while not (self.folder / "bed.json").exists():
            assert process.poll() is None, (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < end, "Ray does not come up"
            time.sleep(0.05)

    def do(self, *words: str) -> None:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(self.folder / "bed.sock"))
            line.sendall(" ".join(words).encode())
            self.told = json.loads(line.recv(1 << 16))
        (self.folder / "bed.json").write_text(json.dumps(self.told))

    def settings(self, folder: Path, **said: Any) -> RaySettings:
        """Everything of a node lies in the folder of its machine."""
        usual: dict[str, Any] = {
            "address": self.told["address"], "python": self.told["python"], "token_file": str(self.folder / "token"),
            "has_head": True, "folder": f"{folder}/{{machine}}", "grace_ms": 5_000,
        }  # fmt: skip
        return RaySettings(**(usual | said))

    def let_go(self) -> None:
        self._lock.close()


def clean(folders: list[Path]) -> None:
    """End what a test has left: a keeper without a place ends its actor, and the agent ends with its keeper."""
    for folder in folders:
        with suppress(OSError, ValueError):
            (folder / "place.json").unlink()
            keeper = int((folder / "keeper.lock").read_text())
            if f"{folder}/keeper.py".encode() in Path(f"/proc/{keeper}/cmdline").read_bytes():
                os.kill(keeper, signal.SIGKILL)
    end = time.monotonic() + 20
    while any(map(agents_in, folders)) and time.monotonic() < end:
        time.sleep(0.02)


class RayHarness:
    def __init__(self, folder: Path) -> None:
        self._bed = RayBed()
        self.folders = [folder / machine for machine in MACHINES[:2]]
        self.settings = self._bed.settings(folder, labels={"pool": "a"}, fake_gpus="2xH100")
        assert self.settings.fault() == ""
        self._bridge = Bridge(self.settings, folder.name)
        self._shell = Losing(RayExec(self.settings, self._bridge))

    def provider(self) -> Provider:
        return HostProvider(self.settings, "test", self._shell)

    def lose_next_answer(self) -> None:
        self._shell.is_losing = True

    def go_away(self) -> None:
        os.kill(self._bed.told["gcs"], signal.SIGSTOP)

    def come_back(self) -> None:
        os.kill(self._bed.told["gcs"], signal.SIGCONT)

    def take_away(self, pilot: str) -> None:
        for folder in self.folders:
            if pilot_of(folder) == pilot:
                os.kill(int((folder / "keeper.lock").read_text()), signal.SIGTERM)

    def count(self, pilot: str) -> int:
        return len([pid for folder in self.folders for pid in agents_in(folder, pilot)])

    def close(self) -> None:
        try:
            self.come_back()
            clean(self.folders)
            self._bridge.close()
        finally:
            self._bed.let_go()
