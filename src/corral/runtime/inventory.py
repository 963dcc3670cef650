"""This machine as a node: its CPUs, memory and GPUs, less what is reserved for the system.

Knows the counts of the operating system, not what is in use.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Gpu, amounts
from corral.core.cluster.topology import NodeSpec
from corral.runtime import gpus as devices


def inventory(
    name: str = "",
    gpus: Sequence[Gpu] | None = None,
    cpu_milli_reserved: int = 0,
    memory_mib_reserved: int = 0,
    path: Sequence[str] = (),
) -> NodeSpec:
    """Empty ``name``: the host name. ``gpus`` None: those that are found. ``path``: its place in the topology."""
    cpu_milli = max(len(os.sched_getaffinity(0)) * 1000 - cpu_milli_reserved, 0)
    memory_mib = max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20 - memory_mib_reserved, 0)
    return NodeSpec(
        name or socket.gethostname(),
        tuple(gpus if gpus is not None else devices.found()),
        amounts({CPU_MILLI: cpu_milli, MEMORY_MIB: memory_mib}),
        tuple(path),
    )
