"""Hosts to be reached by SSH: folders of this machine, behind an sshd of the tests' own on loopback, with keys of its
own. Knows OpenSSH's programs; without them, the error says what is missing."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from corral.providers.base import Provider
from corral.providers.bootstrap.bundle import AgentBundle
from corral.providers.bootstrap.host_messages import HostAnswer, HostRequest, StartRequest
from corral.providers.hosts import HostProvider
from corral.providers.remote_exec import HostAway, RemoteExec
from corral.providers.ssh.remote_exec import SshExec
from corral.providers.ssh.settings import SshHost, SshSettings
from tests.database import ending_with_us

_READY_S = 20.0
# SHLVL: bash then takes itself for one within another, and reads no start-up file of this account.
_SSHD = """
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
MaxSessions 100
SetEnv SHLVL=9
"""


class Sshd:
    """One that this account can log in to, and no other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, _free_port()
        self._program = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
        if self._program is None or shutil.which("ssh") is None:
            pytest.skip("OpenSSH's server is not installed; as root, tools/services.sh ssh installs it")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it drops its rights
        for name in ("host_key", "key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / name)]
            subprocess.run(command, check=True)
        (folder / "sshd_config").write_text(_SSHD.format(folder=folder, port=self.port))
        key = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key}")
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        assert self._program is not None
        with (self.folder / "sshd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*ending_with_us(), self._program, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        end = time.monotonic() + _READY_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            assert self._process.poll() is None, (self.folder / "sshd.log").read_text()
            assert time.monotonic() < end, "sshd does not listen"
            time.sleep(0.01)

    def stop(self) -> None:
        """With the connections that it has."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                for pid in [*_children(self._process.pid), self._process.pid]:
                    os.kill(pid, signal.SIGTERM)
            self._process.wait(20)
            self._process = None

    def settings(self, hosts: tuple[SshHost, ...], **said: Any) -> SshSettings:
        usual: dict[str, Any] = {
            "user": getpass.getuser(), "port": self.port, "python": sys.executable,
            "identity": str(self.folder / "key"),
            "known_hosts": str(self.folder / "known_hosts"), "grace_ms": 5_000,
        }  # fmt: skip
        return SshSettings(hosts=hosts, **(usual | said))


class Losing:
    """A shell that may lose the answer to what it had carried out."""

    def __init__(self, shell: RemoteExec) -> None:
        self._shell, self.is_keeping = shell, shell.is_keeping
        self.is_losing = False
        self._one = threading.Lock()
        self.hosts = shell.hosts

    def ask(self, host: Any, request: HostRequest, is_met: bool = True) -> HostAnswer:
        answer = self._shell.ask(host, request, is_met)
        with self._one:
            if isinstance(request, StartRequest) and self.is_losing:
                self.is_losing = False
                raise HostAway("the answer was lost")
        return answer

    def install(self, host: Any, agent: AgentBundle) -> HostAnswer:
        return self._shell.install(host, agent)

    def close(self) -> None:
        """Several providers share it."""


class SshHarness:
    def __init__(self, folder: Path) -> None:
        self.sshd = Sshd(folder / "sshd")
        self.folders = [folder / "m1", folder / "m2"]
        hosts = tuple(SshHost(host="127.0.0.1", folder=str(each), fake_gpus="2xH100") for each in self.folders)
        self.settings = self.sshd.settings(hosts)
        assert self.settings.fault() == ""
        self._real = SshExec(self.settings)
        self._shell = Losing(self._real)
        self._providers: list[HostProvider] = []

    def provider(self) -> Provider:
        self._providers.append(HostProvider(self.settings, "test", self._shell))
        return self._providers[-1]

    def lose_next_answer(self) -> None:
        self._shell.is_losing = True

    def go_away(self) -> None:
        self.sshd.stop()

    def come_back(self) -> None:
        self.sshd.start()

    def take_away(self, pilot: str) -> None:
        for folder in self.folders:
            if pilot_of(folder) == pilot:
                os.kill(int((folder / "keeper.lock").read_text()), signal.SIGTERM)

    def count(self, pilot: str) -> int:
        return len([pid for folder in self.folders for pid in agents_in(folder, pilot)])

    def close(self) -> None:
        for provider in self._providers:
            provider.close()
        for folder in self.folders:
            clean(folder)
        self.sshd.stop()
        self._real.close()


def pilot_of(folder: Path) -> str:
    try:
        return str(json.loads((folder / "place.json").read_text())["pilot"])
    except (OSError, ValueError):
        return ""


def agents_in(folder: Path, pilot: str = "") -> list[int]:
    """Processes that are the agent of a folder, under this name if one is given."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if f"{folder}/pilot".encode() in words and (not pilot or f"--name={pilot}".encode() in words):
                found.append(int(entry.name))
    return found


def clean(folder: Path) -> None:
    """End what a test has left in a folder: the keeper, and with it the agent."""
    with suppress(OSError, ValueError):
        keeper = int((folder / "keeper.lock").read_text())
        if f"{folder}/keeper.py".encode() in Path(f"/proc/{keeper}/cmdline").read_bytes():
            os.kill(keeper, signal.SIGKILL)
    end = time.monotonic() + 20
    while agents_in(folder) and time.monotonic() < end:
        time.sleep(0.02)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
