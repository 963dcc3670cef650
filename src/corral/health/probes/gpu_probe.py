"""Probes the one GPU that this process sees: are matrix products correct and fast, does its memory keep its content?

A separate program (`python -m corral.health.probes.gpu_probe`); it needs torch, and says so if there is none. Its last
line of output is a `ProbeReading` in JSON, or an error.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import Any

CANNOT_TRY = 3
_SIZE = 8192
_SECONDS = 2.0
_BLOCK_MIB = 1024
_PATTERNS = (0x5A5A5A5A, -0x5A5A5A5B, 0, -1)


def main() -> int:
    try:
        torch = import_module("torch")
    except ImportError:
        print("cannot probe GPUs: torch is not installed")
        return CANNOT_TRY
    if torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
        print("cannot probe GPUs: this torch is built without GPU support")
        return CANNOT_TRY
    try:
        found = _probe(torch)
    except (RuntimeError, AssertionError) as fault:
        print(" ".join(str(fault).split())[:300] or type(fault).__name__)
        return 1
    print(json.dumps(found))
    return 0


def _probe(torch: Any) -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise RuntimeError("torch does not see the GPU")
    return {"passed": True, "gflops": _multiply(torch), "mib_per_s": _test_memory(torch)}


def _multiply(torch: Any) -> int:
    """A product is compared with a second run of it, and its sums with sums that were computed in another way."""
    torch.manual_seed(1)
    a, b = (torch.randint(-1, 2, (_SIZE, _SIZE), device="cuda").to(torch.bfloat16) for _ in range(2))
    first = (a @ b).float()
    wanted = a.float() @ b.float().sum(dim=1, keepdim=True)  # whole numbers: exact except for rounding of the product
    off = (first.sum(dim=1, keepdim=True) - wanted).abs().max().item()
    if not off <= _SIZE * 8:
        raise RuntimeError(f"a matrix product is wrong by {off:g}")
    torch.cuda.synchronize()
    rounds, began = 0, time.monotonic()
    again = first
    while time.monotonic() - began < _SECONDS:
        for _ in range(10):
            again = a @ b
        torch.cuda.synchronize()
        rounds += 10
    took = time.monotonic() - began
    if not bool((again.float() == first).all()):
        raise RuntimeError("the same matrix product gave different results")
    return int(2 * _SIZE**3 * rounds / took / 1e9)


def _test_memory(torch: Any) -> int:
    """Patterns are written to most of the free memory and read back; then copies of a block are timed."""
    torch.cuda.empty_cache()
    free_mib = torch.cuda.mem_get_info()[0] // 2**20
    blocks = [
        torch.empty(_BLOCK_MIB * 2**18, dtype=torch.int32, device="cuda")
        for _ in range(max(int(free_mib * 0.8) // _BLOCK_MIB, 2))
    ]
    for pattern in _PATTERNS:
        for block in blocks:
            block.fill_(pattern)
        for n, block in enumerate(blocks):
            if not bool((block == pattern).all()):
                raise RuntimeError(f"memory lost its content, in GiB {n} of {len(blocks)}")
    torch.cuda.synchronize()
    began, rounds = time.monotonic(), 50
    for _ in range(rounds):
        blocks[0].copy_(blocks[1])
    torch.cuda.synchronize()
    return int(2 * rounds * _BLOCK_MIB / (time.monotonic() - began))


if __name__ == "__main__":
    sys.exit(main())
