"""How something is asked of a host: by the machine's own ssh client, with one command that is always the same.

What is to be done travels on the standard input: a program, and a request as JSON. Nothing that anybody wrote becomes
part of a command line on the other side. Knows ssh and its exit codes; knows nothing of what is asked.
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

from corral.backends.carriers.sending import FIRST_WORDS, answer_in, installing, sent
from corral.backends.carriers.shells import HostAway, HostUnfit
from corral.backends.carriers.ssh.settings import Host, Settings
from corral.backends.carriers.wheels import Agent

_UNREACHED = 255
_CONNECT_S, _ANSWER_S, _INSTALL_S, _KEPT_S = 5, 30.0, 300.0, 30
_NO_PYTHON = (126, 127)
_PATH_MAX = 107 - 50 - 17  # of the path of a socket; ssh adds a digest of the place, and for a moment some letters


def missing(_settings: Settings | None = None) -> str:
    return "" if shutil.which("ssh") else "there is no ssh client; as root: apt-get install openssh-client"


class SshShell:
    """``client``: the ssh program. A connection is kept open for a while and used again, so that looking at many hosts
    costs little. It is used only by who says the same of keys."""

    is_keeping = False

    def __init__(self, settings: Settings, client: str = "ssh") -> None:
        self._settings, self._client = settings, client
        terms = f"{settings.identity}\0{settings.known_hosts}\0{settings.accept_new}"
        folder, mark = _sockets(), hashlib.sha256(terms.encode()).hexdigest()[:8]
        self._socket = f"{folder}/{mark}-%C" if folder else ""

    def close(self) -> None:
        """Connections that nobody uses end by themselves."""

    def hosts(self) -> list[Host]:
        return [self._settings.whole(host) for host in self._settings.hosts]

    def ask(self, host: Any, act: str, **request: Any) -> dict[str, Any]:
        return self._asked(host, {"act": act, **request}, b"", _ANSWER_S)

    def install(self, host: Any, agent: Agent) -> dict[str, Any]:
        request, body = installing(agent)
        return self._asked(host, request, body, _INSTALL_S)

    def _asked(self, host: Host, request: dict[str, Any], body: bytes, within_s: float) -> dict[str, Any]:
        said = sent({**request, "folder": host.folder}, body)
        try:
            done = subprocess.run(self.command(host), input=said, capture_output=True, timeout=within_s, check=False)
        except subprocess.TimeoutExpired:
            raise HostAway(f"{host} did not answer within {within_s:g} s") from None
        except OSError as wrong:
            raise HostAway(f"ssh cannot be run: {wrong.strerror}; {missing()}") from None
        answer = answer_in(done.stdout)
        if answer is None:
            raise _trouble(host, done)
        if "fault" in answer:
            raise HostUnfit(f"{host}: {answer['fault']}")
        return answer

    def command(self, host: Host) -> list[str]:
        said = self._settings
        options = {
            "BatchMode": "yes", "StrictHostKeyChecking": "accept-new" if said.accept_new else "yes",
            "ConnectTimeout": str(_CONNECT_S), "ServerAliveInterval": "5", "ServerAliveCountMax": "3",
            "ClearAllForwardings": "yes", "ForwardAgent": "no", "ForwardX11": "no", "PermitLocalCommand": "no",
            "LogLevel": "ERROR",
        }  # fmt: skip
        if self._socket:
            options |= {"ControlMaster": "auto", "ControlPersist": str(_KEPT_S), "ControlPath": self._socket}
        if said.known_hosts:
            options["UserKnownHostsFile"] = f'"{said.known_hosts}"'
        words = [self._client, "-T", *(f"-o{name}={value}" for name, value in options.items())]
        words += ["-oIdentitiesOnly=yes", "-i", said.identity] if said.identity else []
        words += ["-l", host.user] if host.user else []
        python = shlex.quote(host.python)
        return [*words, "-p", str(host.port), "--", host.host, f"exec {python} -I -S -c {shlex.quote(FIRST_WORDS)}"]


def _sockets() -> str:
    """A folder for the sockets of open connections, which nobody else can enter; empty: there can be none."""
    folder = os.path.join(tempfile.gettempdir(), f"corral-ssh-{os.geteuid()}")
    with suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.lstat(folder)
        is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077
        return folder if is_ours and len(folder) <= _PATH_MAX else ""
    return ""


def _trouble(host: Host, done: subprocess.CompletedProcess[bytes]) -> HostAway | HostUnfit:
    words = " ".join(done.stderr.decode("utf-8", "replace").split())[-300:] or f"ssh ended with {done.returncode}"
    if done.returncode in _NO_PYTHON:
        todo = "install Python 3.11 or newer there, or say python: PATH of that host"
        return HostUnfit(f"{host}: {host.python} cannot be run ({words}); {todo}")
    if done.returncode != _UNREACHED:
        return HostAway(f"{host}: {words}")
    if "host key" in words.lower():
        todo = (
            "the key of the host is not the known one, or none is known: ask its owner for the key and add it to "
            "known_hosts, or say accept_new for hosts that were never met"
        )
        return HostAway(f"{host}: {words}; {todo}")
    if "Permission denied" in words:
        return HostAway(f"{host}: {words}; add the server's public key to authorized_keys of that account")
    return HostAway(f"{host}: {words}")
