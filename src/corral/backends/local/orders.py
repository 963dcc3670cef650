"""From an order of the server to the request that a spawner can carry out.

Knows what this machine can enforce and where things of a task lie; starts nothing.
"""

from __future__ import annotations

import os
import signal

import msgspec
from msgspec import structs

from corral.backends.base import TaskKey, TaskOrder
from corral.backends.gpus import is_simulated, visibility
from corral.backends.local.accounts import GIVE_ONE, why_not_as
from corral.backends.local.containers import Containers
from corral.backends.local.settings import LocalSettings
from corral.backends.local.state import OrderRecord, name_of, short
from corral.backends.local.task.cgroups import SHARED_LIMITS, Layout
from corral.backends.local.task.lease import LEASE
from corral.backends.local.task.request import Request

NO_CONTAINERS = "images and mounts need a backend with containers; this one runs plain processes"
NO_ENGINE = (
    "the job has an image, and no container engine answers on this machine: start Podman's or Docker's service "
    "(docs/operate/containers.md)"
)


class Site:
    """Where on this machine tasks are kept, and what limits hold there."""

    def __init__(self, tasks: str, run: str, scratch: str, boot: str, layout: Layout, settings: LocalSettings) -> None:
        self.tasks, self.run, self.scratch = tasks, run, scratch
        self.boot, self.layout, self.settings = boot, layout, settings
        self.hidden: list[str] = []  # what tasks of the server's own account shall not see
        self.lease = f"{run}/{LEASE}" if settings.has_lease else ""
        self.worker_parents = {limit: layout.parents[limit] for limit in SHARED_LIMITS if limit in layout.parents}

    def state_folder(self, key: TaskKey) -> str:
        return f"{self.tasks}/{name_of(key)}"


def request_of(order: TaskOrder, site: Site, logs: str, containers: Containers | None = None) -> Request:
    name = name_of(order.key)
    scratch = f"{site.scratch}/{short(name)}"
    groups = _groups(order, site, name)
    refusal = _refusal(order, containers)
    told = containers.told(order) if containers is not None and order.image and not refusal else None
    account = order.account or site.settings.account
    failure = _not_as(account) or (NO_ENGINE if order.image and not refusal and told is None else "")
    record = OrderRecord(
        order=structs.replace(order, secret_env=()),
        secrets=tuple(variable for variable, _ in order.secret_env),
        boot=site.boot,
        scratch=scratch,
        cgroup_version=site.layout.version,
        cgroups=groups,
    )
    return {
        "name": name,
        "record": msgspec.json.encode(record),
        "state": site.state_folder(order.key),
        "logs": logs,
        "scratch": scratch,
        "run": site.run,
        "command": list(order.command),
        "env": {**_mps(order), **dict(order.env), **dict(order.secret_env), **visibility(order.gpus)},
        "processes": [dict(process.env) for process in order.processes],
        "account": account,
        "directory": order.directory,
        "hidden": site.hidden,
        "output": order.output,
        "error": order.error,
        "early": _early(order),
        "log_bytes_max": max(min(order.log_mib_max, site.settings.log_task_mib), 1) << 20,
        "cgroup_version": site.layout.version,
        "cgroups": groups,
        "holds_gpus": bool(order.gpus),
        "memory_mib": order.memory_mib,
        "cpu_milli": order.cpu_milli,
        "has_quota": site.settings.has_cpu_quota,
        "pids_max": site.settings.pids_max,
        "peer_grace_ms": site.settings.peer_grace_ms,
        "lease": site.lease,
        "requeue_exit": order.requeue_exit,
        "hold_on_fail_ms": order.hold_on_fail_ms,
        "unenforced": containers.unenforced(order) if containers and order.image else unenforced(order, site.layout),
        "container": told,
        "refusal": refusal,
        "failure": failure,
    }


def _mps(order: TaskOrder) -> dict[str, str]:
    """Where NVIDIA's Multi-Process Service runs, it holds a task to its slice by itself."""
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    if not order.vram_mib or not os.path.exists(f"{pipes}/control"):
        return {}
    return {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={order.vram_mib}M"}


def _not_as(account: str) -> str:
    why = why_not_as(account)
    return f"{why}; {GIVE_ONE}" if why else ""


def unenforced(order: TaskOrder, layout: Layout) -> list[str]:
    """What was asked for and only rests on the good will of the task, with the reason."""
    asked = {"memory": order.memory_mib is not None, "cpu": order.cpu_milli is not None, "pids": True}
    found = [f"{limit}: {layout.unenforced[limit]}" for limit in asked if asked[limit] and limit in layout.unenforced]
    if any(not is_simulated(uuid) for uuid in order.gpus):
        found.append("gpus: hidden by CUDA_VISIBLE_DEVICES, not by the kernel: plain processes are not fenced off")
    return found


def _groups(order: TaskOrder, site: Site, name: str) -> dict[str, str]:
    """A group of its own only for what would hold the supervisor up as well: a bound on memory, or a quota of CPU.
    Otherwise it shares that of its supervisor, which bounds the number of processes and weighs the CPU. In version 1
    every limit costs a group, so only those that were asked for."""
    asked = {"memory": order.memory_mib is not None, "cpu": order.cpu_milli is not None, "pids": True}
    if order.image or not (asked["memory"] or (asked["cpu"] and site.settings.has_cpu_quota)):
        return {}
    is_one = site.layout.version == 2
    return {limit: f"{folder}/{name}" for limit, folder in site.layout.parents.items() if is_one or asked[limit]}


def _early(order: TaskOrder) -> tuple[int, int] | None:
    if order.early_signal is None:
        return None
    try:
        return int(signal.Signals[order.early_signal.signal]), order.early_signal.before_ms
    except KeyError:
        return None  # said by `_refusal`


def _refusal(order: TaskOrder, containers: Containers | None) -> str:
    if (order.image or order.mounts) and containers is None:
        return NO_CONTAINERS
    if containers is not None and (wrong := containers.refusal(order)):
        return wrong
    if not order.command or not order.command[0]:
        return "there is no command to run"
    if order.early_signal is not None and order.early_signal.signal not in signal.Signals.__members__:
        return f"there is no signal {order.early_signal.signal!r}; one like SIGUSR1 is meant"
    if any("\0" in text for text in order.command) or any("\0" in k + v or "=" in k or not k for k, v in order.env):
        return "the command and its variables must not contain NUL, nor the names of variables '='"
    return ""
