"""Is a task held to its slice of a real GPU's memory? A plain script for a machine that has one; prints a line of JSON.

    PYTHONPATH=src python tests/device/vram_check.py

Needs Corral's sources, msgspec, nvidia-ml-py and torch. Two tasks share the first GPU with slices of 20 GiB: one keeps
to it, the other takes 60 GiB, once after a save by itself, once not listening. Exit 0: the greedy one was ended both
times as `vram_exceeded`, and the other never noticed.
"""

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

from corral.core.model import FailureClass
from corral.runtime.base import Phase, Report, TaskKey, TaskOrder, TaskReport
from corral.runtime.inventory import inventory
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings

SLICE_MIB = 20 * 1024
TAKES = """
import signal, sys, time, torch
if {listens}:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(85))
else:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
kept = []
for _ in range({gib}):
    kept.append(torch.ones(1 << 30, dtype=torch.uint8, device="cuda"))
    torch.cuda.synchronize()
    time.sleep(0.05)
print("has it", flush=True)
time.sleep({then_s})
print("kept it", flush=True)
"""


class Collector:
    def __init__(self) -> None:
        self.downs: dict[TaskKey, TaskReport] = {}
        self.news = threading.Condition()

    def __call__(self, report: Report) -> None:
        if isinstance(report, TaskReport) and report.phase is Phase.DOWN:
            with self.news:
                self.downs[report.key] = report
                self.news.notify_all()

    def down(self, key: TaskKey, patience_s: float) -> TaskReport | None:
        with self.news:
            self.news.wait_for(lambda: key in self.downs, patience_s)
        return self.downs.get(key)


def main() -> int:
    folder, collector = Path(tempfile.mkdtemp()), Collector()
    node = inventory()
    backend = LocalBackend(folder, node, LocalSettings(account="root" if os.geteuid() == 0 else ""))
    backend.open(collector, 1)
    gpu = node.gpus[0].uuid
    paths = ":".join(path for path in sys.path if path)

    def launch(name: str, gib: int, listens: bool, then_s: float) -> TaskKey:
        key = TaskKey(f"{name}/main", 1, 0)
        script = TAKES.format(gib=gib, listens=listens, then_s=then_s)
        command, env = (sys.executable, "-c", script), (("PYTHONPATH", paths),)
        order = TaskOrder(key=key, epoch=1, node=node.name, command=command, env=env, gpus=(gpu,), vram_mib=SLICE_MIB)
        backend.launch([order])
        return key

    modest = launch("modest", 18, True, 60)
    began = time.monotonic()
    found: dict[str, object] = {"gpu": node.gpus[0].model}
    good = True
    for name, listens in (("listening", True), ("deaf", False)):
        begun = time.monotonic()
        down = collector.down(launch(name, 60, listens, 120), 90)
        found[name] = None if down is None else [str(down.failure), down.exit_code, down.why]
        found[f"{name}_s"] = round(time.monotonic() - begun, 1)
        good = good and down is not None and down.failure is FailureClass.VRAM_EXCEEDED
    end = collector.down(modest, 120)
    said = backend.read_log(modest, "stdout", 0, 1 << 16)
    found["modest"] = None if end is None else [str(end.failure), end.exit_code]
    found["modest_said"] = said.data.decode() if said else ""
    found["seconds"] = round(time.monotonic() - began, 1)
    good = good and end is not None and end.exit_code == 0 and "kept it" in str(found["modest_said"])
    backend.close()
    shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(found | {"good": good}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
