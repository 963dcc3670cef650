"""The same container as a request of Podman's own API, for what Docker's API cannot express there: CDI devices.

Podman before 5 silently drops the device requests of Docker's API; its own accepts a CDI name as the path of a device.
Field names: Podman's API reference, "ContainerCreateLibpod" (SpecGenerator). Knows both forms.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def create_path() -> str:
    return "/v4.0.0/libpod/containers/create"


def specification(body: dict[str, Any], name: str, devices: list[str]) -> dict[str, Any]:
    host = body["HostConfig"]
    return {
        "name": name,
        "image": body["Image"],
        "entrypoint": body["Entrypoint"],
        "command": body["Cmd"],
        "env": dict(variable.split("=", 1) for variable in body["Env"]),
        "labels": body["Labels"],
        "user": body["User"],
        "groups": host["GroupAdd"],
        "netns": {"nsmode": host["NetworkMode"]},
        "userns": {"nsmode": host["UsernsMode"]},
        "ipcns": {"nsmode": host["IpcMode"]},
        "init": host["Init"],
        "shm_size": host["ShmSize"],
        "no_new_privileges": "no-new-privileges" in host["SecurityOpt"],
        "selinux_opts": ["disable"] if "label=disable" in host["SecurityOpt"] else [],
        "oom_score_adj": host["OomScoreAdj"],
        "log_configuration": {"driver": host["LogConfig"]["Type"]},
        "restart_policy": "no",
        "stop_timeout": body["StopTimeout"],
        "resource_limits": _limits(host),
        "mounts": [_mount(mount) for mount in host["Mounts"]],
        "devices": [{"path": device} for device in devices],
        **({"work_dir": body["WorkingDir"]} if body["WorkingDir"] else {}),
    }


def _limits(host: dict[str, Any]) -> dict[str, Any]:
    limits: dict[str, Any] = {"pids": {"limit": host["PidsLimit"]}}
    if "Memory" in host:
        limits["memory"] = {"limit": host["Memory"], "swap": host["MemorySwap"]}
    cpu = {"shares": "CpuShares", "quota": "CpuQuota", "period": "CpuPeriod"}
    stated = {ours: host[theirs] for ours, theirs in cpu.items() if theirs in host}
    return limits | ({"cpu": stated} if stated else {})


def _mount(mount: dict[str, Any]) -> dict[str, Any]:
    options = ["rbind", "ro" if mount["ReadOnly"] else "rw"]
    return {"type": "bind", "source": mount["Source"], "destination": mount["Target"], "options": options}
