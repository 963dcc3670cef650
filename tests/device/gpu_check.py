"""Does the local backend do right by a real GPU? A plain script for a machine that has one; prints one line of JSON.

    PYTHONPATH=src python tests/device/gpu_check.py

Needs Corral's sources and its requirements msgspec and nvidia-ml-py. With torch installed it also compares the
inventory with torch's own, multiplies matrices in a task and lets one run out of GPU memory. Exit 0: every check that
could be made held.
"""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from corral.core.cluster.resources import Gpu
from corral.core.model import FailureClass
from corral.runtime import gpu_visibility
from corral.runtime.base import Phase, Report, TaskKey, TaskOrder, TaskReport
from corral.runtime.inventory import inventory
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings

PATIENCE_S = 180

SEES = """
import json, os
seen = {"visible": os.environ["CUDA_VISIBLE_DEVICES"]}
try:
    import torch
except ImportError:
    pass
else:
    seen["count"] = torch.cuda.device_count()
    if seen["count"]:
        seen["uuid"] = "GPU-" + str(torch.cuda.get_device_properties(0).uuid)
        a = torch.ones(2048, 2048, device="cuda")
        seen["product"] = float((a @ a)[0, 0])
print(json.dumps(seen))
"""

EXHAUSTS = """
import torch
kept = []
while True:
    kept.append(torch.empty(8 << 30, dtype=torch.uint8, device="cuda"))
"""


class Device:
    """A local backend on the real inventory, and the ends of the tasks that were run on it."""

    def __init__(self, folder: Path) -> None:
        self.node = inventory()
        self.backend = LocalBackend(folder, self.node, LocalSettings(account="root" if os.geteuid() == 0 else ""))
        self._downs: dict[TaskKey, TaskReport] = {}
        self._news = threading.Condition()
        self.backend.open(self._hear, 1)

    def _hear(self, report: Report) -> None:
        if isinstance(report, TaskReport) and report.phase is Phase.DOWN:
            with self._news:
                self._downs[report.key] = report
                self._news.notify_all()

    def run(self, name: str, script: str, shown: tuple[str, ...]) -> tuple[TaskReport, str, str]:
        key = TaskKey(f"{name}/main", 1, 0)
        paths = ":".join(path for path in sys.path if path)
        command = (sys.executable, "-c", script)
        env = (("PYTHONPATH", paths),)
        self.backend.launch([TaskOrder(key=key, epoch=1, node=self.node.name, command=command, env=env, gpus=shown)])
        with self._news:
            if not self._news.wait_for(lambda: key in self._downs, PATIENCE_S):
                self.backend.kill(key)
                self._news.wait_for(lambda: key in self._downs, 10)
        logs = [self.backend.read_log(key, stream, -(1 << 16), 1 << 16) for stream in ("stdout", "stderr")]
        out, err = (log.data.decode("utf-8", "replace") if log else "" for log in logs)
        return self._downs[key], out, err


def main() -> int:
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="gpu-check-"))
    device = Device(folder)
    results: dict[str, object] = {"gpus": [[g.uuid, g.model, g.vram_mib, g.island] for g in device.node.gpus]}
    checks: dict[str, Callable[[Device], object]] = {
        "inventory_matches_torch": inventory_matches_torch,
        "task_sees_its_gpu_only": task_sees_its_gpu_only,
        "task_without_gpus_sees_none": task_without_gpus_sees_none,
        "gpu_memory_exhausted": gpu_memory_exhausted,
    }
    failed = []
    for name, check in checks.items():
        try:
            results[name] = check(device)
        except Exception as fault:
            results[name] = f"FAILED: {fault!r}"[:2000]
            failed.append(name)
    device.backend.close()
    shutil.rmtree(folder, ignore_errors=True)
    results["failed"], results["seconds"] = failed, round(time.monotonic() - begun, 1)
    print(json.dumps(results))
    return 1 if failed else 0


def inventory_matches_torch(device: Device) -> object:
    expect(bool(device.node.gpus), "NVML finds a GPU")
    expect(not any(gpu_visibility.is_simulated(gpu.uuid) for gpu in device.node.gpus), "and a real one")
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return "torch is not installed"
    properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    expect(len(properties) == len(device.node.gpus), "torch finds as many")
    mine: dict[str, Gpu] = {gpu.uuid: gpu for gpu in device.node.gpus}
    for found in properties:
        gpu = mine[f"GPU-{found.uuid}"]
        expect(gpu.model in found.name.replace(" ", ""), f"{gpu.model} is {found.name}")
        expect(abs(gpu.vram_mib - found.total_memory // 2**20) < gpu.vram_mib // 20, "VRAM within 5 %")
    return "same GPUs"


def task_sees_its_gpu_only(device: Device) -> object:
    uuid = device.node.gpus[0].uuid
    down, out, err = device.run("sees", SEES, (uuid,))
    expect(down.exit_code == 0, f"exit {down.exit_code}: {down.why} {err[-500:]}")
    seen = json.loads(out)
    expect(seen["visible"] == uuid, "the variable names it")
    if "count" not in seen:
        return "torch is not installed"
    expect(seen["count"] == 1, "one GPU is seen")
    expect(seen["uuid"] == uuid, "and it is the one")
    expect(seen["product"] == 2048, "the product of two matrices of ones")
    return seen


def task_without_gpus_sees_none(device: Device) -> object:
    down, out, err = device.run("blind", SEES, ())
    expect(down.exit_code == 0, f"exit {down.exit_code}: {down.why} {err[-500:]}")
    seen = json.loads(out)
    expect(seen["visible"] == "", "no GPU is shown")
    expect(seen.get("count", 0) == 0, "and none is seen")
    return seen


def gpu_memory_exhausted(device: Device) -> object:
    try:
        import torch  # noqa: F401
    except ImportError:
        return "torch is not installed"
    down, _, err = device.run("exhausts", EXHAUSTS, (device.node.gpus[0].uuid,))
    expect(down.exit_code == 1, f"exit {down.exit_code}: {err[-500:]}")
    expect(down.failure is FailureClass.OUT_OF_MEMORY, f"classified as {down.failure}: {err[-500:]}")
    return down.why


def expect(is_so: bool, what: str) -> None:
    if not is_so:
        raise AssertionError(what)


if __name__ == "__main__":
    sys.exit(main())
