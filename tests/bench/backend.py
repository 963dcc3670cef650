"""How many trivial tasks a second the local backend starts and ends, and what each costs. Prints one line of JSON.

    PYTHONPATH=src:. python tests/bench/backend.py [--tasks 1000] [--at-once 16] [--limits]

CPU is that of the server's process, the spawner and the supervisors with their tasks, from /proc, read while the
supervisors still live; supervisors that were replaced meanwhile are missed, so take fewer than 5,000 tasks.
"""

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

from corral.core.cluster.topology import NodeSpec
from corral.runtime.base import Phase, Report, TaskKey, TaskOrder, TaskReport
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.settings import LocalSettings
from tests.accounts import OWN


class Bench:
    def __init__(self, folder: Path, tasks: int, at_once: int) -> None:
        self.tasks, self._room = tasks, threading.Semaphore(at_once)
        self.backend = LocalBackend(folder, NodeSpec("bench"), LocalSettings(account=OWN))
        self._sent: dict[TaskKey, float] = {}
        self.up_s: list[float] = []
        self._downs = 0
        self._done = threading.Event()
        self.backend.open(self._hear, 1)

    def run(self, memory_mib: int | None, cpu_milli: int | None) -> float:
        begun = time.perf_counter()
        for n in range(self.tasks):
            self._room.acquire()
            key = TaskKey(f"{n}/main", 1, 0)
            self._sent[key] = time.perf_counter()
            order = TaskOrder(
                key=key, epoch=1, node="bench", command=("/bin/true",), memory_mib=memory_mib, cpu_milli=cpu_milli
            )
            self.backend.launch([order])
        self._done.wait()
        return time.perf_counter() - begun

    def _hear(self, report: Report) -> None:
        if not isinstance(report, TaskReport):
            return
        if report.phase is Phase.UP:
            self.up_s.append(time.perf_counter() - self._sent[report.key])
            return
        self._room.release()
        self.backend.forget(report.key)
        self._downs += 1
        if self._downs == self.tasks:
            self._done.set()


def cpu_s(root: int) -> float:
    """Of a process and its descendants, and of the children that they have reaped."""
    parents: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry))
            used[int(entry)] = sum(map(int, fields[11:15]))
    total, pending = 0, [root]
    while pending:
        pid = pending.pop()
        total += used.get(pid, 0)
        pending += parents.get(pid, [])
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--limits", action="store_true", help="with limits of memory and CPU")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-backend-"))
    bench = Bench(folder, chosen.tasks, chosen.at_once)
    server_s = time.process_time()
    wall_s = bench.run(500, 1000) if chosen.limits else bench.run(None, None)
    server_s = time.process_time() - server_s
    tasks_s = cpu_s(_spawner(folder))
    bench.backend.close()
    shutil.rmtree(folder, ignore_errors=True)
    up_ms = sorted(1000 * s for s in bench.up_s)
    figures = {
        "tasks_per_s": round(chosen.tasks / wall_s),
        "up_p50_ms": round(up_ms[len(up_ms) // 2], 1),
        "up_p99_ms": round(up_ms[len(up_ms) * 99 // 100], 1),
        "cpu_ms_per_task": round(1000 * (server_s + tasks_s) / chosen.tasks, 2),
        "cpu_ms_per_task_of_the_server": round(1000 * server_s / chosen.tasks, 2),
    }
    print(json.dumps(figures))


def _spawner(folder: Path) -> int:
    inode = (folder / "run" / "spawner.lock").stat().st_ino
    for line in Path("/proc/locks").read_text().splitlines():
        fields = line.split()
        if fields[1] == "FLOCK" and fields[5].endswith(f":{inode}"):
            return int(fields[4])
    return 0


if __name__ == "__main__":
    main()
