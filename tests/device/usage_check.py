"""Is what a job does on a real GPU shown as it is? A plain script for a machine that has one; prints a line of JSON.

    PYTHONPATH=src python tests/device/usage_check.py

Needs Corral's sources, msgspec, nvidia-ml-py and torch. A task multiplies matrices with 8 GiB of GPU memory and reports
steps and a loss; a second one holds the GPU afterwards and does nothing. Exit 0: while the first runs, utilisation is
over 50 %, at least 8 GiB are in use and the power is over that of the idle GPU, with steps and loss; while the second
runs, the GPU counts as idle.
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

from corral.health.monitor import Monitor
from corral.health.watched import WatchedBackend
from corral.runtime.base import ActivityReport, Report, TaskActivity, TaskKey, TaskOrder
from corral.runtime.inventory import inventory
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings
from corral.wire.details import GpuActivity
from corral.wire.health import HealthSettings

PATIENCE_S = 120
COMPUTES = """
import time, torch
import corral_training as training
kept = torch.ones(8 << 30, dtype=torch.uint8, device="cuda")
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
step = 0
while True:
    began = time.monotonic()
    for _ in range(20):
        b = a @ a
    torch.cuda.synchronize()
    step += 1
    training.step_done(time.monotonic() - began, step=step, loss=b.float().abs().mean() * 0 + 1 / step)
"""
IDLES = """
import time, torch
kept = torch.ones(1 << 30, dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
time.sleep(600)
"""


class Latest:
    """The newest report; those before are dropped, as the server does."""

    def __init__(self) -> None:
        self.report: ActivityReport | None = None
        self.news = threading.Condition()

    def __call__(self, report: Report) -> None:
        if isinstance(report, ActivityReport):
            with self.news:
                self.report = report
                self.news.notify_all()

    def until(self, key: TaskKey, is_so: Callable[[TaskActivity, GpuActivity], bool]) -> dict[str, object] | None:
        """What was reported once that holds; None: it never did."""

        def found() -> bool:
            task = self.task(key)
            return task is not None and self.report is not None and is_so(task, self.report.gpus[0])

        with self.news:
            if not self.news.wait_for(found, PATIENCE_S) or self.report is None:
                return None
            return {"task": str(self.task(key)), "gpu": str(self.report.gpus[0])}

    def task(self, key: TaskKey) -> TaskActivity | None:
        tasks = () if self.report is None else self.report.tasks
        return next((task for task in tasks if task.key == key), None)


def main() -> int:
    folder, latest = Path(tempfile.mkdtemp()), Latest()
    node = inventory()
    settings = LocalSettings(account="root" if os.geteuid() == 0 else "", activity_ms=2_000)
    local = LocalBackend(folder, node, settings)
    monitor = Monitor(node, folder, HealthSettings(interval_ms=1_000, probes=False))
    backend = WatchedBackend(local, monitor)
    backend.open(latest, 1)
    paths = ":".join(path for path in sys.path if path)
    env = (("PYTHONPATH", paths), ("CORRAL_JOB_ID", "1"))

    def launch(name: str, script: str) -> TaskKey:
        key = TaskKey(f"{name}/main", 1, 0)
        command = (sys.executable, "-c", script)
        backend.launch(
            [TaskOrder(key=key, epoch=1, node=node.name, command=command, env=env, gpus=(node.gpus[0].uuid,))]
        )
        return key

    time.sleep(5)
    idle_mw = 0 if latest.report is None else latest.report.gpus[0].power_mw or 0
    computes = launch("1", COMPUTES)
    busy = latest.until(
        computes,
        lambda task, gpu: (
            (gpu.utilisation_percent or 0) > 50
            and (gpu.memory_used_mib or 0) >= 8 * 1024
            and (gpu.power_mw or 0) > idle_mw
            and bool(task.cpu_milli)
            and any(rank.step and rank.step_ms and "loss" in rank.metrics for rank in task.ranks)
        ),
    )
    backend.kill(computes)
    time.sleep(5)
    idles = launch("2", IDLES)
    idle = latest.until(idles, lambda _, gpu: (gpu.idle_ms or 0) >= 10_000 and (gpu.memory_used_mib or 0) >= 1024)
    cpu_s, wall_s = _cost()
    backend.kill(idles)
    time.sleep(2)
    backend.close()
    shutil.rmtree(folder, ignore_errors=True)
    good = busy is not None and idle is not None
    print(
        json.dumps(
            {"gpu": node.gpus[0].model, "busy": busy, "idle": idle, "cpu_s": cpu_s, "of_s": wall_s, "good": good}
        )
    )
    return 0 if good else 1


def _cost() -> tuple[float, float]:
    """CPU time of this process over some seconds in which a task idles: monitor at 1 s, activity at 2 s."""
    began, began_cpu = time.monotonic(), time.process_time()
    time.sleep(20)
    return round(time.process_time() - began_cpu, 2), round(time.monotonic() - began, 1)


if __name__ == "__main__":
    sys.exit(main())
