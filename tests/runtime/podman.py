"""A Podman of its own for tests: its service, storage and settings in a temporary directory, its mounts in a namespace
of their own. Nothing of the machine's own Podman is read or changed. The one image is made of a static busybox, so that
no registry is needed. As root, or rootless for another account."""

import contextlib
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.io.http import connect_unix
from corral.runtime.container.discovery import facts
from corral.runtime.container.task.api import PREFIX, ContainerRuntime, ContainerRuntimeError

IMAGE = "localhost/corral-test:1"
ROOTLESS = "nobody"  # an account that every machine has
_APPLETS = (
    "sh",
    "echo",
    "sleep",
    "cat",
    "id",
    "env",
    "true",
    "printf",
    "mkdir",
    "ls",
    "dd",
    "tail",
    "head",
    "stat",
    "rm",
)
_READY_S, _END_S = 30, 10
#: An overlay over /etc, seen by this Podman only, so that tests may write CDI specifications.
_SCRIPT = """\
mkdir -p etc-upper etc-work && mount -t overlay overlay -o lowerdir=/etc,upperdir=etc-upper,workdir=etc-work /etc &&
mkdir -p /etc/cdi && mount --bind cdi /etc/cdi
[ -z "$ACCOUNT" ] || { for kind in uid gid; do echo "$ACCOUNT:200000:65536" > "/etc/sub$kind"; done
as="setpriv --reuid $ACCOUNT --regid $(id -g "$ACCOUNT") --clear-groups"; }
exec $as podman --root "$PWD/storage" --runroot "$PWD/run" --tmpdir "$PWD/tmp" --runtime runc \
  --cgroup-manager cgroupfs system service --time 0 "unix://$PWD/engine.sock"
"""


class Podman:
    """``account``: whose it is; empty: root's."""

    def __init__(self, folder: Path, account: str = "") -> None:
        self.folder, self.socket = folder, str(folder / "engine.sock")
        self.account = account
        if account:
            shutil.chown(folder, account)
        self.cdi = folder / "cdi"
        self.cdi.mkdir()
        (folder / "containers.conf").write_text(_settings())
        (folder / "registries.conf").write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
        self.engine = ContainerRuntime(self.socket)
        self.start()
        _import_image(self.engine)
        self.facts = facts(self.socket)

    def start(self) -> None:
        """Also after `stop`: containers go on meanwhile."""
        env = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin:/usr/sbin:/sbin"),
            "HOME": str(self.folder),
            "ACCOUNT": self.account,
            **({"XDG_RUNTIME_DIR": str(self.folder)} if self.account else {}),
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_REGISTRIES_CONF": str(self.folder / "registries.conf"),
        }
        with open(self.folder / "service.log", "ab") as log:
            command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SCRIPT]
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        until = time.monotonic() + _READY_S
        while True:
            try:
                self.engine.ping(5)
                return
            except ContainerRuntimeError as fault:
                if time.monotonic() > until or self._process.poll() is not None:
                    raise RuntimeError(f"{fault}; {(self.folder / 'service.log').read_text()[-500:]}") from fault
                time.sleep(0.02)

    def stop(self) -> None:
        if self.account:
            os.killpg(self._process.pid, signal.SIGKILL)  # it has started itself again, in a namespace
        self._process.kill()
        self._process.wait()

    def pause(self) -> None:
        """It hangs: connections are taken and not answered."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def names(self) -> list[str]:
        return [name.lstrip("/") for each in self.containers() for name in each["Names"]]

    def containers(self) -> list[dict]:
        found: list[dict] = self.engine.call("GET", "/containers/json?all=1")
        return found

    def close(self) -> None:
        with contextlib.suppress(ContainerRuntimeError):
            for each in self.containers():
                with contextlib.suppress(ContainerRuntimeError):
                    self.engine.call("POST", f"/containers/{each['Id']}/kill?signal=9")
                with contextlib.suppress(ContainerRuntimeError):
                    self.engine.call("DELETE", f"/containers/{each['Id']}?force=1")
        self.stop()
        with contextlib.suppress(OSError, ValueError):  # a rootless one leaves a process that holds its namespaces
            os.kill(int((self.folder / "tmp" / "pause.pid").read_text()), signal.SIGKILL)
        until = time.monotonic() + _END_S
        while _is_named_by_a_process(str(self.folder)) and time.monotonic() < until:
            time.sleep(0.02)  # conmon cleans up behind itself, and would make the folder again


def _is_named_by_a_process(folder: str) -> bool:
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if entry.isdecimal() and folder.encode() in Path(f"/proc/{entry}/cmdline").read_bytes():
                return True
    return False


def _settings() -> str:
    """Limits not above the caller's: where the right to raise them is missing, the runtime would refuse to start."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = min(resource.getrlimit(resource.RLIMIT_NPROC)[1], 1 << 15)
    processes = 1 << 15 if processes < 0 else processes
    ulimits = json.dumps([f"nofile={files}:{files}", f"nproc={processes}:{processes}"])
    return f'[containers]\ndefault_ulimits = {ulimits}\n[engine]\nevents_logger = "none"\n'


def _import_image(engine: ContainerRuntime) -> None:
    connection = connect_unix(engine.path, 120)
    kind = {"Content-Type": "application/x-tar", "Connection": "close"}
    answer = connection.send("POST", f"{PREFIX}/images/create?fromSrc=-", kind, _root_file_system(), 120).read()
    connection.close()
    image = json.loads(answer.strip().splitlines()[-1])["status"]
    engine.call("POST", f"/images/{image}/tag?repo=localhost/corral-test&tag=1")


def _root_file_system() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for folder in ("bin", "dev", "etc", "proc", "sys", "tmp", "root", "data"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.add(_busybox(), "bin/busybox")
        for name in _APPLETS:
            entry = tarfile.TarInfo(f"bin/{name}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
    return out.getvalue()


def _busybox() -> str:
    return os.path.realpath(shutil.which("busybox") or "")


def _why_not() -> str:
    if os.geteuid() != 0:
        return "the tests of containers start a Podman of their own, which needs root here"
    missing = [tool for tool in ("podman", "runc", "busybox", "unshare", "catatonit") if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)} (tools/services.sh installs them)" if missing else ""


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    """Skips, with the reason, where Podman cannot run."""
    if why := _why_not():
        pytest.skip(why)
    yield from _kept("")


@pytest.fixture(scope="session")
def rootless() -> Iterator[Podman]:
    """As `podman`, for an account that is not root."""
    why = _why_not() or ("" if shutil.which("newuidmap") else "not installed: newuidmap (tools/services.sh)")
    if why:
        pytest.skip(why)
    yield from _kept(ROOTLESS)


def _kept(account: str) -> Iterator[Podman]:
    folder = Path(tempfile.mkdtemp(prefix="corral-podman-"))
    engine: Podman | None = None
    try:
        try:
            engine = Podman(folder, account)
        except (RuntimeError, ContainerRuntimeError, OSError) as fault:
            pytest.skip(f"Podman cannot run here: {fault}")
        yield engine
    finally:
        if engine is not None:
            engine.close()
        shutil.rmtree(folder, ignore_errors=True)
