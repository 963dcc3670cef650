"""What is done on a machine that has nothing of Corral yet: look at it, put an agent there, let it begin, let it go.

Sent over by the server and run by the machine's own Python, so it knows the standard library only, also that of old
versions, and imports nothing of Corral. A request is a line of JSON on the standard input, wheels follow it; the answer
is a line of JSON. Everything may be interrupted and said again: what is there already is left, and what is made appears
whole or not at all. Once the agent is here, ``keeper`` keeps it running.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from typing import Any, BinaryIO

#: What lies beside the agents and begins the keeper that belongs to the one in use.
KEEPER = """\
import json, os, sys
base = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(base, "place.json")) as file:
    sys.path.insert(0, os.path.join(base, "agents", json.load(file)["agent"]))
from corral.backends.carriers.keeper import main
sys.exit(main(base, "--detach" in sys.argv))
"""
PLACE, ENDED, LOCK, HOLD, PROGRAM = "place.json", "ended.json", "lock", "keeper.lock", "keeper.py"
AGENTS, DATA, CA = "agents", "pilot", "ca.pem"
_LOCK_S = 20.0


def main() -> None:
    request = json.loads(sys.stdin.buffer.readline().decode())
    sys.stdout.write(json.dumps(carried_out(request, sys.stdin.buffer)) + "\n")
    sys.stdout.flush()


def carried_out(request: dict[str, Any], wheels: BinaryIO) -> dict[str, Any]:
    """The answer: what came of it, and what is so now. ``fault``: why nothing came of it."""
    base = folder(request["folder"])
    try:
        if request["act"] == "install":
            install(base, request, wheels)
        answer = ACTS[request["act"]](base, request)
        answer.update(facts(base), place=place(base), state=state(base))
    except OSError as wrong:
        answer = {"fault": f"{wrong.filename or base}: {wrong.strerror or wrong}"}
    except (zipfile.BadZipFile, ValueError) as wrong:
        answer = {"fault": str(wrong)}
    return answer


def folder(stated: str) -> str:
    if stated:
        return os.path.abspath(os.path.expanduser(stated))
    if os.geteuid() == 0:
        return "/var/lib/corral-pilot"
    home = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(home, "corral-pilot")


# --- looking ----------------------------------------------------------------------------------------------------------


def look(_base: str, _request: dict[str, Any]) -> dict[str, Any]:
    return {}


def facts(base: str) -> dict[str, Any]:
    there = base
    while not os.path.exists(there):
        there = os.path.dirname(there)
    room = os.statvfs(there)
    agents = os.path.join(base, AGENTS)
    return {
        "python": list(sys.version_info[:3]), "machine": platform.machine(), "now_ms": int(time.time() * 1000),
        "libc": "glibc" if platform.libc_ver()[0] == "glibc" else "musl", "folder": base,
        "free_mib": room.f_bavail * room.f_frsize >> 20, "can_write": os.access(there, os.W_OK | os.X_OK),
        "driver": driver(), "devices": devices(), "is_root": os.geteuid() == 0, "has_systemd": bool(systemctl()),
        "agents": sorted(os.listdir(agents)) if os.path.isdir(agents) else [],
    }  # fmt: skip


def driver() -> str:
    """The version of the driver of GPUs; empty: there is none."""
    for path in ("/proc/driver/nvidia/version", "/sys/module/nvidia/version", "/sys/module/amdgpu/srcversion"):
        with contextlib.suppress(OSError), open(path) as file:
            return file.readline().strip()
    return ""


def devices() -> int:
    """So many GPUs of NVIDIA sit in this machine, whether or not a driver knows them."""
    at, found = "/sys/bus/pci/devices", 0
    for name in os.listdir(at) if os.path.isdir(at) else []:
        with contextlib.suppress(OSError), open(f"{at}/{name}/uevent") as file:
            told = file.read()
            found += "PCI_ID=10DE:" in told and ("PCI_CLASS=300" in told or "PCI_CLASS=302" in told)
    return found


def place(base: str) -> dict[str, Any] | None:
    """Which pilot has this machine; never its token."""
    said = read(os.path.join(base, PLACE))
    return said and {name: said[name] for name in ("pilot", "cluster", "agent", "at_ms", "is_released", "is_kept")}


def state(base: str) -> dict[str, Any]:
    """``is_kept``: somebody sees to it that the agent runs. ``ended``: how it was over."""
    return {"is_kept": is_held(os.path.join(base, HOLD)), "ended": read(os.path.join(base, ENDED))}


def is_held(path: str) -> bool:
    try:
        with open(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


# --- putting an agent there -------------------------------------------------------------------------------------------


def install(base: str, request: dict[str, Any], wheels: BinaryIO) -> None:
    """Unpacked beside its place, and moved there whole. All of the input is read, whatever there is already."""
    agents, name = os.path.join(base, AGENTS), request["agent"]
    beside = os.path.join(agents, f".{name}.{os.getpid()}")
    with locked(base):
        os.chmod(base, 0o700)
        os.makedirs(agents, mode=0o700, exist_ok=True)
        for other in os.listdir(agents):  # whatever was interrupted
            if other.startswith("."):
                shutil.rmtree(os.path.join(agents, other))
    try:
        os.mkdir(beside, 0o700)
        for size, digest in request["wheels"]:
            body = wheels.read(size)
            if len(body) != size or hashlib.sha256(body).hexdigest() != digest:
                raise ValueError("a wheel did not arrive whole")
            wheel = os.path.join(beside, "wheel")
            with open(wheel, "wb") as file:
                file.write(body)
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(beside)
            os.unlink(wheel)
        os.sync()
        with locked(base):
            if not os.path.isdir(os.path.join(agents, name)):
                os.rename(beside, os.path.join(agents, name))
    finally:
        shutil.rmtree(beside, ignore_errors=True)


# --- letting it begin and end -----------------------------------------------------------------------------------------


def start(base: str, request: dict[str, Any]) -> dict[str, Any]:
    """``is_taken``: another pilot has this machine. ``is_bare``: the agent is not there. Otherwise the pilot is."""
    with locked(base):
        order = request["order"]
        here, over = mine(base, order), os.path.exists(os.path.join(base, ENDED))
        if here is not None and (over or here["is_released"]):
            return {}
        if here is None:
            if is_taken(base):
                return {"is_taken": True}
            if not os.path.isdir(os.path.join(base, AGENTS, order["agent"])):
                return {"is_bare": True}
            clear(base)
            if order["ca"]:
                write(os.path.join(base, CA), order["ca"])
                order["words"].append("--ca=" + os.path.join(base, CA))
            write(os.path.join(base, PLACE), json.dumps(order))
        begin(base, request["is_kept"])
    return {}


def mine(base: str, request: dict[str, Any]) -> dict[str, Any] | None:
    """What is known of the pilot that is spoken of, if it is the one that is here."""
    here = read(os.path.join(base, PLACE))
    is_same = here is not None and (here["pilot"], here["cluster"]) == (request["pilot"], request["cluster"])
    return here if is_same else None


def is_taken(base: str) -> bool:
    """One that an engine kept is over when that does not keep it any more."""
    here = read(os.path.join(base, PLACE))
    if here is None:
        return False
    over = here["is_released"] or here["is_kept"] or os.path.exists(os.path.join(base, ENDED))
    return is_held(os.path.join(base, HOLD)) or not over


def clear(base: str) -> None:
    """What the pilot before has left. What tells that it was there goes last."""
    shutil.rmtree(os.path.join(base, DATA), ignore_errors=True)
    for name in (ENDED, PLACE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(base, name))


def begin_again(base: str, request: dict[str, Any]) -> dict[str, Any]:
    """After the machine was started anew, or the keeper was killed."""
    with locked(base):
        here = mine(base, request)
        if here is not None and not here["is_released"] and not os.path.exists(os.path.join(base, ENDED)):
            begin(base, request["is_kept"])
    return {}


def begin(base: str, is_kept: bool = False) -> None:
    """Let somebody keep it running: whoever asks (``is_kept``), systemd, or a process on its own. There may be such a
    one already: only the first finds the lock free."""
    if is_held(os.path.join(base, HOLD)):
        return
    write(os.path.join(base, PROGRAM), KEEPER)
    if is_kept:
        return
    words = systemctl()
    if words:
        unit = os.path.join(unit_folder(), unit_name(base))
        os.makedirs(os.path.dirname(unit), exist_ok=True)
        write(unit, unit_text(base), 0o644)
        for act in (["daemon-reload"], ["enable", "--quiet", unit_name(base)], ["restart", unit_name(base)]):
            done = subprocess.run([*words, *act], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
            if done.returncode:
                raise ValueError(f"systemctl {act[0]}: {done.stdout.decode(errors='replace').strip()[-300:]}")
        return
    subprocess.Popen(
        [sys.executable, "-I", "-S", os.path.join(base, PROGRAM), "--detach"], cwd="/", stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, close_fds=True,
    ).wait(30)  # fmt: skip


def renew(base: str, request: dict[str, Any]) -> dict[str, Any]:
    """Another version of the agent, of which tasks notice nothing."""
    with locked(base):
        here = mine(base, request)
        if here is None:
            return {}
        if not os.path.isdir(os.path.join(base, AGENTS, request["agent"])):
            return {"is_bare": True}
        here["agent"] = request["agent"]
        write(os.path.join(base, PLACE), json.dumps(here))
        tell(base, signal.SIGHUP)
    return {}


def stop(base: str, request: dict[str, Any]) -> dict[str, Any]:
    """It leaves in order; nothing stays on the machine."""
    with locked(base):
        here = mine(base, request)
        if here is None:
            return {}
        here["is_released"] = True
        write(os.path.join(base, PLACE), json.dumps(here))
        if tell(base, signal.SIGTERM):
            return {}
        remove(base)  # nobody keeps it, so no agent runs
    return {}


def remove(base: str) -> None:
    """Everything but the lock, by whoever has it. What tells that there was something goes last."""
    unit = os.path.join(unit_folder(), unit_name(base))
    if os.path.exists(unit):
        for act in (["disable", "--quiet", os.path.basename(unit)], ["daemon-reload"]):
            subprocess.run([*systemctl(), *act], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=30)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unit)
    for name in (AGENTS, DATA):
        shutil.rmtree(os.path.join(base, name), ignore_errors=True)
    for name in (CA, ENDED, PROGRAM, PLACE, HOLD):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(base, name))


def tell(base: str, number: int) -> bool:
    """Whether there was a keeper to tell."""
    path = os.path.join(base, HOLD)
    if not is_held(path):
        return False
    end = time.monotonic() + 2
    while time.monotonic() < end:  # it writes its number as soon as it has the lock
        with open(path) as file:
            said = file.read().strip()
        if said:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(said), number)
            return True
        time.sleep(0.01)
    return False


# --- systemd ----------------------------------------------------------------------------------------------------------


def systemctl() -> list[str]:
    """How to speak to systemd: as root to that of the machine; others to their own where it outlives their sessions.
    Empty: it is not there, or ends with the session."""
    if not os.path.isdir("/run/systemd/system") or not shutil.which("systemctl"):
        return []
    if os.geteuid() == 0:
        return ["systemctl"]
    runtime = os.environ.setdefault("XDG_RUNTIME_DIR", f"/run/user/{os.geteuid()}")
    import pwd

    lingers = os.path.exists(f"/var/lib/systemd/linger/{pwd.getpwuid(os.geteuid()).pw_name}")
    return ["systemctl", "--user"] if lingers and os.path.exists(f"{runtime}/systemd/private") else []


def unit_folder() -> str:
    if os.geteuid() == 0:
        return "/etc/systemd/system"
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(home, "systemd", "user")


def unit_name(base: str) -> str:
    usual = base == folder("")
    return "corral-pilot.service" if usual else f"corral-pilot-{hashlib.sha256(base.encode()).hexdigest()[:8]}.service"


def unit_text(base: str) -> str:
    """Only the keeper is told to end: it has the agent leave. Tasks outlive both."""
    wanted = "multi-user.target" if os.geteuid() == 0 else "default.target"
    return (
        "[Unit]\nDescription=Corral agent, lent over SSH\nAfter=network-online.target\nWants=network-online.target\n"
        f"[Service]\nExecStart={sys.executable} -I -S {base}/{PROGRAM}\nRestart=on-failure\nRestartSec=1\n"
        "KillMode=process\nTimeoutStopSec=infinity\nDelegate=yes\nTasksMax=infinity\nLimitNOFILE=1048576\n"
        f"[Install]\nWantedBy={wanted}\n"
    )


# --- files ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(base: str) -> Iterator[None]:
    """One at a time changes things here. A folder with nothing but the lock left in it goes, and is made again."""
    end = time.monotonic() + _LOCK_S
    while True:
        os.makedirs(base, mode=0o700, exist_ok=True)
        if os.stat(base).st_uid != os.geteuid():
            raise PermissionError(f"{base} belongs to somebody else; remove it, or say folder: PATH")
        fd = os.open(os.path.join(base, LOCK), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with contextlib.suppress(FileNotFoundError):
                if os.stat(os.path.join(base, LOCK)).st_ino == os.fstat(fd).st_ino:
                    break
        except BlockingIOError:
            pass
        os.close(fd)
        if time.monotonic() > end:
            raise ValueError(f"{base}/{LOCK} is held by another process for too long")
        time.sleep(0.02)
    try:
        yield
    finally:
        if os.listdir(base) == [LOCK]:
            shutil.rmtree(base)
        os.close(fd)


def read(path: str) -> dict[str, Any] | None:
    try:
        with open(path) as file:
            said: dict[str, Any] = json.load(file)
            return said
    except FileNotFoundError:
        return None


def write(path: str, text: str, mode: int = 0o600) -> None:
    """Whole, and on the disk."""
    beside = f"{path}.{os.getpid()}"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(beside, path)


ACTS = {"look": look, "install": look, "start": start, "begin": begin_again, "renew": renew, "stop": stop}

if __name__ == "__main__":
    main()
