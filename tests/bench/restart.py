"""Does a restart cost tasks: agents with work on them, a long queue, and a server that is stopped and killed in turn.

`python -m tests.bench.restart` starts a server for a fleet with default settings and simulates agents in one light
process (`light`), each with one connection, which keep leases exactly as real agents do and count their tasks as lost
when their lease passes. Then the server is restarted by TERM and by KILL, in turn. Ends with one line of JSON:
`tasks_lost`, `lease_gap_ratio` (the longest time between two renewals, in leases), `rounds`, and how long things took.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from corral.cli.fleet.testbed_parts import SERVER, Testbed

LEASE_MS = 8_000
_BATCH = 5_000
_SETTLE_S = 300.0


def agents_of(port: int, tokens: dict[str, str], wire: Connection) -> None:
    """The light process: says how its agents are whenever it is asked."""
    import asyncio

    import uvloop

    from tests.bench.light import LightAgent

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def live() -> None:
        agents = [LightAgent(node, port, token) for node, token in tokens.items()]
        tasks = [asyncio.create_task(agent.run(2.0 * n / len(agents))) for n, agent in enumerate(agents)]
        while True:
            while not wire.poll():
                await asyncio.sleep(0.05)
            if wire.recv() == "end":
                break
            wire.send(
                {
                    "lost": sum(agent.lost for agent in agents),
                    "tasks": sum(len(agent.tasks) for agent in agents),
                    "leased": sum(agent.is_leased for agent in agents),
                    "renewed_least": min(agent.renewals for agent in agents),
                    "gap_ms": max(agent.gap_ms for agent in agents),
                    "refused": sum(agent.refused for agent in agents),
                    "cpu_s": round(time.process_time(), 1),
                }
            )
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(live())


class Herd:
    """The agents, as seen from here."""

    def __init__(self, bed: Testbed, tokens: dict[str, str]) -> None:
        there = multiprocessing.get_context("spawn")
        self._wire, far = there.Pipe()
        self._process = there.Process(target=agents_of, args=(bed.agent_port, tokens, far), daemon=True)
        self._process.start()

    def figures(self) -> dict[str, Any]:
        self._wire.send("how")
        found: dict[str, Any] = self._wire.recv()
        return found

    def until(self, what: str, is_so: Any, patience_s: float = _SETTLE_S) -> dict[str, Any]:
        end = time.monotonic() + patience_s
        while not is_so(found := self.figures()):
            if time.monotonic() > end:
                raise TimeoutError(f"{what}: not after {patience_s:g} s: {found}")
            time.sleep(0.2)
        return found

    def close(self) -> None:
        self._wire.send("end")
        self._process.join(30)


def submit(bed: Testbed, jobs: int, gpus: int, hold: bool) -> None:
    document = {"command": ["sleep", "864000"], "gpus": gpus, "processes": 1, "name": "restart", "hold": hold}
    with bed.client(patience_s=300) as client:
        for begin in range(0, jobs, _BATCH):
            client.submit_many([document] * min(_BATCH, jobs - begin))


def measure(agents: int, pending: int, rounds: int) -> dict[str, Any]:
    from tests.bench.fleet import join_all

    with tempfile.TemporaryDirectory(prefix="corral-restart-", ignore_cleanup_errors=True) as folder:
        bed = Testbed(Path(folder) / "bed", 0, lease_ms=LEASE_MS)
        herd = None
        try:
            bed.start()
            tokens = join_all(bed, [f"node-{n}" for n in range(agents)])
            herd = Herd(bed, tokens)
            herd.until("all are there", lambda found: found["leased"] == agents)
            submit(bed, agents, 8, False)
            herd.until("every node has a task", lambda found: found["tasks"] == agents)
            submit(bed, pending, 8, False)
            return {"agents": agents, "pending": pending, "rounds": 2 * rounds} | restarts(bed, herd, agents, rounds)
        finally:
            if herd is not None:
                herd.close()
            bed.stop()


def restarts(bed: Testbed, herd: Herd, agents: int, rounds: int) -> dict[str, Any]:
    stops, starts = list[float](), list[float]()
    for n in range(2 * rounds):
        how = signal.SIGTERM if n % 2 == 0 else signal.SIGKILL
        before = herd.figures()["renewed_least"]
        began = time.monotonic()
        bed.send(SERVER, how)
        bed.processes[SERVER].wait(120)
        stopped = time.monotonic()
        bed.start_server()
        started = time.monotonic()
        stops.append(stopped - began)
        starts.append(started - stopped)
        herd.until("all renew again", lambda found, before=before: found["renewed_least"] >= before + 2)
        time.sleep(LEASE_MS / 1000)
        print(f"{how.name}: {json.dumps(herd.figures())}", file=sys.stderr, flush=True)
    last = herd.until("all have a lease", lambda found: found["leased"] == agents)
    return {
        "tasks_lost": last["lost"] + agents - last["tasks"],
        "lease_gap_ratio": round(last["gap_ms"] / LEASE_MS, 3),
        "refused": last["refused"],
        "stop_s_max": round(max(stops), 1),
        "start_s_max": round(max(starts), 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.restart", description=__doc__)
    parser.add_argument("--agents", type=int, default=1_500)
    parser.add_argument("--pending", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=10, help="of each kind")
    asked = parser.parse_args()
    figures = measure(asked.agents, asked.pending, asked.rounds)
    print(json.dumps(figures))
    return 0 if figures["tasks_lost"] == 0 and figures["lease_gap_ratio"] < 1 else 1


if __name__ == "__main__":
    sys.exit(main())
