"""Where a little more of something costs very much more: chains and fans of dependencies, gangs of thousands of tasks,
readers by the dozen, and cycles with very many shapes, queues, reservations and elastic gangs.

`make bench-cliffs` (`QUICK=1`: smaller numbers). The engine is turned in this process (CPU time of a cycle); the rest
is asked of a real server over HTTP, with one more client that asks for health all the time: its slowest answer is how
long others had to wait. Prints what it finds as it finds it and ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: the root of the repository is not on the path
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from corral.core import events as e
from corral.core.apply import apply
from corral.core.cluster.resources import Demand, Seat, TaskDemand
from corral.core.model import GangSpec, JobSpec, QueueSpec, Settings
from corral.core.state import State
from corral.core.work import Work
from corral.server.dispatch import Dispatch
from tests.bench import cliffs_engine as engine
from tests.bench.engine import calibrate
from tests.bench.load import share
from tests.e2e.live import Live
from tests.e2e.serving import node

HELD = {"command": ["true"], "gpus": 1, "hold": True}
READS = (
    "/v1/queues", "/v1/nodes", "/v1/jobs?limit=500", "/v1/jobs?labels=no=body", "/v1/events?limit=500", "/v1/metrics",
    "/v1/usage",
)  # fmt: skip


class Size:
    """How much of everything."""

    def __init__(self, is_quick: bool) -> None:
        self.chain, self.tasks, self.turns = (500, 1_000, 4) if is_quick else (5_000, 10_000, 6)
        self.parents, self.children = (100, 20) if is_quick else (1_000, 200)
        self.pending, self.seconds = (2_000, 5) if is_quick else (20_000, 20)
        self.shapes, self.elastic = (2_000, 500) if is_quick else (20_000, 5_000)
        self.tree = (6, 6, 6) if is_quick else (12, 12, 15)
        self.reservations = 20 if is_quick else 100


class Bench:
    def __init__(self, live: Live, size: Size) -> None:
        self.live, self.size, self.figures = live, size, dict[str, Any]()

    def say(self, name: str, value: Any) -> None:
        self.figures[name] = round(value, 1) if isinstance(value, float) else value
        print(f"{name:28} {self.figures[name]}", flush=True)

    # ---- the engine --------------------------------------------------------------------------------------------

    def engine(self) -> None:
        size = self.size
        self.say("calibration_ms", calibrate())
        self.cycle("shapes", lambda: engine.shapes(size.shapes, size.turns))
        self.cycle("shapes_like", lambda: engine.shapes(size.shapes, size.turns, distinct=False))
        self.cycle("queues", lambda: engine.queues(size.tree, size.turns))
        self.cycle("reservations", lambda: engine.reservations(size.reservations, size.turns))
        self.cycle("elastic", lambda: engine.elastic(size.elastic, size.turns))
        self.orders()

    def cycle(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        found = measure()
        self.say(f"{name}_cycle_ms", found["ms"])
        self.say(f"{name}_digest", found["digest"])

    def orders(self) -> None:
        """What the loop does when a gang of very many tasks is placed: one order for each of them."""
        state, count = State(Settings()), self.size.tasks
        gangs = (GangSpec(Demand(task=TaskDemand(), tasks=count), work=Work(command=("true",))),)
        spec = JobSpec(queue="default", gangs=gangs)
        seats = tuple(Seat(node().name, 0) for _ in range(count))
        for event in (
            e.NodeAdded(1, node()), e.QueueSet(1, QueueSpec(name="default")), e.JobSubmitted(1, "1", spec, "ann"),
            e.GangPlaced(2, "1/main", 1, seats),
        ):  # fmt: skip
            apply(state, event)
        dispatch = Dispatch(state, None, 1, lambda queue, name: None)  # type: ignore[arg-type]
        began = time.process_time()
        made = len(list(dispatch.orders(state.gangs["1/main"])))
        assert made == count
        self.say("tasks_stall_ms", (time.process_time() - began) * 1000)

    # ---- the server --------------------------------------------------------------------------------------------

    def server(self) -> None:
        self.live.start()
        blocker = self.live.submit({"command": ["sleep", "100000"], "gpus": self.live.gpus})
        self.chain()
        self.fan_in()
        self.readers()
        self.live.ask("POST", f"/v1/jobs/{blocker}/cancel")
        self.live.stop()

    def chain(self) -> None:
        jobs = [{**HELD, **({"after": [f"#{n - 1}"]} if n else {})} for n in range(self.size.chain)]
        with self.stall("chain_stall_ms"):
            self.live.ask("POST", "/v1/jobs/batch", {"jobs": jobs}, timeout=120)

    def fan_in(self) -> None:
        parents = [HELD] * self.size.parents
        after = [f"any:#{n}" for n in range(self.size.parents)]
        children = [{**HELD, "after": after}] * self.size.children
        answer = self.live.ask("POST", "/v1/jobs/batch", {"jobs": parents + children}, timeout=120)
        with self.stall("fan_in_stall_ms"):
            for job in answer["jobs"][:20]:
                self.live.ask("POST", f"/v1/jobs/{job['id']}/cancel")

    def readers(self) -> None:
        """Fifty who read without pause, and one who submits."""
        for at in range(0, self.size.pending, 1_000):
            jobs = [{"command": ["true"], "gpus": 1, "cpus": 1 + (at + n) % 64, "labels": {"a": str(n % 9)}}
                    for n in range(min(1_000, self.size.pending - at))]  # fmt: skip
            self.live.ask("POST", "/v1/jobs/batch", {"jobs": jobs}, timeout=120)
        for name, path in (("events_job_ms", "/v1/events?job=3"), ("label_ms", "/v1/jobs?labels=no=body")):
            self.say(name, min(self.timed(path) for _ in range(5)))
        times: list[float] = []
        with self.reading(50), self.stall("readers_stall_ms"), self.live.connection() as connection:
            end = time.monotonic() + self.size.seconds
            while time.monotonic() < end:
                began = time.perf_counter()
                self.live.ask_on(connection, "POST", "/v1/jobs", HELD, Idempotency_Key=f"r{len(times)}")
                times.append((time.perf_counter() - began) * 1000)
        times.sort()
        self.say("readers_submits", len(times))
        self.say("readers_submit_p50_ms", share(times, 0.5))
        self.say("readers_submit_p99_ms", share(times, 0.99))

    def timed(self, path: str) -> float:
        began = time.perf_counter()
        self.live.ask("GET", path)
        return (time.perf_counter() - began) * 1000

    @contextmanager
    def reading(self, count: int) -> Iterator[None]:
        """This many readers without pause, in a process of their own."""
        spawn = multiprocessing.get_context("spawn")
        over, read = spawn.Event(), spawn.Value("i", 0)
        process = spawn.Process(target=read_on, args=(self.live.port, self.live.token, count, over, read), daemon=True)
        process.start()
        while not read.value and process.is_alive():
            time.sleep(0.05)
        try:
            yield
        finally:
            over.set()
            process.join(120)
            self.say("reads", read.value)

    @contextmanager
    def stall(self, name: str) -> Iterator[None]:
        """The slowest of the answers that another client had meanwhile."""
        over, slowest = threading.Event(), [0.0]

        def watch() -> None:
            with self.live.connection(120) as connection:
                while not over.is_set():
                    began = time.perf_counter()
                    self.live.ask_on(connection, "GET", "/v1/health")
                    slowest[0] = max(slowest[0], (time.perf_counter() - began) * 1000)
                    time.sleep(0.002)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(120)
            self.say(name, slowest[0])


def read_on(port: int, token: str, count: int, over: Any, read: Any) -> None:
    def one(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        while not over.is_set():
            connection.request("GET", READS[number % len(READS)], headers={"Authorization": f"Bearer {token}"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            number += 1
            with read.get_lock():
                read.value += 1

    threads = [threading.Thread(target=one, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(is_quick: bool, has_engine: bool = True, has_server: bool = True) -> None:
    load = os.getloadavg()[0]
    folder = Path(tempfile.mkdtemp(prefix="corral-cliffs-"))
    bench = Bench(Live(folder / "data"), Size(is_quick))
    bench.say("load_average", load)
    try:
        if has_engine:
            bench.engine()
        if has_server:
            bench.server()
    finally:
        if bench.live.process is not None:
            bench.live.kill()
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({**bench.figures, "is_quick": is_quick}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="smaller numbers")
    parser.add_argument("--only", choices=("engine", "server"), help="leave the other out")
    asked = parser.parse_args()
    main(asked.quick, asked.only != "server", asked.only != "engine")
