"""A real Kubernetes control plane of the tests' own, on loopback: as `../shared/kubernetes` brings it up.

Each process of the tests that needs one has its own, so that a test may kill the API server: five ports that no other
has, a folder that is removed again, and nothing left running. What a former run has left behind when it was killed
(processes, folders, links that its test nodes made) is removed first. Without the programs the tests are skipped, and
say what is missing.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
NODES, GPUS = 4, 8
#: Below the ports that the system gives to connections.
_PORTS = range(23_700, 32_000, 10)
_PREFIX = "corral-kubernetes-"
READY_S = 120.0
#: Where test nodes link the token of a pod's service account; a link of a node that is gone makes later pods fail.
_TOKENS = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class NoControlPlane(Exception):
    """There is no control plane on this machine that could be started. Says why."""


def programs() -> Path:
    """The folder with ``up.sh``."""
    named = os.environ.get("CORRAL_KUBERNETES")
    for folder in [Path(named)] if named else [HERE / "shared/kubernetes", HERE.parent / "shared/kubernetes"]:
        if (folder / "up.sh").exists():
            break
    else:
        raise NoControlPlane("no Kubernetes here: CORRAL_KUBERNETES (default ../shared/kubernetes) has no up.sh")
    for program, package in (("etcd", "etcd-server"), ("openssl", "openssl"), ("xz", "xz-utils")):
        if shutil.which(program) is None:
            raise NoControlPlane(
                f"Kubernetes needs {program}, which is not installed; as root, tools/services.sh etcd does "
                f"(package {package})"
            )
    return folder


class ControlPlane:
    """One control plane with its test nodes, ``node-0`` and so on, two of them in each rack."""

    def __init__(self, nodes: int = NODES, gpus: int = GPUS, node_grace: str = "6s", no_admission: str = "") -> None:
        self.programs = programs()
        remove_leftovers()
        self._claim, self.port = _claim_ports()
        self.root = Path(tempfile.mkdtemp(prefix=_PREFIX))
        (self.root / "owner").write_text(f"{os.getpid()} {_started(os.getpid())}")
        self._env = os.environ | {
            "R": str(self.root), "NODES": str(nodes), "GPUS": str(gpus), "BASEPORT": str(self.port),
            "NODE_GRACE": node_grace, "NO_ADMISSION": no_admission,
            "CORRAL_KUBERNETES_CACHE": str(_cache(self.programs, self.root)),
        }  # fmt: skip
        try:
            done = subprocess.run(
                [str(self.programs / "up.sh")], env=self._env, capture_output=True, text=True, timeout=READY_S
            )
            if done.returncode:
                raise NoControlPlane(f"Kubernetes did not start: {done.stderr[-2000:]}")
            self.kubeconfig = self.root / "kubeconfig"
            document = self.kubeconfig.read_text()
            self.server = f"https://127.0.0.1:{self.port + 2}"
            self.token = document.partition('token: "')[2].partition('"')[0]
            self.ca = self.root / "pki/tls.crt"
            self._tls = ssl.create_default_context(cafile=str(self.ca))
            self._commands = {name: _command(pid) for name, pid in self._pids().items()}
        except BaseException:
            self.stop()
            raise

        self.logs = KubeletLogs(self)

    # --- its parts ------------------------------------------------------------------------------------------------

    def kill(self, part: str, number: int = signal.SIGKILL) -> None:
        """End ``apiserver``, ``etcd``, ``controllers``, ``scheduler`` or ``nodes`` (SIGSTOP freezes it)."""
        pid = self._pids()[part]
        os.kill(pid, number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            until = time.monotonic() + 30
            while _is_running(pid) and time.monotonic() < until:
                time.sleep(0.05)

    def restart(self, part: str) -> None:
        """Start a part that was killed, as it was."""
        with (self.root / "log" / part).open("ab") as log:
            process = subprocess.Popen(
                self._commands[part], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        with (self.root / "pids").open("a") as pids:
            pids.write(f"{process.pid} {part}\n")
        self._children = [*getattr(self, "_children", []), process]
        if part in ("apiserver", "etcd"):
            self.wait_ready()

    def wait_ready(self, patience_s: float = 60.0) -> None:
        until = time.monotonic() + patience_s
        while True:
            with suppress(OSError):
                self.call("GET", "/readyz")
                return
            assert time.monotonic() < until, f"the API server does not answer; see {self.root}/log"
            time.sleep(0.1)

    @contextmanager
    def node_is(self, node: str, state: str) -> Iterator[None]:
        """``silent``, ``dead``, ``slow`` or ``refuse``, as nodes.py explains."""
        mark = self.root / "nodes" / node / state
        mark.touch()
        try:
            yield
        finally:
            mark.unlink(missing_ok=True)

    def compact(self) -> None:
        """Forget all older versions in etcd: a watch that resumes from one of them is answered 410."""
        url = f"http://127.0.0.1:{self.port}/v3/kv"
        found = _post(f"{url}/range", {"key": "AA=="})
        with suppress(urllib.error.HTTPError):  # compacted already
            _post(f"{url}/compaction", {"revision": found["header"]["revision"], "physical": True})

    # --- what tests ask it themselves -----------------------------------------------------------------------------

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        request = urllib.request.Request(self.server + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30, context=self._tls) as answer:
            content: bytes = answer.read()
            return content

    def json(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        return json.loads(self.call(method, path, body, kind) or b"{}")

    def kubectl(self, *arguments: str, text: str = "", check: bool = True) -> str:
        done = subprocess.run(
            [str(self.root / "bin/kubectl"), "--kubeconfig", str(self.kubeconfig), *arguments],
            input=text, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert not check or done.returncode == 0, done.stderr
        return done.stdout + ("" if check else done.stderr)

    @contextmanager
    def namespace(self, name: str, labels: dict[str, str] | None = None) -> Iterator[str]:
        """A namespace of a test's own. Afterwards all pods in it are gone, and it is going."""
        self.json("POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels or {}}})
        until = time.monotonic() + 60
        while not self._has_account(name):  # without it no pod is admitted
            assert time.monotonic() < until, "the namespace gets no service account"
            time.sleep(0.05)
        try:
            yield name
        finally:
            self.end_pods(name)
            self.call("DELETE", f"/api/v1/namespaces/{name}")

    def _has_account(self, namespace: str) -> bool:
        try:
            self.call("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
        except urllib.error.HTTPError:
            return False
        return True

    def end_pods(self, namespace: str, patience_s: float = 60.0) -> None:
        path = f"/api/v1/namespaces/{namespace}/pods"
        until = time.monotonic() + patience_s
        self.call("DELETE", path, {"gracePeriodSeconds": 0})
        while self.json("GET", path)["items"]:
            assert time.monotonic() < until, "pods of the test do not end"
            time.sleep(0.1)

    # --- its end --------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        if hasattr(self, "logs"):
            self.logs.close()
        for pid in _pids_of(self.root).values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        _end(self.root)
        for process in getattr(self, "_children", []):
            process.wait(10)
        self._claim.close()
        remove_dangling_links()

    def _pids(self) -> dict[str, int]:
        return _pids_of(self.root)


class KubeletLogs:
    """Answers for the kubelets of the test nodes when the API server asks for the log of a container."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        logs = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with suppress(OSError):
                    logs.answer(self)

            def log_message(self, *arguments: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def get_request(self) -> Any:
                connection, address = super().get_request()
                return tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

            def handle_error(self, *arguments: Any) -> None:
                pass

        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(plane.ca, plane.root / "pki/tls.key")
        self._server = Server(("127.0.0.1", 0), Handler)
        self._is_open = True
        threading.Thread(target=self._server.serve_forever, args=(0.1,), daemon=True).start()
        self.describe()

    def describe(self) -> None:
        """Write the port into the status of all nodes."""
        port = self._server.server_address[1]
        status = {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}}
        for node in self._plane.json("GET", "/api/v1/nodes")["items"]:
            path = f"/api/v1/nodes/{node['metadata']['name']}/status"
            self._plane.call("PATCH", path, status, "application/merge-patch+json")

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        path, _, query = handler.path.partition("?")
        _, _, namespace, pod, container = path.split("/")
        where = f"/api/v1/namespaces/{namespace}/pods/{pod}"
        try:
            found = self._plane.json("GET", where)
        except OSError:
            handler.send_error(404)
            return
        file = self._plane.root / "nodes" / found["spec"]["nodeName"] / found["metadata"]["uid"] / f"{container}.log"
        if not file.exists():
            handler.send_error(400, "the container is waiting to start")
            return
        handler.send_response(200)
        handler.send_header("Content-Type", "text/plain")
        handler.end_headers()
        with file.open("rb") as log:
            while self._is_open:
                is_over = "follow=true" not in query or self._has_ended(where)
                if data := log.read():
                    handler.wfile.write(data)
                    handler.wfile.flush()
                elif is_over:
                    return
                else:
                    time.sleep(0.05)

    def _has_ended(self, where: str) -> bool:
        try:
            return self._plane.json("GET", where)["status"]["phase"] in ("Failed", "Succeeded")
        except OSError:
            return True

    def close(self) -> None:
        self._is_open = False
        self._server.shutdown()
        self._server.server_close()


def _cache(programs: Path, root: Path) -> Path:
    """The programs, unpacked once, with an API server that reaches kubelets by address: names of test nodes are in no
    DNS."""
    named = os.environ.get("CORRAL_KUBERNETES_CACHE") or os.environ.get("XDG_CACHE_HOME", "~/.cache") + (
        "/corral-kubernetes"
    )
    cache, own = Path(named).expanduser(), root / "cache"
    own.mkdir()
    cache.mkdir(parents=True, exist_ok=True)
    for packed in (programs / "bin").glob("*.xz"):
        program = cache / packed.stem
        if not program.exists() or program.stat().st_mtime < packed.stat().st_mtime:
            unpacked = cache / f"{packed.stem}.{os.getpid()}"
            with unpacked.open("wb") as file:
                subprocess.run(["xz", "-dc", str(packed)], stdout=file, check=True)
            unpacked.chmod(0o755)
            unpacked.replace(program)
        if packed.stem == "kube-apiserver":
            wrapper = own / packed.stem
            wrapper.write_text(f'#!/bin/sh\nexec {program} --kubelet-preferred-address-types=InternalIP "$@"\n')
            wrapper.chmod(0o755)
        else:
            (own / packed.stem).symlink_to(program)
    return own


def remove_leftovers() -> None:
    """End and remove the control planes of test processes that are gone."""
    for root in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
        with suppress(OSError, ValueError):
            pid, started = (root / "owner").read_text().split()
            if _started(int(pid)) != started:
                _end(root)
    remove_dangling_links()


def remove_dangling_links() -> None:
    if _TOKENS.is_symlink() and not _TOKENS.exists():
        with suppress(OSError):
            _TOKENS.unlink()


def _end(root: Path) -> None:
    """All processes of a control plane, those of its pods, and its folder."""
    pids = list(reversed(_pids_of(root).values()))
    for number, patience_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0)):
        for pid in pids:
            if _is_of(pid, root):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        until = time.monotonic() + patience_s
        while any(_is_of(pid, root) for pid in pids) and time.monotonic() < until:
            time.sleep(0.05)
    for process in Path("/proc").glob("[0-9]*"):  # of pods: started below the folder of their node
        with suppress(OSError):
            home = (process / "environ").read_bytes().partition(b"HOME=")[2].partition(b"\0")[0].decode()
            if home.startswith(f"{root}/nodes/"):
                os.kill(int(process.name), signal.SIGKILL)
    for _ in range(50):
        shutil.rmtree(root, ignore_errors=True)
        if not root.exists():
            break
        time.sleep(0.1)


def _pids_of(root: Path) -> dict[str, int]:
    found = {}
    with suppress(OSError):
        for line in (root / "pids").read_text().splitlines():
            pid, _, name = line.partition(" ")
            found[name] = int(pid)
    return found


def _is_of(pid: int, root: Path) -> bool:
    return str(root) in " ".join(_command(pid)) and _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def _command(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().removesuffix("\0").split("\0")
    except OSError:
        return []


def _started(pid: int) -> str:
    """When a process began: with its number, that is who it is."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19].decode()
    except OSError:
        return ""


def _claim_ports() -> tuple[socket.socket, int]:
    """Ten ports in a row that no other test has, and what keeps them: a name that the system frees with the process."""
    for port in _PORTS:
        claim = socket.socket(socket.AF_UNIX)
        try:
            claim.bind(f"\0corral-tests-kubernetes-{port}")
            for number in range(port, port + 10):
                with socket.socket() as tried:
                    tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    tried.bind(("127.0.0.1", number))
        except OSError:
            claim.close()
            continue
        return claim, port
    raise NoControlPlane("no ports are free for Kubernetes")


def _post(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)
