"""Turns an order of the server into a request to the spawner.

Knows what this machine can enforce and where the files of a task are; starts nothing.
"""

from __future__ import annotations

import os
import signal

import msgspec
from msgspec import structs

from corral.runtime.base import TaskKey, TaskOrder
from corral.runtime.gpu_visibility import is_simulated, visibility
from corral.runtime.local.containers import Containers
from corral.runtime.local.settings import LocalSettings
from corral.runtime.local.state_dir import OrderRecord, name_of, short
from corral.runtime.local.task.cgroups import Layout
from corral.runtime.local.task.lease import LEASE
from corral.runtime.local.task.task_request import Request
from corral.runtime.local.unix_accounts import GIVE_ONE, why_not_as

NO_CONTAINERS = "images and mounts need a container runtime; this machine runs plain processes only"
NO_ENGINE = (
    "the job needs an image, but no container runtime answers on this machine: start the service of Podman or Docker "
    "(docs/operate/containers.md)"
)


class Site:
    """Where this machine keeps tasks, and which limits it can enforce."""

    def __init__(self, tasks: str, run: str, scratch: str, boot: str, layout: Layout, settings: LocalSettings) -> None:
        self.tasks = tasks
        self.run = run
        self.scratch = scratch
        self.boot = boot
        self.layout = layout
        self.settings = settings
        self.hidden: list[str] = []  # hidden from tasks with the server's own account
        self.lease = f"{run}/{LEASE}" if settings.has_lease else ""
        self.worker_parents = layout.shared()
        self.devices: dict[str, tuple[int, int]] = {}  # numbers of the GPUs' device nodes, if they can be denied

    def state_folder(self, key: TaskKey) -> str:
        return f"{self.tasks}/{name_of(key)}"


def request_of(order: TaskOrder, site: Site, logs: str, containers: Containers | None = None) -> Request:
    name = name_of(order.key)
    scratch = f"{site.scratch}/{short(name)}"
    groups = _groups(order, site, name)
    hidden = [*site.hidden, *(containers.private() if containers is not None else ())] if site.hidden else []
    refusal = _refusal(order, containers)
    container = containers.container_request(order) if containers is not None and order.image and not refusal else None
    account = order.account or site.settings.account
    failure = _not_as(account) or (NO_ENGINE if order.image and not refusal and container is None else "")
    return {
        "name": name,
        "record": msgspec.json.encode(_record(order, site, scratch, groups)),
        "state": site.state_folder(order.key),
        "logs": logs,
        "scratch": scratch,
        "run": site.run,
        "command": list(order.command),
        "env": {**_mps(order), **dict(order.env), **dict(order.secret_env), **visibility(order.gpus)},
        "processes": [dict(process.env) for process in order.processes],
        "script": order.script,
        "has_shims": order.has_shims,
        "gpus": list(order.gpus),
        "seats": _seats(order),
        "account": account,
        "directory": order.directory,
        "hidden": hidden,
        "kept": [*hidden, site.scratch] if hidden else [],
        "output": order.output,
        "error": order.error,
        "umask": order.umask & 0o777,
        "early": _early(order),
        "user": dict(order.env).get("CORRAL_USER", ""),  # set by the server: a job cannot change it
        "log_bytes_max": max(min(order.log_mib_max, site.settings.log_task_mib), 1) << 20,
        "cgroup_version": site.layout.version,
        "cgroups": groups,
        "denied": [number for uuid, number in site.devices.items() if uuid not in order.gpus],
        "given": [number for uuid, number in site.devices.items() if uuid in order.gpus],
        "holds_gpus": bool(order.gpus),
        "memory_mib": order.memory_mib,
        "cpu_milli": order.cpu_milli,
        "has_quota": site.settings.has_cpu_quota,
        "pids_max": site.settings.pids_max,
        "failure_rules": list(site.settings.failure_rules),
        "peer_grace_ms": site.settings.peer_grace_ms,
        "tasks": order.tasks,
        "lease": site.lease,
        "requeue_exit": order.requeue_exit,
        "rerun_after_exit_0": order.rerun_after_exit_0,
        "hold_on_fail_ms": order.hold_on_fail_ms,
        "stall_ms": order.stall_ms,
        "unenforced": containers.unenforced(order) if containers and order.image else unenforced(order, site),
        "container": container,
        "refusal": refusal,
        "failure": failure,
    }


def _record(order: TaskOrder, site: Site, scratch: str, groups: dict[str, str]) -> OrderRecord:
    """The order as it is kept on disk, without its secrets."""
    return OrderRecord(
        order=structs.replace(order, secret_env=()),
        secrets=tuple(variable for variable, _ in order.secret_env),
        boot=site.boot,
        scratch=scratch,
        cgroup_version=site.layout.version,
        cgroups=groups,
    )


def _seats(order: TaskOrder) -> list[tuple[str, list[str], int, int]]:
    cpus, memory_mib = max((order.cpu_milli or 0) // 1000, 1), order.memory_mib or 0
    return [(seat.node, list(seat.gpus), cpus, memory_mib) for seat in order.seats]


def _mps(order: TaskOrder) -> dict[str, str]:
    """If NVIDIA's Multi-Process Service runs, it enforces the slice of a task."""
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    if not order.vram_mib or not os.path.exists(f"{pipes}/control"):
        return {}
    return {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={order.vram_mib}M"}


def _not_as(account: str) -> str:
    why = why_not_as(account)
    return f"{why}; {GIVE_ONE}" if why else ""


def unenforced(order: TaskOrder, site: Site) -> list[str]:
    """Limits that were requested but cannot be enforced, with the reason."""
    asked = {"memory": order.memory_mib is not None, "cpu": order.cpu_milli is not None, "pids": True}
    lacking = site.layout.unenforced
    found = [f"{limit}: {lacking[limit]}" for limit in asked if asked[limit] and limit in lacking]
    if any(not is_simulated(uuid) and uuid not in site.devices for uuid in order.gpus):
        found.append("gpus: hidden by CUDA_VISIBLE_DEVICES only; the kernel does not deny plain processes other GPUs")
    return found


def _groups(order: TaskOrder, site: Site, name: str) -> dict[str, str]:
    """The cgroups of the task itself. Only for limits that would also slow down the supervisor: memory, or a CPU quota.
    Otherwise the task shares the cgroup of its supervisor, which limits the number of processes and weighs the CPU.
    With cgroups v1 every limit costs a group, so there are only those that were requested."""
    asked = {"memory": order.memory_mib is not None, "cpu": order.cpu_milli is not None, "pids": True}
    if order.image or not (asked["memory"] or (asked["cpu"] and site.settings.has_cpu_quota)):
        return {}
    is_one = site.layout.version == 2
    return {limit: f"{folder}/{name}" for limit, folder in site.layout.parents.items() if is_one or asked[limit]}


def _early(order: TaskOrder) -> tuple[int, int, str] | None:
    if order.early_signal is None:
        return None
    try:
        early = order.early_signal
        return int(signal.Signals[early.signal]), early.before_ms, early.audience
    except KeyError:
        return None  # `_refusal` reports it


def _refusal(order: TaskOrder, containers: Containers | None) -> str:
    if (order.image or order.mounts) and containers is None:
        return NO_CONTAINERS
    if containers is not None and (wrong := containers.refusal(order)):
        return wrong
    if not order.command or not order.command[0]:
        return "there is no command to run"
    if order.early_signal is not None and order.early_signal.signal not in signal.Signals.__members__:
        return f"unknown signal {order.early_signal.signal!r}: use a name such as SIGUSR1"
    if any("\0" in text for text in order.command) or any("\0" in k + v or "=" in k or not k for k, v in order.env):
        return "the command and its variables must not contain NUL, and names of variables must not contain '='"
    return ""
