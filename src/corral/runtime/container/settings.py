"""Settings of containers on this machine. Knows defaults, not how they are used."""

from __future__ import annotations

from msgspec import Struct

from corral.runtime.container.task.image_pull import ALWAYS, MISSING, NEVER

PULL_POLICIES = (MISSING, ALWAYS, NEVER)


class ContainerSettings(Struct, frozen=True, kw_only=True):
    """``socket``: of the container runtime; empty: it is looked for. ``pull``: one of `PULL_POLICIES`. ``mounts``:
    directories below which anything may be mounted; empty: whatever the account can reach. ``network``: the network
    mode of the runtime; training across machines needs ``host``. ``shm_mib``: shared memory; 0: the memory limit of
    the task. ``cdi_kind``: the kind of this machine's GPUs in its CDI specification."""

    socket: str = ""
    pull: str = MISSING
    mounts: tuple[str, ...] = ()
    network: str = "host"
    shm_mib: int = 0
    cdi_kind: str = "nvidia.com/gpu"
    sweep_s: float = 60.0  # between two searches for containers without a task

    def __post_init__(self) -> None:
        if self.pull not in PULL_POLICIES:
            raise ValueError(f"{self.pull!r} is not a pull policy: use one of {', '.join(PULL_POLICIES)}")
        for place in self.mounts:
            if not place.startswith("/"):
                raise ValueError(f"{place!r}: a directory that may be mounted must be an absolute path, such as /data")
