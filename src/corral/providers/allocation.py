"""What a provider has allocated on this machine, read from the environment that it gives its processes.

Pure: a mapping in, a value out. An agent offers no more than that: the rest of the machine belongs to others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from corral.core.cluster.resources import Gpu

_NONE = frozenset({"", "NoDevFiles", "-1"})


class Allocation(Struct, frozen=True, kw_only=True):
    """None: not stated, so all that is found. ``gpus``: numbers among the GPUs that are found, or UUIDs."""

    gpus: tuple[str, ...] | None = None
    cpus: int | None = None
    memory_mib: int | None = None
    path: tuple[str, ...] = ()


def granted(provider: str, env: Mapping[str, str]) -> Allocation:
    """Raises ValueError if there is no such provider, or it did not start this process."""
    if provider not in _BY_PROVIDER:
        raise ValueError(f"unknown provider {provider!r}: use one of {', '.join(filter(None, _BY_PROVIDER))}")
    return _BY_PROVIDER[provider](env)


def offered(found: Sequence[Gpu], grant: Allocation) -> tuple[Gpu, ...]:
    """The GPUs of a machine that were allocated."""
    if grant.gpus is None:
        return tuple(found)
    chosen = set(grant.gpus)
    return tuple(gpu for slot, gpu in enumerate(found) if str(slot) in chosen or gpu.uuid in chosen)


def _everything(_env: Mapping[str, str]) -> Allocation:
    return Allocation()


def _by_slurm(env: Mapping[str, str]) -> Allocation:
    if "SLURM_JOB_ID" not in env:
        raise ValueError("this process was not started by Slurm: SLURM_JOB_ID is not set")
    cpus = _number(env.get("SLURM_CPUS_ON_NODE", ""))
    memory = _number(env.get("SLURM_MEM_PER_NODE", ""))
    if memory is None and cpus is not None and (each := _number(env.get("SLURM_MEM_PER_CPU", ""))) is not None:
        memory = each * cpus
    return Allocation(
        gpus=_slurm_gpus(env), cpus=cpus, memory_mib=memory or None, path=slurm_path(env.get("SLURM_TOPOLOGY_ADDR", ""))
    )


def _slurm_gpus(env: Mapping[str, str]) -> tuple[str, ...]:
    """``CUDA_VISIBLE_DEVICES`` counts among the devices that the job can see, whether or not Slurm hides the others. A
    cluster whose GPUs have no device files states only their number."""
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_JOB_GPUS"):
        stated = env.get(name, "")
        if stated not in _NONE:
            return tuple(part.strip() for part in stated.split(","))
    return tuple(map(str, range(_number(env.get("SLURM_GPUS_ON_NODE", "")) or 0)))


def slurm_path(address: str) -> tuple[str, ...]:
    """``spine.leaf1.n3`` is at spine, leaf1; a node without switches has no path. Names of domains must not contain the
    separator."""
    parts = address.split(".")[:-1]
    return tuple(re.sub(r"[/\s]", "_", part) for part in parts if part)


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


_BY_PROVIDER: dict[str, Callable[[Mapping[str, str]], Allocation]] = {"": _everything, "slurm": _by_slurm}
