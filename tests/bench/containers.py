"""How long a trivial container takes to be up and to be reported as ended. Prints one line of JSON.

    PYTHONPATH=src:. python -m tests.bench.containers [--tasks 20]

On a Podman of its own, as in the tests; one at a time. Needs root.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from corral.core.cluster.topology import NodeSpec
from corral.runtime.base import TaskKey
from corral.runtime.container.settings import ContainerSettings
from corral.runtime.local.settings import LocalSettings
from corral.runtime.machine import machine_backend
from tests.accounts import OWN
from tests.runtime.podman import IMAGE, Podman
from tests.runtime.reports import Collector, order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=20)
    tasks = parser.parse_args().tasks
    folder = Path(tempfile.mkdtemp(prefix="corral-bench-"))
    (folder / "podman").mkdir()
    podman = Podman(folder / "podman")
    backend = machine_backend(
        folder / "data", NodeSpec("n1"), LocalSettings(account=OWN), ContainerSettings(socket=podman.socket)
    )
    collector = Collector()
    backend.open(collector, 1)
    ups, downs = [], []
    for n in range(tasks + 1):
        key = TaskKey(f"{n}/main", 1, 0)
        begun = time.perf_counter()
        backend.launch([order(key, "true", image=IMAGE)])
        collector.up(key)
        ups.append(time.perf_counter() - begun)
        collector.down(key)
        downs.append(time.perf_counter() - begun)
    backend.close()
    podman.close()
    shutil.rmtree(folder, ignore_errors=True)
    up, down = sorted(ups[1:]), sorted(downs[1:])  # the first one waits until the engine has been looked at
    figures = {
        "tasks": tasks,
        "engine": f"{podman.facts.kind} {podman.facts.version}",
        "up_ms_median": round(statistics.median(up) * 1000),
        "up_ms_worst": round(up[-1] * 1000),
        "down_ms_median": round(statistics.median(down) * 1000),
        "first_up_ms": round(ups[0] * 1000),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
