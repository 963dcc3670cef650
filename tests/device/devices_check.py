"""Can a process be kept from a real GPU by its cgroup, and given it again? A plain script for a machine that has one,
with version 2 of cgroups, as root; prints a line of JSON.

    PYTHONPATH=src python tests/device/devices_check.py

Needs Corral's sources and torch; nothing else. Exit 0: the device could be opened and CUDA used when it was given, and
neither when it was denied.
"""

import json
import os
import subprocess
import sys
import time

from corral.runtime.local.task import cgroups, device_access

NODE = "/dev/nvidia0"
CUDA = "import torch; assert torch.ones(3, device='cuda').sum().item() == 3"


def main() -> int:
    layout = cgroups.detect("corral-check")
    if layout.version != 2 or (why := device_access.why_not(layout)):
        print(json.dumps({"skipped": why if layout.version == 2 else "not version 2 of cgroups"}))
        return 2
    groups = cgroups.TaskGroups(2, {limit: f"{parent}/task" for limit, parent in layout.parents.items()})
    groups.make(None, None, False, 1_000)
    numbers = list(device_access.numbers({"gpu": NODE}).values())
    found = []
    for denied in ([], numbers, []):
        began = time.perf_counter()
        device_access.deny(2, groups.unique[0], denied, [])
        took_us = round((time.perf_counter() - began) * 1e6)
        opens, uses = (
            _succeeds(groups, *words) for words in (("sh", "-c", f": < {NODE}"), (sys.executable, "-c", CUDA))
        )
        found.append({"is_denied": bool(denied), "took_us": took_us, "opens": opens, "uses_cuda": uses})
    groups.remove()
    os.rmdir(layout.folders()[0])
    print(json.dumps(found))
    return 0 if numbers and all(row["opens"] == row["uses_cuda"] == (not row["is_denied"]) for row in found) else 1


def _succeeds(groups: cgroups.TaskGroups, *words: str) -> bool:
    return subprocess.run(words, preexec_fn=groups.enter, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
