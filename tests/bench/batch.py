"""Batching queues: cost of a decision, throughput and added latency on a live server, beside what users might pick.

    python -m tests.bench.batch --items 5000

The live part has one server, one worker with a handler that does nothing, and one client that sends chunks of items;
latency is measured with few items at a time, from the request to its answer, less the configured wait. Beside it: the
same handler and load through Ray Serve's ``@serve.batch``, if ``.venv-ray`` has it, through LitServe and through
Celery, with the items that are lost when the worker is killed. Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from corral.client.blocking import Client
from corral.wire.api.batch import BatchItemsBody
from tests.bench.batch_beside import celery, litserve
from tests.bench.batch_dispatch import items_per_cpu_s
from tests.e2e.batch_soak import victim
from tests.e2e.batching import batching_server, settings
from tests.e2e.live import Live

ROOT = Path(__file__).resolve().parents[2]
WAIT_MS = 20
SENDERS = 2

RAY = """
import asyncio, json, sys, time
from ray import serve
import ray
items, wait_s = int(sys.argv[1]), float(sys.argv[2])

@serve.deployment(max_ongoing_requests=1000)
class Twice:
    @serve.batch(max_batch_size=64, batch_wait_timeout_s=wait_s)
    async def many(self, items):
        return [2 * item for item in items]

    async def __call__(self, item):
        return await self.many(item)

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
handle = serve.run(Twice.bind())

async def main():
    await handle.remote(1)
    latencies, began = [], time.monotonic()
    gate = asyncio.Semaphore(500)

    async def one(n):
        async with gate:
            since = time.monotonic()
            assert await handle.remote(n) == 2 * n
            latencies.append(time.monotonic() - since)

    await asyncio.gather(*(one(n) for n in range(items)))
    took = time.monotonic() - began
    latencies.sort()
    print(json.dumps({"items_per_s": round(items / took), "p95_ms": round(latencies[int(items * .95)] * 1000, 1)}))

asyncio.run(main())
serve.shutdown()
"""


def throughput(client: Client, name: str, items: int) -> float:
    """Items per second through several senders, each with chunks ahead."""
    client.batch(name).map(range(200))
    began = time.monotonic()
    threads = [threading.Thread(target=lambda: client.batch(name).map(range(items // SENDERS))) for _ in range(SENDERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return items / (time.monotonic() - began)


def added_ms(client: Client, name: str, count: int) -> list[float]:
    """What is added to the configured wait, for requests of one item at an idle queue."""
    found = []
    for number in range(count):
        began = time.monotonic()
        client.submit_items(name, BatchItemsBody([number], wait_ms=10_000))
        found.append((time.monotonic() - began) * 1000 - WAIT_MS)
    return sorted(found)


def live(items: int, latencies: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch, batching_server(Path(scratch)) as (_, client):
        folder = Path(scratch)
        rules = {"max_batch_size": 64, "max_batch_wait": f"{WAIT_MS}ms"}
        client.set_batch_queue("durable", settings(folder, "double", **rules))
        client.set_batch_queue("fast", settings(folder, "double", durable=False, **rules))
        durable = throughput(client, "durable", items)
        fast = throughput(client, "fast", items)
        added = added_ms(client, "durable", latencies)
        return {
            "durable_items_per_s": round(durable),
            "fast_items_per_s": round(fast),
            "added_p50_ms": round(added[len(added) // 2], 1),
            "added_p99_ms": round(added[int(len(added) * 0.99)], 1),
        }


def beside_corral(items: int) -> dict[str, Any]:
    """The same load as the alternatives: items sent in chunks, and the worker killed when half of them are done."""
    with tempfile.TemporaryDirectory() as scratch, batching_server(Path(scratch)) as (live, client):
        folder = Path(scratch)
        client.set_batch_queue("beside", settings(folder, "double", max_batch_size=64, max_batch_wait=f"{WAIT_MS}ms"))
        rate = throughput(client, "beside", items)
        p95 = client.batch_queue("beside").stats.latency_p95_ms
        done = client.batch_queue("beside").stats.done
        killing = threading.Thread(target=_kill_worker, args=(live, client, done + items // 2))
        killing.start()
        views = list(client.map_items("beside", range(items)))
        killing.join()
        lost = sum(view.state != "done" or view.result != 2 * n for n, view in enumerate(views))
    return {"corral": {"items_per_s": round(rate), "p95_ms": round(p95, 1), "lost_when_killed": lost}}


def _kill_worker(live: Live, client: Client, after: int) -> None:
    end = time.monotonic() + 60
    while client.batch_queue("beside").stats.done < after and time.monotonic() < end:
        time.sleep(0.005)
    if (pid := victim(live, "worker")) is not None:
        os.kill(pid, signal.SIGKILL)


def ray_serve(items: int) -> dict[str, Any]:
    python = ROOT / ".venv-ray" / "bin" / "python"
    if not python.exists():
        return {"ray_serve": "not here: .venv-ray (make services)"}
    words = [str(python), "-c", RAY, str(items), str(WAIT_MS / 1000)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=os.environ | {"RAY_DEDUP_LOGS": "0"})
    last = done.stdout.strip().splitlines()[-1:] or [""]
    try:
        return {"ray_serve": json.loads(last[0])}
    except ValueError:
        wrong = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
        return {"ray_serve": f"does not run: {wrong}"}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--items", type=int, default=30_000)
    options.add_argument("--latencies", type=int, default=300)
    given = options.parse_args()
    found: dict[str, Any] = {"load": os.getloadavg()[0]}
    rates = {waiting: round(items_per_cpu_s(waiting, items=40_000)) for waiting in (1, 20, 200)}
    found |= {"dispatch_items_per_cpu_s": min(rates.values()), "dispatch_by_waiting": rates}
    print(json.dumps(found), flush=True)
    found |= live(given.items, given.latencies)
    print(json.dumps(found), flush=True)
    found |= beside_corral(min(given.items, 5_000))
    found |= ray_serve(min(given.items, 5_000))
    found |= {"litserve": litserve(min(given.items, 5_000), WAIT_MS / 1000), "celery": celery(min(given.items, 5_000))}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
