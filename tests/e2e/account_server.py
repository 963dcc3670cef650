"""A server as root or as another user, its users, and a task that tries what it can reach of another's.

Knows whole servers, accounts that every machine has, and `probe.py`.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import shutil
import subprocess
import sysconfig
import time
import urllib.request
from pathlib import Path
from typing import Any

from corral.runtime.local.state_dir import TaskState
from tests.e2e.live import Live

SERVER_ACCOUNT, ANN, BEN = "nobody", "daemon", "bin"
PROBE = Path(__file__).with_name("probe.py")
#: A Python that all users can execute.
PYTHON = "/usr/bin/python3"
#: What one account can do to its own processes, whatever they see of one another, where the kernel has no Landlock.
SIGNALS = {"signal the server", "signal the other", "signal the supervisor"}


class Cell:
    """A server, its users ann and ben, and a task of ben's that runs. ``engine``: the socket of a container runtime."""

    def __init__(self, server: Live, folder: Path, is_root: bool, engine: str = "") -> None:
        self.server, self.folder, self.is_root, self.engine = server, folder, is_root, engine
        self.given = folder / "given"  # to tasks: all may read it
        self.given.mkdir(mode=0o755)
        shutil.copy(PROBE, self.given / "probe.py")
        server.more = ["--account", "", "--engine", engine]
        if not is_root:
            server.account = pwd.getpwnam(SERVER_ACCOUNT).pw_uid
            server.python, server.env = PYTHON, {"PYTHONPATH": f"{_path()}", "HOME": "/"}
        server.start()
        (server.data / "secrets").mkdir(exist_ok=True)
        for name in ("secrets/probe", "agent.json"):
            (server.data / name).write_text("{}")
            (server.data / name).chmod(0o600)
            shutil.chown(server.data / name, SERVER_ACCOUNT if not is_root else "root")
        self.tokens = {user: self.user(user, account) for user, account in (("ann", ANN), ("ben", BEN))}

    def user(self, name: str, account: str) -> str:
        self.server.ask("PUT", f"/v1/users/{name}", {"account": account if self.is_root else ""})
        self.server.ask("PUT", f"/v1/users/{name}/roles", {"role": "member", "queue": "default"})
        return str(self.server.ask("POST", "/v1/tokens", {"user": name})["token"])

    def submit(self, user: str, command: str, **terms: Any) -> str:
        mine, self.server._token = self.server.token, self.tokens[user]
        try:
            return self.server.submit({"command": command, **terms})
        finally:
            self.server._token = mine

    def reached(self) -> dict[str, Any]:
        """What ann's task can reach while ben's runs."""
        other = self.let_ben_run()
        job = self.submit("ann", self.probe())
        assert self.server.until_over([job])[job]["state"] == "succeeded"
        self.end(other)
        return self.found(job)

    def end(self, job: str) -> None:
        self.server.ask("POST", f"/v1/jobs/{job}/cancel?now=true")
        self.server.until_over([job])

    def let_ben_run(self) -> str:
        """His task, of which a probe knows all that an attacker may know."""
        other = self.submit("ben", "echo $$ > $TMPDIR/../here; sleep 1000", env={"SECRET": "ben's"})
        state = self.state_of(other)
        started, order = state.record().started(), state.record().order()
        assert started is not None
        assert order is not None
        assert self.server.process is not None
        facts = {
            "data": str(self.server.data), "server": self.server.process.pid, "other": started.pids[0],
            "supervisor": started.supervisor, "scratch": order.scratch, "engine": self.engine,
        }  # fmt: skip
        (self.given / "facts").write_text(json.dumps(facts))
        return other

    def probe(self) -> str:
        """A command."""
        return f"id -u; {PYTHON} {self.given}/probe.py {self.given}/facts"

    def found(self, job: str) -> dict[str, Any]:
        """What a probe that is over has said."""
        lines = self.log(job).splitlines()
        return {"account": pwd.getpwuid(int(lines[0])).pw_name, **json.loads(lines[1])}

    def log(self, job: str, stream: str = "stdout") -> str:
        url = f"{self.server.url}/v1/jobs/{job}/logs?stream={stream}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self.server.token}"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return str(answer.read().decode())

    def state_of(self, job: str) -> TaskState:
        end = time.monotonic() + 30
        while True:
            for folder in (self.server.data / "tasks" / "state").glob(f"{job}%2F*"):
                if (state := TaskState(str(folder))).record().started() is not None:
                    return state
            assert time.monotonic() < end, "the other task did not begin"
            time.sleep(0.02)


def _path() -> str:
    root = Path(__file__).resolve().parents[2]
    return os.pathsep.join((str(root / "src"), str(root), sysconfig.get_paths()["purelib"]))


def has_scopes() -> bool:
    """Whether the kernel has Landlock with scopes for signals."""
    return bool(ctypes.CDLL(None).syscall(444, None, 0, 1) >= 6)


def can_be_somebody_else() -> bool:
    """Whether a server can run as another account here: that one must reach Python and all that is imported."""
    words = ["setpriv", "--reuid", SERVER_ACCOUNT, "--clear-groups", PYTHON, "-c", "import uvloop, tests.e2e.serving"]
    done = subprocess.run(words, env={"PYTHONPATH": _path()}, capture_output=True, check=False, cwd="/")
    return done.returncode == 0
