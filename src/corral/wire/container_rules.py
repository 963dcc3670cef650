"""Configuration of containers. Knows keys and texts, not what they mean to a container runtime."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.wire.document.errors import Path, Reading, Wrong, show
from corral.wire.document.key_table import Key, KeyTable, struct_kind
from corral.wire.document.kinds import SIZE_OVER_ZERO, ValueKind, listing, meant, text
from corral.wire.job.program import PATH_TEXT

PULL = ("missing", "always", "never")


class ContainerRules(Struct, frozen=True, kw_only=True):
    """How jobs with an image run on this machine. ``socket`` empty: the runtime is searched; ``mounts`` empty: all
    that the account may access; ``shm_mib`` None: the memory of the task."""

    socket: str = ""
    pull: str = "missing"
    mounts: tuple[str, ...] = ()
    network: str = "host"
    shm_mib: int | None = None
    cdi_kind: str = "nvidia.com/gpu"


def _read_pull(value: Any, _path: Path, _reading: Reading) -> str:
    if value not in PULL:
        raise Wrong("bad_value", f"there is no pull policy {show(value)}", meant(value, list(PULL)))
    return str(value)


_PULL = ValueKind(_read_pull, {"enum": list(PULL)}, "missing, always or never")
CONTAINER_KEYS = KeyTable(
    "containers",
    [
        Key("socket", PATH_TEXT, "Unix socket of Podman or Docker.", "/run/podman/podman.sock",
            default="detected", into="socket"),
        Key("pull", _PULL, "When to pull images: `missing`, `always` or `never`.", "missing", default="missing",
            into="pull"),
        Key("mounts", listing(PATH_TEXT, "a list of paths", "mounts"), "Host directories that jobs may mount from.",
            ["/data", "/home"], default="all that the account can access", into="mounts"),
        Key("network", text("the name of a network"), "Container network; `host` for training across machines.",
            "host", default="host", into="network"),
        Key("shm", SIZE_OVER_ZERO, "Size of /dev/shm in a container.", "16GiB", default="the memory of the task",
            into="shm_mib"),
        Key("cdi_kind", text("a kind of devices"), "Kind of GPUs in the CDI specification.", "nvidia.com/gpu",
            default="nvidia.com/gpu", into="cdi_kind"),
    ],
)  # fmt: skip
CONTAINERS = struct_kind(CONTAINER_KEYS, "a mapping", ContainerRules)
