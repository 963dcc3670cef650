"""The container runtime of this machine: its socket, its kind, and which limits it can enforce.

Knows sockets, and how runtimes describe themselves (`/_ping`, `/info`). Starts nothing.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from corral.runtime.container.task.api import ContainerRuntime, ContainerRuntimeError

_ASK_S, _INFO_S = 5.0, 30.0
PODMAN, DOCKER = "podman", "docker"


class RuntimeFacts(Struct, frozen=True, kw_only=True):
    """``has_device_requests``: it honours CDI devices in requests of Docker's API. ``unenforced``: limits that it would
    accept but not enforce, with the reason. ``places``: the directories of a rootless runtime, which all processes of
    its account can enter."""

    socket: str
    kind: str
    version: str
    is_rootless: bool
    cgroup_version: int
    has_device_requests: bool
    unenforced: dict[str, str]
    places: tuple[str, ...] = ()


def sockets(env: Mapping[str, str] = os.environ, uid: int | None = None) -> list[str]:
    """Where a container runtime may listen, the likeliest first."""
    uid = os.geteuid() if uid is None else uid
    named = [env.get(name, "").removeprefix("unix://") for name in ("CONTAINER_HOST", "DOCKER_HOST")]
    run = env.get("XDG_RUNTIME_DIR", f"/run/user/{uid}")
    own = [f"{run}/podman/podman.sock", f"{run}/docker.sock"] if uid else []
    return [path for path in (*named, *own, "/run/podman/podman.sock", "/run/docker.sock") if path.startswith("/")]


def find(socket: str = "") -> RuntimeFacts | None:
    """The runtime at this socket, or at the first socket that answers. None: there is none."""
    for path in [socket] if socket else sockets():
        if os.path.exists(path):
            try:
                return facts(path)
            except ContainerRuntimeError:
                continue
    return None


def facts(socket: str) -> RuntimeFacts:
    """Uses `/_ping` instead of `/version`, for which Podman starts several programs: seconds on a busy machine."""
    engine = ContainerRuntime(socket)
    server = engine.ping(_ASK_S).get("server", "")  # Libpod/4.3.1 (linux), Docker/27.3.1 (linux)
    info = engine.call("GET", "/info", timeout_s=_INFO_S) or {}
    is_podman = server.lower().startswith("libpod")
    version = server.partition(" ")[0].partition("/")[2] or str(info.get("ServerVersion", ""))
    is_rootless = bool(info.get("Rootless")) or any("rootless" in str(option) for option in _options(info))
    return RuntimeFacts(
        socket=socket,
        kind=PODMAN if is_podman else DOCKER,
        version=version,
        is_rootless=is_rootless,
        cgroup_version=2 if str(info.get("CgroupVersion", "1")) == "2" else 1,
        has_device_requests=not is_podman and _major(version) >= 25,
        unenforced=_unenforced(info, is_rootless),
        places=_places(engine, info, is_podman) if is_rootless else (),
    )


def _places(engine: ContainerRuntime, info: dict[str, Any], is_podman: bool) -> tuple[str, ...]:
    found = [info.get("DockerRootDir")]
    if is_podman:
        store = (engine.call("GET", "/libpod/info", timeout_s=_INFO_S) or {}).get("store") or {}
        found += [store.get("graphRoot"), store.get("runRoot")]
    return tuple(dict.fromkeys(path for path in found if isinstance(path, str) and path.startswith("/")))


def _options(info: dict[str, Any]) -> list[Any]:
    return list(info.get("SecurityOptions") or ())


def _unenforced(info: dict[str, Any], is_rootless: bool) -> dict[str, str]:
    if is_rootless and str(info.get("CgroupVersion", "1")) != "2":
        why = "a rootless container runtime cannot set limits with cgroups v1; it ignores them"
        return dict.fromkeys(("memory", "cpu", "pids"), why)
    asked = {"memory": "MemoryLimit", "cpu": "CPUShares", "pids": "PidsLimit"}
    return {
        limit: f"the container runtime reports that it cannot limit it ({field})"
        for limit, field in asked.items()
        if info.get(field) is False
    }


def _major(version: str) -> int:
    first = version.partition(".")[0]
    return int(first) if first.isdecimal() else 0
