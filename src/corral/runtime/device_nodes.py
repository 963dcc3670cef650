"""The device nodes of this machine's GPUs. They are used to keep tasks from opening the GPUs of others, and to verify
from outside that a container has its own.

Knows NVML's minor numbers. Without a driver there are no nodes, and nothing to verify.
"""

from __future__ import annotations


def device_nodes() -> dict[str, str]:
    """UUID to path, as ``/dev/nvidia0``."""
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return {}
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        found = {pynvml.nvmlDeviceGetUUID(h): f"/dev/nvidia{pynvml.nvmlDeviceGetMinorNumber(h)}" for h in handles}
        return {uuid.decode() if isinstance(uuid, bytes) else uuid: node for uuid, node in found.items()}
    except pynvml.NVMLError:
        return {}
    finally:
        pynvml.nvmlShutdown()
