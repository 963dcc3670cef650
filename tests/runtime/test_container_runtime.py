"""Engines as they describe themselves, and what they are sent: without any engine, by one that only plays it."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.core.work import Mount, Work
from corral.runtime.base import Capabilities, Process, TaskKey, TaskOrder
from corral.runtime.container import orders
from corral.runtime.container.container_host import ContainerHost
from corral.runtime.container.discovery import RuntimeFacts, facts, find, sockets
from corral.runtime.container.settings import ContainerSettings
from corral.runtime.container.task import runtime_errors
from corral.runtime.container.task.api import ContainerRuntime, ContainerRuntimeError, quoted
from corral.runtime.container.task.launcher import command_of
from corral.runtime.local.settings import LocalSettings
from corral.runtime.machine import machine_backend
from tests.accounts import OWN
from tests.runtime.reports import Collector, order, until

KEY = TaskKey("17[3]/main", 2, 1)


class Played:
    """A socket that answers each path with what it was given, once for each connection."""

    def __init__(self, path: Path, server: str, answers: dict[str, Any]) -> None:
        self.path, self.answers, self.server = str(path), answers, server
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.path)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                request = connection.recv(65536).decode().split(" ")[:2]
                self.asked.append(" ".join(request))
                body = json.dumps(self.answers.get(request[1].removeprefix("/v1.41"), {})).encode()
                connection.sendall(f"HTTP/1.0 200 OK\r\nServer: {self.server}\r\n\r\n".encode() + body)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def played(folder: Path, server: str, info: dict[str, Any]) -> RuntimeFacts:
    engine = Played(folder / "engine.sock", server, {"/info": info})
    try:
        return facts(engine.path)
    finally:
        engine.close()
        (folder / "engine.sock").unlink()


LIMITS = {"MemoryLimit": True, "CPUShares": True, "PidsLimit": True}


def test_engines_are_told_apart(tmp_path: Path):
    podman = played(tmp_path, "Libpod/4.3.1 (linux)", {**LIMITS, "CgroupVersion": "1", "Rootless": False})
    docker = played(tmp_path, "Docker/27.3.1 (linux)", {**LIMITS, "CgroupVersion": "2", "SecurityOptions": []})
    assert (podman.kind, podman.version, podman.cgroup_version, podman.has_device_requests) == (
        "podman",
        "4.3.1",
        1,
        False,
    )
    assert (docker.kind, docker.version, docker.cgroup_version, docker.has_device_requests) == (
        "docker",
        "27.3.1",
        2,
        True,
    )
    assert podman.unenforced == docker.unenforced == {}


@pytest.mark.parametrize("info", [{"Rootless": True}, {"SecurityOptions": ["name=seccomp", "name=rootless"]}])
def test_a_rootless_engine_on_the_old_cgroups_says_what_it_does_not_enforce(tmp_path: Path, info: dict[str, Any]):
    engine = played(tmp_path, "Libpod/4.3.1 (linux)", {**LIMITS, "CgroupVersion": "1", **info})
    assert engine.is_rootless
    found = orders.unenforced(order(KEY, "true", image="a", memory_mib=10), engine)
    assert [line.partition(":")[0] for line in found] == ["memory", "pids"]
    assert "Memory" not in told(order(KEY, "true", image="a", memory_mib=10), engine)["body"]["HostConfig"]


def test_what_an_engine_cannot_limit_is_said(tmp_path: Path):
    engine = played(tmp_path, "Docker/27.3.1 (linux)", {**LIMITS, "MemoryLimit": False, "CgroupVersion": "2"})
    assert list(engine.unenforced) == ["memory"]


def test_where_engines_are_looked_for():
    assert sockets({}, 0) == ["/run/podman/podman.sock", "/run/docker.sock"]
    env = {"DOCKER_HOST": "unix:///tmp/d.sock", "XDG_RUNTIME_DIR": "/run/user/7", "CONTAINER_HOST": "ssh://elsewhere"}
    assert sockets(env, 7)[:3] == ["/tmp/d.sock", "/run/user/7/podman/podman.sock", "/run/user/7/docker.sock"]


def test_an_engine_that_is_not_there(tmp_path: Path):
    assert find(str(tmp_path / "none.sock")) is None
    with pytest.raises(ContainerRuntimeError, match="does not answer"):
        ContainerRuntime(str(tmp_path / "none.sock")).call("GET", "/info")


def test_what_answers_may_not_speak_http(tmp_path: Path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()

    def serve() -> None:
        connection, _ = listener.accept()
        connection.sendall(b"220 mail\r\n\r\n")
        connection.close()

    threading.Thread(target=serve, daemon=True).start()
    with pytest.raises(ContainerRuntimeError, match="does not"):
        ContainerRuntime(str(tmp_path / "s")).ping(2)
    listener.close()


# --- what it is sent -------------------------------------------------------------------------------------------------


def engine(kind: str = "docker", is_rootless: bool = False) -> RuntimeFacts:
    return RuntimeFacts(
        socket="/engine.sock", kind=kind, version="27.0", is_rootless=is_rootless, cgroup_version=2,
        has_device_requests=kind == "docker", unenforced={},
    )  # fmt: skip


def told(wanted: TaskOrder, facts: RuntimeFacts | None = None, **settings: Any) -> dict[str, Any]:
    site = orders.ContainerSite(
        facts or engine(),
        ContainerSettings(**settings),
        LocalSettings(pids_max=50),
        "d" * 16,
        {"GPU-1": "/dev/nvidia0"},
    )
    return orders.container_request(wanted, site)


def test_the_name_follows_from_the_key_and_the_labels_say_it(tmp_path: Path):
    first, again = told(order(KEY, "true", image="a", epoch=4)), told(order(KEY, "false", image="b", epoch=5))
    other = told(order(TaskKey("17[3]/main", 3, 1), "true", image="a"))
    assert first["name"] == again["name"] != other["name"]
    labels = first["body"]["Labels"]
    assert (labels["corral.gang"], labels["corral.attempt"], labels["corral.task"]) == ("17[3]/main", "2", "1")
    assert labels["corral.epoch"] == "4"


def test_docker_is_asked_for_gpus_by_cdi_and_podman_in_its_own_dialect():
    wanted = order(KEY, "true", image="a", gpus=("GPU-1", "SIM-H100-0"))
    docker, podman = told(wanted), told(wanted, engine("podman"))
    requests = [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=GPU-1"]}]
    assert docker["body"]["HostConfig"]["DeviceRequests"] == requests
    assert (docker["is_libpod"], podman["is_libpod"]) == (False, True)
    assert podman["devices"] == ["nvidia.com/gpu=GPU-1"]
    assert docker["nodes"] == {"GPU-1": "/dev/nvidia0"}
    simulated = told(order(KEY, "true", image="a", gpus=("SIM-H100-0",)), engine("podman"))
    assert (simulated["devices"], simulated["is_libpod"]) == ([], False)


def test_users_of_rootless_engines():
    wanted = order(KEY, "true", image="a")
    podman, docker = told(wanted, engine("podman", True)), told(wanted, engine("docker", True))
    assert podman["body"]["HostConfig"]["UsernsMode"] == "keep-id"
    assert (podman["has_own_users"], docker["has_own_users"]) == (False, True)


def test_no_new_privileges_no_engine_log_and_no_restart():
    host = told(order(KEY, "true", image="a", memory_mib=64))["body"]["HostConfig"]
    assert "no-new-privileges" in host["SecurityOpt"]
    assert (host["LogConfig"], host["RestartPolicy"]) == ({"Type": "none"}, {"Name": "no"})
    assert (host["Memory"], host["MemorySwap"], host["ShmSize"]) == (64 << 20, 64 << 20, 64 << 20)
    assert (host["NetworkMode"], host["PidsLimit"]) == ("host", 50)
    assert told(order(KEY, "true", image="a"), shm_mib=5)["body"]["HostConfig"]["ShmSize"] == 5 << 20


def test_secrets_are_not_in_what_the_engine_is_reported_beside_the_environment():
    wanted = order(KEY, "true", image="a", secret_env=(("TOKEN", "s3cr3t"),))
    assert "s3cr3t" not in json.dumps(told(wanted)), "the supervisor adds the environment"


@pytest.mark.parametrize(
    "image", ["busybox", "pytorch/pytorch:2.9-cuda12", "registry.example.org:5000/team/a_b/c:1", "localhost/x:1",
              "x@sha256:" + "0" * 64, "nvcr.io/nvidia/pytorch:25.10-py3", "docker:27"],
)  # fmt: skip
def test_names_of_images(image: str):
    assert orders.refusal(image, (), ContainerSettings()) == ""


def test_several_processes_go_through_the_shell():
    command = command_of(["python", "train.py"], [{"RANK": "0"}, {"RANK": "it's"}])
    assert command[0] == "/bin/sh"
    assert command[-2:] == ["python", "train.py"]
    assert "export 'RANK=it'\\''s'\n" in command[2]
    one = told(order(KEY, "a", "b", image="x", processes=(Process((("RANK", "0"),)),)))
    assert one["body"]["Entrypoint"] == ["a", "b"]


@pytest.mark.parametrize("settings", [{"pull": "sometimes"}, {"mounts": ("relative",)}])
def test_settings_that_cannot_be(settings: dict[str, Any]):
    with pytest.raises(ValueError, match=r"is not a pull policy|must be an absolute path"):
        ContainerSettings(**settings)


@pytest.mark.parametrize(
    ("said", "failure"),
    [
        ("manifest unknown: manifest unknown", "user_error"),
        ("pull access denied for x, repository does not exist or may require 'docker login'", "user_error"),
        ("pinging container registry 127.0.0.1:9: dial tcp 127.0.0.1:9: connect: connection refused", "start_failed"),
        ("Get https://r/v2/: net/http: TLS handshake timeout", "start_failed"),
        ("toomanyrequests: You have reached your pull rate limit", "start_failed"),
        ("something unknown", "start_failed"),
    ],
)
def test_whose_fault_it_is_that_an_image_is_not_there(said: str, failure: str):
    assert runtime_errors.no_image("x:1", said).failure == failure


@pytest.mark.parametrize(
    ("status", "said", "failure", "code"),
    [
        (500, 'exec: "x": executable file not found in $PATH', "user_error", 127),
        (400, "OCI runtime create failed: exec: /x: permission denied", "user_error", 126),
        (500, 'workdir "/nowhere" does not exist on container', "user_error", 126),
        (500, "error setting rlimit type 6: operation not permitted: OCI permission denied", "start_failed", 126),
        (500, "unresolvable CDI devices nvidia.com/gpu=GPU-1", "start_failed", 126),
        (0, "the container runtime does not answer", "start_failed", 126),
        (500, "container-init binary not found on the host: stat /usr/libexec/podman/catatonit", "start_failed", 126),
        (404, "no such image: x: image not known", "user_error", 126),
    ],
)
def test_whose_fault_it_is_that_a_container_does_not_start(status: int, said: str, failure: str, code: int):
    fault = runtime_errors.no_container("image:1", "x", ContainerRuntimeError(status, said))
    assert (fault.failure, fault.code) == (failure, code)


def test_last_words_of_an_init():
    catatonit = b"ERROR (catatonit:6): failed to exec pid1: No such file or directory\n"
    tini = b"[FATAL tini (7)] exec /x failed: Permission denied\n"
    assert (found := runtime_errors.from_init(catatonit, "x", "i")) is not None
    assert found.code == 127
    assert (found := runtime_errors.from_init(tini, "x", "i")) is not None
    assert "permission denied" in found.why
    assert runtime_errors.from_init(catatonit + b"more of the program's own\n", "x", "i") is None


def test_quoting():
    assert quoted("a/b c?&ü") == "a%2Fb%20c%3F%26%C3%BC"


# --- where there is none ---------------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[tuple[Any, Collector]]:
    """The backend of a machine without an engine."""
    collector = Collector()
    backend = machine_backend(
        tmp_path,
        NodeSpec("n1"),
        LocalSettings(account=OWN),
        ContainerSettings(socket=str(tmp_path / "none.sock"), sweep_s=0.05),
    )
    backend.open(collector, 1)
    yield backend, collector
    backend.close()


def test_without_an_engine_images_are_refused_beforehand_and_plain_work_is_not(bare: tuple[Any, Collector]):
    backend, _ = bare
    assert isinstance(backend, Capabilities)
    until(lambda: "no container runtime answers" in backend.cannot_run(Work(command=("true",), image="busybox")))
    assert backend.cannot_run(Work(command=("true",))) == ""
    assert "mounts need an image" in backend.cannot_run(Work(command=("true",), mounts=(Mount("/a", "/b"),)))
    assert "is not the name of an image" in backend.cannot_run(Work(command=("true",), image="dir:/etc"))


def test_without_an_engine_an_order_fails_here_and_may_be_tried_elsewhere(bare: tuple[Any, Collector]):
    backend, collector = bare
    backend.launch([order(KEY, "true", image="busybox")])
    down = collector.down(KEY)
    assert down.failure is FailureClass.START_FAILED
    assert "no container runtime answers" in down.why


def test_an_engine_that_comes_later_is_found(tmp_path: Path):
    host, work = ContainerHost(ContainerSettings(socket=str(tmp_path / "engine.sock"))), Work(command=("a",), image="b")
    before = host.facts
    assert "no container runtime answers" in host.cannot_run(work)
    later = Played(tmp_path / "engine.sock", "Libpod/5.0.0 (linux)", {"/info": LIMITS})
    after = host.facts
    assert (before, after and after.kind, host.cannot_run(work)) == (None, "podman", "")
    later.close()
