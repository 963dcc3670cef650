"""Turns an order with an image into a request to the container runtime.

Knows the form of a container in Docker's Engine API ("Create a container"); calls nothing. The supervisor adds the
account and the path of the private directory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from corral.core.work import Mount
from corral.runtime.base import TaskOrder
from corral.runtime.container.discovery import DOCKER, PODMAN, RuntimeFacts
from corral.runtime.container.settings import ContainerSettings
from corral.runtime.container.task.launcher import command_of, in_any_shell
from corral.runtime.gpu_visibility import is_simulated
from corral.runtime.local.settings import LocalSettings
from corral.runtime.local.state_dir import name_of, short

LABEL_DATA, LABEL_NAME = "corral.data", "corral.name"
_OOM_SCORE = 300  # as for plain processes
_PERIOD_US = 100_000
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
#: The "reference" grammar of the distribution project: [host[:port]/]path[:tag][@digest]. No transports
#: (``docker-archive:``, ``dir:``): those would read files of the machine with the rights of the container runtime.
_IMAGE = re.compile(
    rf"(?:(?:[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)(?:\.[A-Za-z0-9-]+)*(?::\d{{1,5}})?/)?{_PART}(?:/{_PART})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_IMAGE_MAX = 512
_TRANSPORTS = ("containers-storage", "dir", "docker-archive", "docker-daemon", "oci", "oci-archive", "sif", "tarball")


class ContainerSite(Struct, frozen=True):
    """What orders are executed with: the container runtime, its settings, and the installation that owns it all."""

    facts: RuntimeFacts
    settings: ContainerSettings
    limits: LocalSettings
    data: str  # identifies this installation among others with the same container runtime
    nodes: Mapping[str, str]  # UUIDs of GPUs, and their device nodes


def container_name(data: str, name: str) -> str:
    """The name of the container of a task. The same key always gets the same name, and a runtime takes a name once."""
    return f"corral-{data[:8]}-{short(name)}"


def refusal(image: str, mounts: Sequence[Mount], settings: ContainerSettings) -> str:
    """Why no machine like this can run work with this image. Empty: it can."""
    if not image:
        return "mounts need an image: plain processes see the file system of the machine" if mounts else ""
    is_image = len(image) <= _IMAGE_MAX and _IMAGE.fullmatch(image)
    if not is_image or image.partition(":")[0] in _TRANSPORTS:
        return (
            f"{image[:200]!r} is not the name of an image: write one such as pytorch/pytorch:2.9 or "
            "registry.example.org/team/train:3"
        )
    for mount in mounts:
        is_of_home = mount.source.startswith("~/")  # of the account, which the supervisor knows
        for path in (mount.source.removeprefix("~") if is_of_home else mount.source, mount.target):
            if not path.startswith("/") or "\0" in path or ".." in path.split("/"):
                return f"{path!r} cannot be mounted: both sides of a mount are absolute paths without '..'"
        if os.path.normpath(mount.target) in ("/", "/corral", "/proc", "/sys", "/dev"):
            return f"nothing can be mounted on {mount.target!r}: the container has its own there"
        if settings.mounts and not is_of_home and not any(_is_inside(mount.source, place) for place in settings.mounts):
            return f"{mount.source!r} may not be mounted: it is not below {', '.join(settings.mounts)}"
    return ""


def unenforced(order: TaskOrder, facts: RuntimeFacts) -> list[str]:
    asked = {"memory": order.memory_mib is not None, "cpu": order.cpu_milli is not None, "pids": True}
    found = [f"{limit}: {facts.unenforced[limit]}" for limit in asked if asked[limit] and limit in facts.unenforced]
    if any(uuid.startswith("AMD-") for uuid in order.gpus):
        found.append("gpus: it is not verified whether the container has its AMD GPUs")
    return found


def container_request(order: TaskOrder, ground: ContainerSite) -> dict[str, Any]:
    """The request for the supervisor of the container."""
    facts, settings = ground.facts, ground.settings
    devices = [_cdi_name(uuid, settings) for uuid in order.gpus if not is_simulated(uuid)]
    return {
        "socket": facts.socket,
        "name": container_name(ground.data, name_of(order.key)),
        "image": order.image,
        "pull": settings.pull,
        "allowed": list(settings.mounts),
        "devices": devices,
        "nodes": {uuid: ground.nodes[uuid] for uuid in order.gpus if uuid in ground.nodes},
        "is_libpod": bool(devices) and facts.kind == PODMAN,
        "has_own_users": facts.is_rootless and facts.kind == DOCKER,
        "body": _body(order, ground, devices),
    }


def _body(order: TaskOrder, ground: ContainerSite, devices: list[str]) -> dict[str, Any]:
    key = order.key
    command = in_any_shell(list(order.command))
    if len(order.processes) > 1:
        command = command_of(command, [dict(process.env) for process in order.processes])
    return {
        "Image": order.image,
        "Entrypoint": command,  # replaces that of the image: exactly the ordered command runs
        "Cmd": [],
        "WorkingDir": order.directory,
        "Labels": {
            LABEL_DATA: ground.data,
            LABEL_NAME: name_of(key),
            "corral.gang": key.gang,
            "corral.attempt": str(key.attempt),
            "corral.task": str(key.task),
            "corral.epoch": str(order.epoch),
        },
        "AttachStdout": True,
        "AttachStderr": True,
        "StopTimeout": 0,
        "HostConfig": _host(order, ground, devices),
    }


def _host(order: TaskOrder, ground: ContainerSite, devices: list[str]) -> dict[str, Any]:
    facts, settings = ground.facts, ground.settings
    is_keeping = facts.is_rootless and facts.kind == PODMAN
    host: dict[str, Any] = {
        "Init": True,
        "NetworkMode": settings.network,
        "IpcMode": "private",
        "UsernsMode": "keep-id" if is_keeping else "host",
        "ShmSize": (settings.shm_mib or order.memory_mib or _half_of_memory_mib()) << 20,
        "PidsLimit": ground.limits.pids_max,
        "OomScoreAdj": _OOM_SCORE,
        "SecurityOpt": ["no-new-privileges", *(["label=disable"] if os.path.exists("/sys/fs/selinux/enforce") else [])],
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "GroupAdd": [],
        "Mounts": [
            {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.read_only}
            for mount in order.mounts
        ],
    }
    if order.memory_mib is not None and "memory" not in facts.unenforced:
        host["Memory"] = host["MemorySwap"] = order.memory_mib << 20
    if order.cpu_milli is not None and "cpu" not in facts.unenforced:
        host["CpuShares"] = max(order.cpu_milli * 1024 // 1000, 2)
        if ground.limits.has_cpu_quota:
            host["CpuPeriod"], host["CpuQuota"] = _PERIOD_US, max(order.cpu_milli * _PERIOD_US // 1000, 1000)
    if devices:
        host["DeviceRequests"] = [{"Driver": "cdi", "DeviceIDs": devices}]
    return host


def _cdi_name(uuid: str, settings: ContainerSettings) -> str:
    is_amd = uuid.startswith("AMD-")
    return f"amd.com/gpu={uuid.removeprefix('AMD-')}" if is_amd else f"{settings.cdi_kind}={uuid}"


def _half_of_memory_mib() -> int:
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**21)


def _is_inside(path: str, place: str) -> bool:
    path, place = os.path.normpath(path), os.path.normpath(place)
    return path == place or path.startswith(place.rstrip("/") + "/")
