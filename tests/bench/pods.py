"""How fast gangs become pods on a real API server: small gangs one after another, then one of many tasks.

    python -m tests.bench.pods --tasks 1000

The nodes do not start them (their process is ended): what is measured is Corral and the API server. The time of a gang
is from the order to the answer for its last pod. Then some requests are answered with 429, by a proxy. Ends with one
line of JSON: ``gang_ms_p50``, ``gang_ms_max`` (4 tasks on 4 nodes), ``many``, ``many_s``, ``busy`` (answers of 429),
``early`` (such answers after which requests came sooner than they allowed), ``lists`` (of all kinds: everything else is
read by watches), ``load``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from msgspec import structs

from corral.kubernetes.pod_backend import PodBackend
from corral.runtime.base import TaskKey, TaskOrder
from tests.kubernetes.breaking_proxy import BUSY, PASS, BreakingProxy
from tests.kubernetes.control_plane import ControlPlane, NoControlPlane
from tests.kubernetes.pods import pods_namespace, settings_for
from tests.runtime.reports import Collector, order, until

GANGS, BUSY_EVERY, EPOCH = 20, 250, 1


def orders(gang: str, tasks: int) -> list[TaskOrder]:
    plain = [order(TaskKey(gang, 1, task), "true", epoch=EPOCH) for task in range(tasks)]
    return [structs.replace(each, node=f"node-{each.key.task % 4}") for each in plain]


def ms_to_create(backend: PodBackend, gang: str, tasks: int) -> float:
    """Until the API server has confirmed every pod of the gang."""
    began = time.monotonic()
    backend.launch(orders(gang, tasks))
    until(lambda: backend.created(gang) == tasks)
    return (time.monotonic() - began) * 1000


def measure(plane: ControlPlane, namespace: str, folder: Path, tasks: int) -> dict[str, object]:
    settings = settings_for(plane, namespace, folder)
    direct = PodBackend(folder / "server", settings)
    direct.open(Collector(), 1)
    gangs = [ms_to_create(direct, f"{n}/main", 4) for n in range(GANGS)]
    many_s = ms_to_create(direct, "many/main", tasks) / 1000
    reads = sum(watch.lists for watch in direct.watches)
    direct.close()
    proxy = BreakingProxy(plane, folder)
    proxy.retry_after_s = 1
    posts: list[tuple[float, str]] = []
    lock = threading.Lock()

    def rule(method: str, path: str) -> str:
        if method != "POST" or not path.endswith("/pods"):
            return PASS
        with lock:
            answer = BUSY if len(posts) % BUSY_EVERY == 10 else PASS
            posts.append((time.monotonic(), answer))
        return answer

    proxy.rule = rule
    slow = PodBackend(folder / "slow", structs.replace(settings, kubeconfig=str(proxy.kubeconfig)))
    slow.open(Collector(), EPOCH)
    ms_to_create(slow, "busy/main", min(tasks, 500))
    slow.close()
    proxy.close()
    busy = [at for at, answer in posts if answer == BUSY]
    # Requests that were on their way when the answer was given may still arrive.
    early = sum(any(at + 0.3 < other < at + 0.9 for other, _ in posts) for at in busy)
    return {
        "gang_ms_p50": round(statistics.median(gangs), 1), "gang_ms_max": round(max(gangs), 1), "many": tasks,
        "many_s": round(many_s, 2), "busy": len(busy), "early": early, "lists": reads,
        "load": round(os.getloadavg()[0], 1),
    }  # fmt: skip


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--tasks", type=int, default=1000)
    given = options.parse_args()
    try:
        plane = ControlPlane(node_grace="600s")
    except NoControlPlane as missing:
        print(missing, file=sys.stderr)
        return 2
    try:
        plane.kill("nodes")
        with tempfile.TemporaryDirectory(prefix="corral-pods-") as folder, pods_namespace(plane) as namespace:
            found = measure(plane, namespace, Path(folder), given.tasks)
            plane.call("DELETE", f"/api/v1/namespaces/{namespace}/pods", {"gracePeriodSeconds": 0})
    finally:
        plane.stop()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
