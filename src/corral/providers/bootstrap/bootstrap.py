"""What is executed on a machine without Corral: inspect it, install an agent, start it, end it.

The server sends this file, and the machine's own Python runs it. So it uses only the standard library, also of old
versions, and imports nothing of Corral. A request is a line of JSON on the standard input, followed by wheels; the
answer is a line of JSON. Everything may be interrupted and repeated: what exists is left alone, and what is created
appears as a whole or not at all. Once the agent is installed, ``agent_supervisor`` keeps it running.
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
from typing import Any, BinaryIO, TypedDict

#: A program beside the agents. It starts the supervisor that belongs to the agent in use.
KEEPER = """\
import json, os, sys
base = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(base, "place.json")) as file:
    sys.path.insert(0, os.path.join(base, "agents", json.load(file)["agent"]))
from corral.providers.bootstrap.agent_supervisor import main
sys.exit(main(base, "--detach" in sys.argv))
"""
PLACE = "place.json"
ENDED = "ended.json"
LOCK = "lock"
HOLD = "keeper.lock"
PROGRAM = "keeper.py"
AGENTS = "agents"
DATA = "pilot"
CA = "ca.pem"
_LOCK_S = 20.0


class PilotRecordDict(TypedDict):
    """The content of ``place.json``: `PilotRecord` in ``host_messages``."""

    pilot: str
    cluster: str
    agent: str
    at_ms: int
    is_released: bool
    is_kept: bool
    token: str
    words: list[str]
    ca: str
    grace_ms: int


class RequestDict(TypedDict, total=False):
    """One of the requests in ``host_messages``: ``act`` says which, and has only its keys."""

    act: str
    folder: str
    order: PilotRecordDict
    pilot: str
    cluster: str
    agent: str
    is_kept: bool
    wheels: list[tuple[int, str]]


def main() -> None:
    request = json.loads(sys.stdin.buffer.readline().decode())
    sys.stdout.write(json.dumps(execute(request, sys.stdin.buffer)) + "\n")
    sys.stdout.flush()


def execute(request: RequestDict, wheels: BinaryIO) -> dict[str, Any]:
    """The answer: the result, and the present state. ``fault``: why nothing was done."""
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


# --- inspecting -------------------------------------------------------------------------------------------------------


def look(_base: str, _request: RequestDict) -> dict[str, Any]:
    return {}


def facts(base: str) -> dict[str, Any]:
    there = base
    while not os.path.exists(there):
        there = os.path.dirname(there)
    room = os.statvfs(there)
    agents = os.path.join(base, AGENTS)
    return {
        "python": list(sys.version_info[:3]),
        "machine": platform.machine(),
        "libc": "glibc" if platform.libc_ver()[0] == "glibc" else "musl",
        "now_ms": int(time.time() * 1000),
        "folder": base,
        "free_mib": room.f_bavail * room.f_frsize >> 20,
        "can_write": os.access(there, os.W_OK | os.X_OK),
        "driver": driver(),
        "devices": devices(),
        "is_root": os.geteuid() == 0,
        "has_systemd": bool(systemctl()),
        "agents": sorted(os.listdir(agents)) if os.path.isdir(agents) else [],
    }


def driver() -> str:
    """The version of the GPU driver. Empty: there is none."""
    for path in ("/proc/driver/nvidia/version", "/sys/module/nvidia/version", "/sys/module/amdgpu/srcversion"):
        with contextlib.suppress(OSError), open(path) as file:
            return file.readline().strip()
    return ""


def devices() -> int:
    """The number of NVIDIA GPUs in this machine, whether or not there is a driver."""
    at, found = "/sys/bus/pci/devices", 0
    for name in os.listdir(at) if os.path.isdir(at) else []:
        with contextlib.suppress(OSError), open(f"{at}/{name}/uevent") as file:
            event = file.read()
            found += "PCI_ID=10DE:" in event and ("PCI_CLASS=300" in event or "PCI_CLASS=302" in event)
    return found


def place(base: str) -> dict[str, Any] | None:
    """The pilot that uses this machine, without its token."""
    found = read_place(base)
    return found and {name: found[name] for name in ("pilot", "cluster", "agent", "at_ms", "is_released", "is_kept")}


def state(base: str) -> dict[str, Any]:
    """``is_kept``: a supervisor keeps the agent running. ``ended``: how the agent ended."""
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


# --- installing -------------------------------------------------------------------------------------------------------


def install(base: str, request: RequestDict, wheels: BinaryIO) -> None:
    """Unpack the agent beside its directory, and rename it as a whole. Reads all of the input in any case."""
    agents, name = os.path.join(base, AGENTS), request["agent"]
    beside = os.path.join(agents, f".{name}.{os.getpid()}")
    with locked(base):
        os.chmod(base, 0o700)
        os.makedirs(agents, mode=0o700, exist_ok=True)
        for other in os.listdir(agents):  # left by an interrupted request
            if other.startswith("."):
                shutil.rmtree(os.path.join(agents, other))
    try:
        os.mkdir(beside, 0o700)
        for size, digest in request["wheels"]:
            body = wheels.read(size)
            if len(body) != size or hashlib.sha256(body).hexdigest() != digest:
                raise ValueError("a wheel arrived incomplete or damaged")
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


# --- starting and ending ----------------------------------------------------------------------------------------------


def start(base: str, request: RequestDict) -> dict[str, Any]:
    """``is_taken``: another pilot uses this machine. ``is_bare``: the agent is not installed. Else it is started."""
    with locked(base):
        order = request["order"]
        here, over = own_record(base, order), os.path.exists(os.path.join(base, ENDED))
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


def own_record(base: str, request: RequestDict | PilotRecordDict) -> PilotRecordDict | None:
    """The record of the pilot in the request, if it is the one on this machine."""
    here = read_place(base)
    is_same = here is not None and (here["pilot"], here["cluster"]) == (request["pilot"], request["cluster"])
    return here if is_same else None


def is_taken(base: str) -> bool:
    """Whether another pilot uses this machine. One that a provider kept running ends when the provider stops."""
    here = read_place(base)
    if here is None:
        return False
    over = here["is_released"] or here["is_kept"] or os.path.exists(os.path.join(base, ENDED))
    return is_held(os.path.join(base, HOLD)) or not over


def clear(base: str) -> None:
    """Remove what the previous pilot has left. Its record is removed last."""
    shutil.rmtree(os.path.join(base, DATA), ignore_errors=True)
    for name in (ENDED, PLACE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(base, name))


def restart(base: str, request: RequestDict) -> dict[str, Any]:
    """Start the agent again, after a restart of the machine or when its supervisor was killed."""
    with locked(base):
        here = own_record(base, request)
        if here is not None and not here["is_released"] and not os.path.exists(os.path.join(base, ENDED)):
            begin(base, request["is_kept"])
    return {}


def begin(base: str, is_kept: bool = False) -> None:
    """Have the agent kept running: by the caller (``is_kept``), by systemd, or by a detached process. If there is such
    a process already, the lock keeps the second one from starting."""
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
        [sys.executable, "-I", "-S", os.path.join(base, PROGRAM), "--detach"],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        close_fds=True,
    ).wait(30)


def renew(base: str, request: RequestDict) -> dict[str, Any]:
    """Restart the agent in another version; tasks are not affected."""
    with locked(base):
        here = own_record(base, request)
        if here is None:
            return {}
        if not os.path.isdir(os.path.join(base, AGENTS, request["agent"])):
            return {"is_bare": True}
        here["agent"] = request["agent"]
        write(os.path.join(base, PLACE), json.dumps(here))
        signal_supervisor(base, signal.SIGHUP)
    return {}


def stop(base: str, request: RequestDict) -> dict[str, Any]:
    """Ask the agent to leave, and remove everything from the machine."""
    with locked(base):
        here = own_record(base, request)
        if here is None:
            return {}
        here["is_released"] = True
        write(os.path.join(base, PLACE), json.dumps(here))
        if signal_supervisor(base, signal.SIGTERM):
            return {}
        remove(base)  # there is no supervisor, so no agent runs
    return {}


def remove(base: str) -> None:
    """Remove everything except the lock, which the caller holds. The record of the pilot is removed last."""
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


def signal_supervisor(base: str, number: int) -> bool:
    """Send a signal to the agent's supervisor. Returns whether there was one."""
    path = os.path.join(base, HOLD)
    if not is_held(path):
        return False
    end = time.monotonic() + 2
    while time.monotonic() < end:  # it writes its process id as soon as it has the lock
        with open(path) as file:
            pid = file.read().strip()
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), number)
            return True
        time.sleep(0.01)
    return False


# --- systemd ----------------------------------------------------------------------------------------------------------


def systemctl() -> list[str]:
    """The command for systemd: for root that of the machine, for others their own if it outlives their sessions. Empty:
    there is none, or it ends with the session."""
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
    """systemd signals only the agent's supervisor, which asks the agent to leave. Tasks outlive both."""
    wanted = "multi-user.target" if os.geteuid() == 0 else "default.target"
    return (
        "[Unit]\nDescription=Corral agent, started over SSH\nAfter=network-online.target\nWants=network-online.target\n"
        f"[Service]\nExecStart={sys.executable} -I -S {base}/{PROGRAM}\nRestart=on-failure\nRestartSec=1\n"
        "KillMode=process\nTimeoutStopSec=infinity\nDelegate=yes\nTasksMax=infinity\nLimitNOFILE=1048576\n"
        f"[Install]\nWantedBy={wanted}\n"
    )


# --- files ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(base: str) -> Iterator[None]:
    """Lock the directory for changes. If only the lock is left in it, it is removed, and created again when needed."""
    end = time.monotonic() + _LOCK_S
    while True:
        os.makedirs(base, mode=0o700, exist_ok=True)
        if os.stat(base).st_uid != os.geteuid():
            raise PermissionError(f"{base} belongs to another user; remove it, or set folder: PATH")
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
            raise ValueError(f"another process has held {base}/{LOCK} for more than {_LOCK_S:g} s")
        time.sleep(0.02)
    try:
        yield
    finally:
        if os.listdir(base) == [LOCK]:
            shutil.rmtree(base)
        os.close(fd)


def read_place(base: str) -> PilotRecordDict | None:
    found: PilotRecordDict | None = read(os.path.join(base, PLACE))
    return found


def read(path: str) -> Any:
    """The JSON in a file. None: there is no file."""
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def write(path: str, text: str, mode: int = 0o600) -> None:
    """Write atomically and durably. (Not `io.files`: on a bare host there is only this file.)"""
    beside = f"{path}.{os.getpid()}"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(fd, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(beside, path)


ACTS = {"look": look, "install": look, "start": start, "begin": restart, "renew": renew, "stop": stop}

if __name__ == "__main__":
    main()
