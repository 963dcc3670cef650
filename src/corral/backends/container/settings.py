"""What an administrator may choose about containers on this machine. Knows defaults, not how they are used."""

from __future__ import annotations

from msgspec import Struct

from corral.backends.container.task.image import ALWAYS, MISSING, NEVER

PULL_POLICIES = (MISSING, ALWAYS, NEVER)


class ContainerSettings(Struct, frozen=True, kw_only=True):
    """``socket``: of the engine; empty: looked for. ``pull``: one of `PULL_POLICIES`. ``mounts``: places of this
    machine of which something may be mounted; empty: whatever the account may reach anyway. ``network``: as the engine
    calls it; ``host`` is what training across machines needs. ``shm_mib``: of shared memory; 0: as much as the task
    may have memory. ``cdi_kind``: what the GPUs of this machine are called in its CDI specification."""

    socket: str = ""
    pull: str = MISSING
    mounts: tuple[str, ...] = ()
    network: str = "host"
    shm_mib: int = 0
    cdi_kind: str = "nvidia.com/gpu"
    sweep_s: float = 60.0  # how often containers that nobody knows are looked for

    def __post_init__(self) -> None:
        if self.pull not in PULL_POLICIES:
            raise ValueError(f"{self.pull!r} is no pull policy: one of {', '.join(PULL_POLICIES)}")
        for place in self.mounts:
            if not place.startswith("/"):
                raise ValueError(f"{place!r}: a place that may be mounted is a path from the root, as /data")
