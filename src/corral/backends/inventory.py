"""This machine as a node: its CPUs, memory and GPUs, less what is kept back for the system.

Knows the operating system's own counts. Knows nothing of what is in use.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from corral.backends import gpus as devices
from corral.core.cluster.resources import CPU_MILLI, MEMORY_MIB, Gpu, amounts
from corral.core.cluster.topology import NodeSpec


def inventory(
    name: str = "",
    gpus: Sequence[Gpu] | None = None,
    cpu_milli_reserved: int = 0,
    memory_mib_reserved: int = 0,
    path: Sequence[str] = (),
) -> NodeSpec:
    """``name`` empty: the host's name. ``gpus`` None: those that are found. ``path``: where it stands."""
    cpu_milli = max(len(os.sched_getaffinity(0)) * 1000 - cpu_milli_reserved, 0)
    memory_mib = max(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20 - memory_mib_reserved, 0)
    return NodeSpec(
        name or socket.gethostname(),
        tuple(gpus if gpus is not None else devices.found()),
        amounts({CPU_MILLI: cpu_milli, MEMORY_MIB: memory_mib}),
        tuple(path),
    )
