"""What the configuration may say about containers. Knows keys and words, not what they mean to an engine."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.wire.document.faults import Path, Reading, Wrong, show
from corral.wire.document.kinds import SIZE_OVER_ZERO, Kind, listing, meant, text
from corral.wire.document.table import Key, Table, table_kind
from corral.wire.job.program import PATH_TEXT

PULL = ("missing", "always", "never")


class ContainerRules(Struct, frozen=True, kw_only=True):
    """How jobs with an image are run on this machine. ``socket`` empty: the engine is looked for; ``mounts`` empty:
    whatever the account may reach; ``shm_mib`` None: as much as the task may have memory."""

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


_PULL = Kind(_read_pull, {"enum": list(PULL)}, "missing, always or never")
CONTAINER_KEYS = Table(
    "containers",
    [
        Key("socket", PATH_TEXT, "The Unix socket of Podman's or Docker's service.", "/run/podman/podman.sock",
            default="looked for", into="socket"),
        Key("pull", _PULL, "When images are fetched: `missing`, `always` or `never`.", "missing", default="missing",
            into="pull"),
        Key("mounts", listing(PATH_TEXT, "a list of paths", "mounts"), "Of which places jobs may mount something.",
            ["/data", "/home"], default="what the account may reach", into="mounts"),
        Key("network", text("the name of a network"), "The engine's network; `host` for training across machines.",
            "host", default="host", into="network"),
        Key("shm", SIZE_OVER_ZERO, "Shared memory of a container.", "16GiB", default="the memory of the task",
            into="shm_mib"),
        Key("cdi_kind", text("a kind of devices"), "What GPUs are called in the CDI specification.", "nvidia.com/gpu",
            default="nvidia.com/gpu", into="cdi_kind"),
    ],
)  # fmt: skip


def _rules(found: dict[str, Any]) -> ContainerRules:
    return ContainerRules(**{key.into: found[key.name] for key in CONTAINER_KEYS.keys if key.name in found})


CONTAINERS = table_kind(CONTAINER_KEYS, "a mapping", _rules)
