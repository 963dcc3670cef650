"""Runs requests on a host with the machine's own ssh client, with one command that is always the same.

The program and the request are sent on the standard input, as JSON. No user input becomes part of a command line on the
host. Knows ssh and its exit codes, not the requests.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import stat
import subprocess
import tempfile
from contextlib import suppress
from typing import Any

from corral.providers.bootstrap.bundle import AgentBundle
from corral.providers.bootstrap.host_messages import HostAnswer, HostRequest
from corral.providers.bootstrap.payload import FIRST_WORDS, install_request, payload
from corral.providers.remote_exec import HostAway, HostUnfit, checked_answer
from corral.providers.ssh.settings import SshHost, SshSettings

_UNREACHED = 255
_CONNECT_S = 5
_ANSWER_S = 30.0
_INSTALL_S = 300.0
_KEPT_S = 30
_NO_PYTHON = (126, 127)
_PATH_MAX = 107 - 50 - 17  # of the path of a socket; ssh adds a digest, and some letters while it connects


def missing(_settings: SshSettings | None = None) -> str:
    return "" if shutil.which("ssh") else "there is no ssh client; run as root: apt-get install openssh-client"


class SshExec:
    """``client``: the ssh program. A connection is kept open for a while and reused, so that looking at many hosts is
    cheap. Only fleets with the same settings of keys share it."""

    is_keeping = False

    def __init__(self, settings: SshSettings, client: str = "ssh") -> None:
        self._settings, self._client = settings, client
        terms = f"{settings.identity}\0{settings.known_hosts}\0{settings.accept_new}"
        folder, mark = _sockets(), hashlib.sha256(terms.encode()).hexdigest()[:8]
        self._socket = f"{folder}/{mark}-%C" if folder else ""

    def close(self) -> None:
        """Unused connections end by themselves."""

    def hosts(self) -> list[SshHost]:
        return [self._settings.whole(host) for host in self._settings.hosts]

    def ask(self, host: Any, request: HostRequest, is_met: bool = True) -> HostAnswer:
        del is_met  # the host itself always answers
        return self._asked(host, request, b"", _ANSWER_S)

    def install(self, host: Any, agent: AgentBundle) -> HostAnswer:
        request, body = install_request(agent)
        return self._asked(host, request, body, _INSTALL_S)

    def _asked(self, host: SshHost, request: HostRequest, body: bytes, within_s: float) -> HostAnswer:
        data = payload(request, host.folder, body)
        try:
            done = subprocess.run(self.command(host), input=data, capture_output=True, timeout=within_s, check=False)
        except subprocess.TimeoutExpired:
            raise HostAway(f"{host} did not answer within {within_s:g} s") from None
        except OSError as wrong:
            raise HostAway(f"cannot run ssh: {wrong.strerror}; {missing()}") from None
        answer = checked_answer(host, done.stdout)
        if answer is None:
            raise _trouble(host, done)
        return answer

    def command(self, host: SshHost) -> list[str]:
        settings = self._settings
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "accept-new" if settings.accept_new else "yes",
            "ConnectTimeout": str(_CONNECT_S),
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "3",
            "ClearAllForwardings": "yes",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "PermitLocalCommand": "no",
            "LogLevel": "ERROR",
        }
        if self._socket:
            options |= {"ControlMaster": "auto", "ControlPersist": str(_KEPT_S), "ControlPath": self._socket}
        if settings.known_hosts:
            options["UserKnownHostsFile"] = f'"{settings.known_hosts}"'
        words = [self._client, "-T", *(f"-o{name}={value}" for name, value in options.items())]
        words += ["-oIdentitiesOnly=yes", "-i", settings.identity] if settings.identity else []
        words += ["-l", host.user] if host.user else []
        python = shlex.quote(host.python)
        return [*words, "-p", str(host.port), "--", host.host, f"exec {python} -I -S -c {shlex.quote(FIRST_WORDS)}"]


def _sockets() -> str:
    """A directory for the sockets of open connections that only we can enter. Empty: there can be none."""
    folder = os.path.join(tempfile.gettempdir(), f"corral-ssh-{os.geteuid()}")
    with suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
        return folder if is_ours and len(folder) <= _PATH_MAX else ""
    return ""


def _trouble(host: SshHost, done: subprocess.CompletedProcess[bytes]) -> HostAway | HostUnfit:
    words = " ".join(done.stderr.decode("utf-8", "replace").split())[-300:] or f"ssh ended with {done.returncode}"
    if done.returncode in _NO_PYTHON:
        todo = "install Python 3.11 or newer there, or set python: PATH for that host"
        return HostUnfit(f"{host}: cannot run {host.python} ({words}); {todo}")
    if done.returncode != _UNREACHED:
        return HostAway(f"{host}: {words}")
    if "host key" in words.lower():
        todo = (
            "the key of the host has changed or is unknown: ask its owner for the key and add it to known_hosts, or "
            "set accept_new to trust hosts that are new"
        )
        return HostAway(f"{host}: {words}; {todo}")
    if "Permission denied" in words:
        return HostAway(f"{host}: {words}; add the server's public key to authorized_keys of that account")
    return HostAway(f"{host}: {words}")
