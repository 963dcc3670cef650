"""What a task can reach, tried by a task: `python probe.py FACTS` prints the name of each thing that it could do.

``FACTS``: a JSON file with what an attacker may know: the server's folder and process, another task's process, private
directory and groups. Standard library only: it runs as whatever account tasks have.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

TRIES: dict[str, Callable[[dict[str, Any]], object]] = {}


def tried(name: str) -> Callable[[Callable[[dict[str, Any]], object]], Callable[[dict[str, Any]], object]]:
    def keep(attempt: Callable[[dict[str, Any]], object]) -> Callable[[dict[str, Any]], object]:
        TRIES[name] = attempt
        return attempt

    return keep


def _reads(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(64)


def _writes(path: str) -> bool:
    os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    return True


def _signals(pid: int) -> bool:
    os.kill(pid, 0)
    return True


for name, below in {
    "read the journal": "journal.db", "read the server's file": "server.json", "read a secret": "secrets/probe",
    "read the token": "credentials.json", "read agent.json": "agent.json", "read the log of the server": "server.log",
}.items():  # fmt: skip
    TRIES[name] = lambda facts, below=below: _reads(f"{facts['data']}/{below}")  # type: ignore[misc]
for name, below in {
    "list the server's data": "", "list the tasks of others": "tasks/state", "list the logs of others": "tasks/logs",
}.items():  # fmt: skip
    TRIES[name] = lambda facts, below=below: os.listdir(f"{facts['data']}/{below}")  # type: ignore[misc]
for name, below in {
    "write the lease": "run/lease", "write the spawner's lock": "run/spawner.lock",
    "end the spawner": "run/spawner.end", "write the journal": "journal.db",
}.items():  # fmt: skip
    TRIES[name] = lambda facts, below=below: _writes(f"{facts['data']}/{below}")  # type: ignore[misc]
for whose in ("server", "other", "supervisor"):
    for what in ("environ", "maps"):
        TRIES[f"read {what} of the {whose}"] = lambda facts, whose=whose, what=what: _reads(  # type: ignore[misc]
            f"/proc/{facts[whose]}/{what}"
        )
    TRIES[f"follow the folder of the {whose}"] = lambda facts, whose=whose: os.readlink(  # type: ignore[misc]
        f"/proc/{facts[whose]}/cwd"
    )
    TRIES[f"follow the files of the {whose}"] = lambda facts, whose=whose: os.readlink(  # type: ignore[misc]
        f"/proc/{facts[whose]}/fd/1"
    )
    TRIES[f"signal the {whose}"] = lambda facts, whose=whose: _signals(facts[whose])  # type: ignore[misc]


@tried("make a task's folder")
def _(facts: dict[str, Any]) -> object:
    os.mkdir(f"{facts['data']}/tasks/state/probe")
    return True


@tried("list the private directory of another")
def _(facts: dict[str, Any]) -> object:
    return os.listdir(facts["scratch"])


@tried("write into the private directory of another")
def _(facts: dict[str, Any]) -> object:
    os.close(os.open(f"{facts['scratch']}/warning.json", os.O_WRONLY | os.O_CREAT, 0o644))
    return True


@tried("trace another")
def _(facts: dict[str, Any]) -> object:
    return ctypes.CDLL(None).ptrace(0x4206, facts["other"], 0, 0) == 0  # PTRACE_SEIZE


@tried("read the passwords")
def _(_facts: dict[str, Any]) -> object:
    return _reads("/etc/shadow")


@tried("list root's home")
def _(_facts: dict[str, Any]) -> object:
    return os.listdir("/root")


@tried("read the first process")
def _(_facts: dict[str, Any]) -> object:
    return _reads("/proc/1/environ")


@tried("become root")
def _(_facts: dict[str, Any]) -> object:
    os.setuid(0)
    return True


@tried("mount something")
def _(_facts: dict[str, Any]) -> object:
    return ctypes.CDLL(None).mount(b"tmpfs", b"/mnt", b"tmpfs", 0, None) == 0


@tried("uncover what is hidden")
def _(facts: dict[str, Any]) -> object:
    return ctypes.CDLL(None).umount2(facts["data"].encode(), 2) == 0


@tried("be spared by the OOM killer")
def _(_facts: dict[str, Any]) -> object:
    Path("/proc/self/oom_score_adj").write_text("-900")
    return True


@tried("leave its group")
def _(_facts: dict[str, Any]) -> object:
    roots = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*")]
    return [each for each in roots if os.access(each / "cgroup.procs", os.W_OK)]


for name, place in {"the machine's": "/run/podman/podman.sock", "Corral's": ""}.items():

    @tried(f"speak with {name} container runtime")
    def _(facts: dict[str, Any], place: str = place) -> object:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(place or facts["engine"] or "/no-engine")
        return True


@tried("list what Corral's container runtime keeps")
def _(facts: dict[str, Any]) -> object:
    return facts["engine"] and os.listdir(f"{os.path.dirname(facts['engine'])}/storage")


@tried("find another's secret in any environment")
def _(_facts: dict[str, Any]) -> object:
    found = []
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            found += [pid] * (b"SECRET=ben's" in Path(f"/proc/{pid}/environ").read_bytes())
        except OSError:
            continue
    return found


@tried("ask the account's service manager")
def _(_facts: dict[str, Any]) -> object:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(f"/run/user/{os.getuid()}/bus")
    return True


def main() -> None:
    facts, able = json.loads(Path(sys.argv[1]).read_text()), []
    for name, attempt in TRIES.items():
        try:
            if attempt(facts):
                able.append(name)
        except OSError:
            pass  # that is how it should be
    print(json.dumps({"tried": len(TRIES), "able": able}))


if __name__ == "__main__":
    main()
