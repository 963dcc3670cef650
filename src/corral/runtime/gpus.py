"""The GPUs of this machine: NVIDIA's by NVML, AMD's by `amd-smi`, or simulated ones.

Knows devices. Whatever is missing (driver, library, tool, one function of an
old driver) means fewer answers, never an error.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from corral.core.cluster.resources import Gpu
from corral.runtime.gpu_visibility import AMD, SIMULATED

_AMD_SMI_TIMEOUT_S = 30
_MIB = 2**20

#: Known models and their VRAM in GiB, as their makers state it. The first of several is the default for the name.
MODELS: Mapping[str, tuple[int, ...]] = {
    "A10": (24,), "A100": (80, 40), "A30": (24,), "A40": (48,), "B200": (180,), "B300": (288,), "GB200": (186,),
    "GH200": (96, 144), "H100": (80, 94), "H200": (141,), "L4": (24,), "L40": (48,), "L40S": (48,), "T4": (16,),
    "V100": (32, 16), "RTX3090": (24,), "RTX4090": (24,), "RTX5090": (32,), "RTX6000": (48, 96), "MI100": (32,),
    "MI210": (64,), "MI250X": (128,), "MI300X": (192,), "MI325X": (256,), "MI355X": (288,),
}  # fmt: skip

_FLEET = re.compile(r"(?:(?P<count>\d+)x)?(?P<model>[A-Za-z][A-Za-z0-9]*)(?:-(?P<gib>\d+)GB)?", re.IGNORECASE)


def found() -> tuple[Gpu, ...]:
    """All real GPUs of this machine. Empty: there are none, or there is no way to ask."""
    return nvidia() or amd()


def simulated(text: str) -> tuple[Gpu, ...]:
    """``8xH100``, ``4xA100-40GB,2xL4``: simulated GPUs; those of one model form one NVLink island."""
    gpus: list[Gpu] = []
    for island, part in enumerate(text.split(",")):
        model, vram_gib, count = _parse(part.strip())
        numbers = range(sum(gpu.model == model for gpu in gpus), 10**6)
        gpus += [Gpu(f"{SIMULATED}{model}-{n}", model, vram_gib * 1024, island) for n in numbers[:count]]
    return tuple(gpus)


def _parse(part: str) -> tuple[str, int, int]:
    match = _FLEET.fullmatch(part)
    models = {name.upper(): name for name in MODELS}
    if match is None or match["model"].upper() not in models:
        raise ValueError(
            f"{part!r} does not describe GPUs: write a number and a model, such as 8xH100 or 4xA100-40GB. "
            f"Known models: {', '.join(sorted(MODELS))}"
        )
    model = models[match["model"].upper()]
    count = int(match["count"] or 1)
    if not 1 <= count <= 1024:
        raise ValueError(f"{part!r}: a machine has from 1 to 1024 GPUs")
    return model, int(match["gib"] or MODELS[model][0]), count


# --- NVIDIA ---------------------------------------------------------------------------------------------------------


def nvidia() -> tuple[Gpu, ...]:
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        islands = _islands(pynvml, handles)
        return tuple(_nvidia_gpu(pynvml, h, island) for h, island in zip(handles, islands, strict=True))
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _nvidia_gpu(nvml: Any, handle: Any, island: int) -> Gpu:
    return Gpu(
        _text(nvml.nvmlDeviceGetUUID(handle)),
        model_of(_text(nvml.nvmlDeviceGetName(handle))),
        nvml.nvmlDeviceGetMemoryInfo(handle).total // _MIB,
        island,
    )


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value  # old bindings


def model_of(name: str) -> str:
    """The model in a product name: ``NVIDIA H100 80GB HBM3`` is an H100. An unknown name is returned unchanged."""
    words = re.split(r"[\s\-_/]+", name.upper().replace("RTX ", "RTX").replace("GEFORCE ", ""))
    known = {model.upper(): model for model in MODELS}
    return next((known[word] for word in words if word in known), name.removeprefix("NVIDIA "))


def _islands(nvml: Any, handles: Sequence[Any]) -> list[int]:
    """Numbers of NVLink islands: GPUs with links to each other, or to the same switches, are in one island."""
    links = [_links(nvml, handle) for handle in handles]
    buses = {_bus(nvml, handle): i for i, handle in enumerate(handles)}
    island = list(range(len(handles)))

    def join(a: int, b: int) -> None:
        low, high = sorted((island[a], island[b]))
        island[:] = [low if number == high else number for number in island]

    behind: dict[str, int] = {}  # a switch, and the first GPU that has a link to it
    for i, remotes in enumerate(links):
        for remote in remotes:
            join(i, buses.get(remote, behind.setdefault(remote, i)))
    if not any(links):
        _join_by_peer_access(nvml, handles, join)
    return [sorted(set(island)).index(number) for number in island]


def _links(nvml: Any, handle: Any) -> set[str]:
    """Bus addresses at the other ends of a GPU's NVLinks."""
    remotes = set()
    for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18)):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED:
                remotes.add(_text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId).upper())
        except (nvml.NVMLError, AttributeError):
            break  # no such link, or a GPU without any
    return remotes


def _bus(nvml: Any, handle: Any) -> str:
    try:
        return _text(nvml.nvmlDeviceGetPciInfo(handle).busId).upper()
    except nvml.NVMLError:
        return ""


def _join_by_peer_access(nvml: Any, handles: Sequence[Any], join: Callable[[int, int], None]) -> None:
    """For drivers that cannot list links: join GPUs that report to reach each other by NVLink."""
    capability = getattr(nvml, "NVML_P2P_CAPS_INDEX_NVLINK", 2)
    for a in range(len(handles)):
        for b in range(a):
            try:
                if nvml.nvmlDeviceGetP2PStatus(handles[a], handles[b], capability) == 0:  # NVML_P2P_STATUS_OK
                    join(a, b)
            except (nvml.NVMLError, AttributeError):
                return


# --- AMD ------------------------------------------------------------------------------------------------------------


def amd() -> tuple[Gpu, ...]:
    """By `amd-smi`, as a program: its library cannot be imported without ROCm."""
    tool = shutil.which("amd-smi")
    if tool is None:
        return ()
    listed, described = _amd_smi(tool, "list"), _amd_smi(tool, "static", "--asic", "--vram")
    by_number = {entry.get("gpu"): entry for entry in described}
    return tuple(_amd_gpu(entry, by_number.get(entry.get("gpu"), {})) for entry in listed)


def _amd_smi(tool: str, *arguments: str) -> list[dict[str, Any]]:
    try:
        ran = subprocess.run(
            [tool, *arguments, "--json"], capture_output=True, check=True, timeout=_AMD_SMI_TIMEOUT_S, text=True
        )
        output = json.loads(ran.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return []
    if isinstance(output, dict):  # newer versions put the list into an object
        output = output.get("gpu_data", [])
    return [entry for entry in output if isinstance(entry, dict)]


def _amd_gpu(listed: dict[str, Any], described: dict[str, Any]) -> Gpu:
    """The AMD runtime (ROCR_VISIBLE_DEVICES) takes its own form of UUID, or the number of the device."""
    own = listed.get("hip_uuid") or listed.get("gpu", 0)
    asic, vram = described.get("asic", {}), described.get("vram", {})
    return Gpu(f"{AMD}{own}", model_of(str(asic.get("market_name", "AMD GPU"))), _amd_vram_mib(vram.get("size")))


def _amd_vram_mib(size: Any) -> int:
    """``{"value": 196592, "unit": "MB"}``, or the bare number of older versions."""
    value, unit = (size.get("value"), size.get("unit", "MB")) if isinstance(size, dict) else (size, "MB")
    try:
        amount = int(str(value).split()[0])
    except (ValueError, IndexError):
        return 0
    return amount * 1024 if unit == "GB" else amount
