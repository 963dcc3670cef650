"""The checks of ``corral doctor``: each looks at one thing, changes nothing, and says what to do.

``bad``: it does not work like this; ``note``: it works, with a limitation.
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

from corral.cli.serve.data_folder import running_server

if TYPE_CHECKING:
    from corral.wire.api.broker_intake import IntakeView
    from corral.wire.api.record import HealthView

_SQLITE_LEAST = (3, 37, 0)  # STRICT tables, RETURNING
_ROOM_LEAST = 1 << 30
_SKEW_S = 5.0
_INTAKE_SILENT_S = 30.0  # it reports every few seconds
_TIME_ERROR = 5  # returned by adjtimex if the clock is not synchronized
_BORN_S = 1_735_689_600  # 2025: a clock before that is wrong


@dataclass(frozen=True)
class DoctorCheck:
    about: str
    state: str
    what: str
    todo: str = ""


def python() -> DoctorCheck:
    return DoctorCheck("python", "ok", f"Python {'.'.join(map(str, sys.version_info[:3]))}")


def data(folder: Path) -> DoctorCheck:
    about = "data"
    if not folder.exists():
        parent = next((each for each in folder.parents if each.exists()), Path("/"))
        if os.access(parent, os.W_OK):
            return DoctorCheck(about, "ok", f"{folder} does not exist yet; the first start creates it")
        return DoctorCheck(
            about, "bad", f"{folder} cannot be created", "create it as root and change its owner to you, or use --data"
        )
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return DoctorCheck(about, "bad", f"{folder} cannot be written by you", "run as its owner, or use --data")
    mode = stat.S_IMODE(folder.stat().st_mode)
    if mode & 0o077:
        return DoctorCheck(about, "bad", f"{folder} is open to others (mode {mode:04o})", f"chmod 700 {folder}")
    return DoctorCheck(about, "ok", str(folder))


def room(folder: Path) -> DoctorCheck:
    there = next(each for each in (folder, *folder.parents) if each.exists())
    free = shutil.disk_usage(there).free
    what = f"{free / (1 << 30):.1f} GiB free on the file system of the data"
    if free < _ROOM_LEAST:
        return DoctorCheck("room", "bad", what, "free some space: a server that cannot write stops")
    return DoctorCheck("room", "ok", what)


def database(folder: Path) -> DoctorCheck:
    version = f"SQLite {sqlite3.sqlite_version}"
    if sqlite3.sqlite_version_info < _SQLITE_LEAST:
        least = ".".join(map(str, _SQLITE_LEAST))
        return DoctorCheck("database", "bad", version, f"a Python with SQLite {least} or newer is needed")
    journal = folder / "journal.db"
    if journal.exists() and os.access(journal, os.R_OK):
        size = sum(path.stat().st_size for path in folder.glob("journal.db*")) / (1 << 20)
        return DoctorCheck(
            "database", "ok", f"{version}; the journal has {size:.1f} MiB (to check it: corral db verify)"
        )
    return DoctorCheck("database", "ok", f"{version}; there is no journal yet")


def cgroups() -> DoctorCheck:
    about, root = "cgroups", Path("/sys/fs/cgroup")
    unified = root / "cgroup.controllers"
    todo = "limits of memory and CPUs are then monitored, not enforced: run as root, or let systemd delegate a cgroup"
    if unified.exists():
        has = {"memory", "cpu"} & set(unified.read_text().split())
        if os.access(root, os.W_OK) and len(has) == 2:
            return DoctorCheck(about, "ok", "version 2, writable")
        what = "version 2, not writable by you" if len(has) == 2 else "version 2, without memory or cpu"
        return DoctorCheck(about, "note", what, todo)
    if (root / "memory").is_dir():
        if os.access(root / "memory", os.W_OK):
            return DoctorCheck(about, "ok", "version 1, writable")
        return DoctorCheck(about, "note", "version 1, not writable by you", todo)
    return DoctorCheck(about, "note", "none", todo)


def gpus() -> DoctorCheck:
    from corral.runtime.gpus import found

    models = [gpu.model for gpu in found()]
    if not models:
        return DoctorCheck(
            "gpus", "note", "none found", "to try Corral with simulated GPUs: corral up --fake-gpus 8xH100"
        )
    return DoctorCheck("gpus", "ok", ", ".join(f"{models.count(model)} x {model}" for model in dict.fromkeys(models)))


def containers() -> DoctorCheck:
    from corral.runtime.container.discovery import find

    engine = find()
    if engine is None:
        todo = "jobs with an image need one: systemctl enable --now podman.socket, or start Docker's service"
        return DoctorCheck("containers", "note", "no container runtime answers", todo)
    rootless = ", rootless" if engine.is_rootless else ""
    what = f"{engine.kind.title()} {engine.version}{rootless} at {engine.socket}"
    if engine.unenforced:
        return DoctorCheck(
            "containers", "note", f"{what}; not limited: {', '.join(engine.unenforced)}", "use cgroups version 2"
        )
    return DoctorCheck("containers", "ok", what)


def provider(name: str) -> DoctorCheck:
    from corral.providers.catalog import kind_of

    lack, _, todo = kind_of(name).missing().partition("; ")
    if not lack and name == "slurm":
        from corral.providers.slurm import controller_fault

        lack, todo = controller_fault(), "check slurm.conf, munge and slurmctld; to try it: squeue"
    return (
        DoctorCheck(f"on {name}", "note", lack, todo)
        if lack
        else DoctorCheck(f"on {name}", "ok", f"{name} can provide nodes")
    )


def account() -> DoctorCheck:
    if os.geteuid() == 0:
        todo = "each user needs one: corral user set NAME --account ACCOUNT; one for all: corral up --account ACCOUNT"
        return DoctorCheck(
            "account", "ok", "root: jobs run as the accounts of their users, never as root by default", todo
        )
    from corral.runtime.local.task.isolation import works

    todo = "for several people, run the server as root and give each user an account: corral user set"
    if why := works():
        return DoctorCheck(
            "account", "note", f"not root: all jobs run as you, not isolated from each other: {why}", todo
        )
    what = "not root: all jobs run as you; user namespaces keep their files and environments apart"
    return DoctorCheck("account", "note", what, todo)


def separation() -> DoctorCheck:
    from corral.runtime.gpus import found
    from corral.runtime.local.separation import NOTHING
    from corral.runtime.local.separation import separation as separated
    from corral.runtime.local.task import device_access, isolation
    from corral.runtime.local.task.cgroups import seen

    layout = seen()
    no_namespaces = "" if os.geteuid() == 0 else isolation.works()
    by = separated(layout, no_namespaces, device_access.why_not(layout), bool(found()), "", "")
    what = "; ".join(f"{thing} by {means}" for thing, means in by.items())
    if not any(means.startswith(NOTHING) for means in by.values()):
        return DoctorCheck("separation", "ok", what)
    return DoctorCheck("separation", "note", what, "requirements: docs/security.md; other nodes: corral node show NAME")


def clock() -> DoctorCheck:
    if time.time() < _BORN_S:
        return DoctorCheck("clock", "bad", time.strftime("it is set to %Y-%m-%d"), "set the clock")
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        state = 0
    if state == _TIME_ERROR:
        return DoctorCheck("clock", "note", "the clock is not synchronised", "start chrony, ntpd or systemd-timesyncd")
    return DoctorCheck("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def port(folder: Path, listen: str) -> DoctorCheck:
    host, _, number = listen.rpartition(":")
    here = running_server(folder)
    if here is not None:
        return DoctorCheck("port", "ok", f"a server with this data folder runs at {here.url} (process {here.pid})")
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]") or "127.0.0.1", int(number)))
        except (OSError, ValueError, OverflowError) as error:
            why = getattr(error, "strerror", None) or str(error)
            return DoctorCheck("port", "bad", f"{listen} cannot be used: {why}", "corral up --listen 127.0.0.1:PORT")
    return DoctorCheck("port", "ok", f"{listen} is free")


def credentials() -> DoctorCheck:
    from corral.client.credentials import find_credentials
    from corral.client.errors import BadCredentials

    try:
        found = find_credentials()
    except BadCredentials as error:
        state = "note" if "there are no credentials" in str(error) else "bad"
        return DoctorCheck("credentials", state, str(error), error.hint)
    return DoctorCheck("credentials", "ok", f"for {found.url}, from {found.source}")


def server() -> DoctorCheck:
    from corral import __version__
    from corral.client.blocking import Client
    from corral.client.errors import BadCredentials, ClientError

    try:
        with Client(patience_s=0, answer_s=5.0) as client:
            health = client.health()
            who = client.whoami()
            url = client.url
    except BadCredentials:
        return DoctorCheck("server", "note", "not checked: no credentials", "start one on this machine with: corral up")
    except ClientError as error:
        return DoctorCheck("server", "bad", str(error), error.hint)
    if health.version != __version__:
        what = f"{url} is version {health.version}, this program {__version__}"
        return DoctorCheck("server", "note", what, "use the same version on both sides")
    role = "" if health.role == "leader" else " as a standby"
    return DoctorCheck("server", "ok", f"{url} is {health.status}{role}, and you are {who.user}")


def intakes() -> list[DoctorCheck]:
    """Each intake of a broker that reported to the server lately; none if there is none, or you may not see them."""
    from corral.client.blocking import Client
    from corral.client.errors import ClientError

    try:
        with Client(patience_s=0, answer_s=5.0) as client:
            return [_intake(view) for view in client.intakes().intakes]
    except ClientError:
        return []  # the check of the server says what is wrong


def _intake(view: IntakeView) -> DoctorCheck:
    what = f"{view.name} takes from {view.broker}; {view.waiting} messages wait"
    if view.seen_s_ago > _INTAKE_SILENT_S:
        what = f"{view.name} has not reported for {view.seen_s_ago:.0f} s"
        return DoctorCheck("intake", "bad", what, "see its log; submissions wait in the broker")
    if view.paused:
        return DoctorCheck("intake", "note", f"{what}; it is paused: {view.paused}", "see its log")
    if view.dead:
        what = f"{what}; {view.dead} were refused"
        return DoctorCheck("intake", "note", what, "see why with: corral intake dead list")
    return DoctorCheck("intake", "ok", what)


def servers() -> list[DoctorCheck]:
    """Each server, as it reports itself; only if several are configured."""
    from corral.client.blocking import Client
    from corral.client.credentials import find_credentials
    from corral.client.errors import BadCredentials, ClientError
    from corral.client.servers import Servers

    try:
        found = find_credentials()
    except BadCredentials:
        return []
    named = Servers(found.url).all
    checks = []
    for url in named if len(named) > 1 else []:
        try:
            with Client(url, found.token, patience_s=0, answer_s=5.0, ca=found.ca) as client:
                checks.append(_reported(url, client.health()))
        except ClientError as error:
            checks.append(DoctorCheck("server", "bad", str(error), error.hint))
    return checks


def _reported(url: str, health: HealthView) -> DoctorCheck:
    if health.status != "ok" or not health.following:
        waits = f", and waits for {health.waits_for}" if health.waits_for else ""
        since = "" if health.followed_s_ago is None else f"; it last read the journal {health.followed_s_ago:.0f} s ago"
        return DoctorCheck("server", "bad", f"{url} is {health.status}{waits}{since}", "see its log, and the database")
    if health.role == "leader":
        left = "" if health.leading_for_s is None else f", for {health.leading_for_s:.0f} s unless renewed"
        return DoctorCheck("server", "ok", f"{url} is the leader{left}; record {health.seq}")
    return DoctorCheck("server", "ok", f"{url} follows {health.leader or '(no leader yet)'}; record {health.seq}")
