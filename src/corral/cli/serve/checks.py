"""The checks of ``corral doctor``: each looks at one thing, changes nothing, and says what to do.

``bad``: it will not work like this; ``note``: it works, with less than there could be.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import sqlite3
import stat
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from corral.cli.serve.place import running_server

if TYPE_CHECKING:
    from corral.wire.api.record import HealthView

_SQLITE_LEAST = (3, 37, 0)  # STRICT tables, RETURNING
_ROOM_LEAST = 1 << 30
_SKEW_S = 5.0
_TIME_ERROR = 5  # what adjtimex returns where nothing keeps the clock
_BORN_S = 1_735_689_600  # 2025: a clock before that is wrong


@dataclass(frozen=True)
class Check:
    about: str
    state: str
    what: str
    todo: str = ""


def python() -> Check:
    return Check("python", "ok", f"Python {'.'.join(map(str, sys.version_info[:3]))}")


def data(folder: Path) -> Check:
    about = "data"
    if not folder.exists():
        parent = next((each for each in folder.parents if each.exists()), Path("/"))
        if os.access(parent, os.W_OK):
            return Check(about, "ok", f"{folder} is not there yet; the first start makes it")
        return Check(about, "bad", f"{folder} cannot be made", "make it as root and give it to you, or use --data")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return Check(about, "bad", f"{folder} cannot be written by you", "run as its owner, or use --data")
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        return Check(about, "bad", f"{folder} is open to others (mode {mode:04o})", f"chmod 700 {folder}")
    return Check(about, "ok", str(folder))


def room(folder: Path) -> Check:
    there = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(there).free
    what = f"{free / (1 << 30):.1f} GiB free where the data is"
    if free < _ROOM_LEAST:
        return Check("room", "bad", what, "a server that cannot write stops: make room")
    return Check("room", "ok", what)


def database(folder: Path) -> Check:
    version = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info < _SQLITE_LEAST:
        least = ".".join(map(str, _SQLITE_LEAST))
        return Check("database", "bad", version, f"a Python with SQLite {least} or newer is needed")
    journal = folder / "journal.db"
    if journal.exists() and os.access(journal, os.R_OK):
        size = sum(path.stat().st_size for path in folder.glob("journal.db*")) / (1 << 20)
        return Check("database", "ok", f"{version}; the journal has {size:.1f} MiB (corral db verify looks inside)")
    return Check("database", "ok", f"{version}; there is no journal yet")


def cgroups() -> Check:
    about, root = "cgroups", Path("/sys/fs/cgroup")
    unified = root / "cgroup.controllers"
    todo = "limits of memory and CPUs are then watched rather than enforced: run as root, or let systemd delegate"
    if unified.exists():
        has = {"memory", "cpu"} & set(unified.read_text().split())
        if os.access(root, os.W_OK) and len(has) == 2:
            return Check(about, "ok", "version 2, writable")
        what = "version 2, not writable by you" if len(has) == 2 else "version 2, without memory or cpu"
        return Check(about, "note", what, todo)
    if (root / "memory").is_dir():
        if os.access(root / "memory", os.W_OK):
            return Check(about, "ok", "version 1, writable")
        return Check(about, "note", "version 1, not writable by you", todo)
    return Check(about, "note", "none", todo)


def gpus() -> Check:
    from corral.backends.gpus import found

    models = [gpu.model for gpu in found()]
    if not models:
        return Check("gpus", "note", "none found", "corral up --fake-gpus 8xH100 simulates some, to try things out")
    return Check("gpus", "ok", ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models)))


def containers() -> Check:
    from corral.backends.container.engine import find

    engine = find()
    if engine is None:
        todo = "jobs with an image need one: systemctl enable --now podman.socket, or start Docker's service"
        return Check("containers", "note", "no container engine answers", todo)
    rootless = ", rootless" if engine.is_rootless else ""
    what = f"{engine.kind.title()} {engine.version}{rootless} at {engine.socket}"
    if engine.unenforced:
        return Check(
            "containers", "note", f"{what}; not limited: {', '.join(engine.unenforced)}", "use cgroups version 2"
        )
    return Check("containers", "ok", what)


def carrier(name: str) -> Check:
    from corral.backends.carriers.catalog import kind_of

    lack, _, todo = kind_of(name).missing().partition("; ")
    return Check(f"on {name}", "note", lack, todo) if lack else Check(f"on {name}", "ok", f"{name} can lend machines")


def account() -> Check:
    if os.geteuid() == 0:
        todo = "each user needs one: corral user set NAME --account ACCOUNT; one for all: corral up --account ACCOUNT"
        return Check("account", "ok", "root: jobs run as the accounts of their users, and none as root by itself", todo)
    from corral.backends.local.task.isolation import works

    todo = "for several people, run the server as root and give each user an account: corral user set"
    if why := works():
        return Check("account", "note", f"not root: all jobs run as you, and nothing separates them: {why}", todo)
    what = "not root: all jobs run as you; user namespaces keep their files and environments apart"
    return Check("account", "note", what, todo)


def clock() -> Check:
    if time.time() < _BORN_S:
        return Check("clock", "bad", time.strftime("it is set to %Y-%m-%d"), "set the clock")
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        state = 0
    if state == _TIME_ERROR:
        return Check("clock", "note", "nothing keeps it right", "start chrony, ntpd or systemd-timesyncd")
    return Check("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def port(folder: Path, listen: str) -> Check:
    host, _, number = listen.rpartition(":")
    here = running_server(folder)
    if here is not None:
        return Check("port", "ok", f"a server of this data runs at {here.url} (process {here.pid})")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]") or "127.0.0.1", int(number)))
        except (OSError, ValueError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            return Check("port", "bad", f"{listen} cannot be had: {why}", "corral up --listen 127.0.0.1:PORT")
    return Check("port", "ok", f"{listen} is free")


def credentials() -> Check:
    from corral.client.credentials import find_credentials
    from corral.client.errors import BadCredentials

    try:
        found = find_credentials()
    except BadCredentials as error:
        state = "note" if "there are no credentials" in str(error) else "bad"
        return Check("credentials", state, str(error), error.hint)
    return Check("credentials", "ok", f"for {found.url}, from {found.source}")


def server() -> Check:
    from corral import __version__
    from corral.client.blocking import Client
    from corral.client.errors import BadCredentials, ClientError

    try:
        with Client(patience_s=0, answer_s=5.0) as client:
            health, who, url = client.health(), client.whoami(), client.url
    except BadCredentials:
        return Check("server", "note", "not asked, for want of credentials", "corral up starts one on this machine")
    except ClientError as error:
        return Check("server", "bad", str(error), error.hint)
    if health.version != __version__:
        what = f"{url} is version {health.version}, this program {__version__}"
        return Check("server", "note", what, "use the same on both sides")
    role = "" if health.role == "leader" else " as a standby"
    return Check("server", "ok", f"{url} is {health.status}{role}, and knows you as {who.user}")


def servers() -> list[Check]:
    """Each server that is named, by its own word; only where there are several."""
    from corral.client.blocking import Client
    from corral.client.credentials import find_credentials
    from corral.client.errors import BadCredentials, ClientError
    from corral.client.places import Places

    try:
        found = find_credentials()
    except BadCredentials:
        return []
    named = Places(found.url).all
    checks = []
    for url in named if len(named) > 1 else []:
        try:
            with Client(url, found.token, patience_s=0, answer_s=5.0, ca=found.ca) as client:
                checks.append(_told(url, client.health()))
        except ClientError as error:
            checks.append(Check("server", "bad", str(error), error.hint))
    return checks


def _told(url: str, health: HealthView) -> Check:
    if health.status != "ok" or not health.following:
        waits = f", and waits for {health.waits_for}" if health.waits_for else ""
        since = "" if health.followed_s_ago is None else f"; it last followed {health.followed_s_ago:.0f} s ago"
        return Check("server", "bad", f"{url} is {health.status}{waits}{since}", "see its log, and the database")
    if health.role == "leader":
        left = "" if health.leading_for_s is None else f", for {health.leading_for_s:.0f} s without another renewal"
        return Check("server", "ok", f"{url} leads{left}; record {health.seq}")
    return Check("server", "ok", f"{url} follows {health.leader or 'nobody yet'}; record {health.seq}")
