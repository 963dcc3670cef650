"""How much agents cost the server, and what is left for users that submit.

`python -m tests.bench.fleet` starts a server for a fleet and simulates agents in one process: each heartbeats and waits
for orders as a real one does, over a connection of its own, and starts nothing. Two parts: agents beside durable
submissions (`--agents`, `--rate`, `--seconds`); and many agents alone (`--idle-agents`). Ends
with one line of JSON. The jobs are held, so that what is measured is intake, not starts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path

import uvloop

from corral.agent.join_servers import JoinServers
from corral.cli.fleet.testbed_parts import GATEWAY, SERVER, Testbed
from corral.core.accounts import commands
from corral.remote.messages import JoinAnswer, JoinBody
from tests.bench.light import LightAgent

_TICKS = os.sysconf("SC_CLK_TCK")


class Wire:
    """One connection, one question at a time, as little as HTTP needs."""

    def __init__(self, port: int, token: str) -> None:
        self._port, self._token = port, token
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str, body: bytes, extra: str = "") -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {self._token}\r\n{extra}"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        status, length = int(answer[9:12]), 0
        for line in answer.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line[15:])
        return status, await reader.readexactly(length)

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()


async def submit_at(port: int, token: str, rate: float, seconds: float) -> tuple[list[float], int]:
    """Durable submissions at a steady rate, over 256 connections. Milliseconds of each, and how many went wrong."""
    body = json.dumps({"command": ["true"], "gpus": 1, "name": "load", "hold": True}).encode()
    free: asyncio.Queue[Wire] = asyncio.Queue()
    wires = [Wire(port, token) for _ in range(256)]
    for wire in wires:
        free.put_nowait(wire)
    took, errors, began = list[float](), 0, time.monotonic()

    async def one(due: float) -> None:
        nonlocal errors
        wire = await free.get()
        try:
            status, _ = await wire.ask("/v1/jobs", body)
            errors += status != 201
            took.append((time.monotonic() - due) * 1000)
        except (OSError, asyncio.IncompleteReadError):
            errors += 1
        finally:
            free.put_nowait(wire)

    async with asyncio.TaskGroup() as group:
        for n in range(int(rate * seconds)):
            due = began + n / rate
            await asyncio.sleep(max(due - time.monotonic(), 0))
            group.create_task(one(due))
    for wire in wires:
        wire.close()
    return took, errors


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def join_all(bed: Testbed, nodes: list[str]) -> dict[str, str]:
    """Tokens by node."""
    found = {}
    with bed.client() as client:
        for node in nodes:
            found[node] = join(bed, client.make_join_token(node).token, node)
    return found


def join(bed: Testbed, token: str, node: str) -> str:
    assert commands.NODE.fullmatch(node)
    return JoinServers((bed.url,), token).join(JoinBody(node), JoinAnswer).token


async def run_agents(
    bed: Testbed, tokens: dict[str, str], heartbeat_s: float, rate: float, seconds: float
) -> dict[str, float]:
    agents = [LightAgent(node, bed.agent_port, token) for node, token in tokens.items()]
    tasks = [asyncio.create_task(agent.run(heartbeat_s * n / len(agents))) for n, agent in enumerate(agents)]
    await asyncio.sleep(2 * heartbeat_s + 3)  # all have sent a full report
    server = bed.processes[SERVER].pid
    gateway = bed.child(GATEWAY)
    began, used, reports = time.monotonic(), cpu_s(server) + cpu_s(gateway), sum(agent.reports for agent in agents)
    took, errors = await submit_at(bed.port, bed.credentials().token, rate, seconds) if rate else ([0.0], 0)
    await asyncio.sleep(max(seconds - (time.monotonic() - began), 0))
    lasted = time.monotonic() - began
    share = (cpu_s(server) + cpu_s(gateway) - used) / lasted
    done = sum(agent.reports for agent in agents) - reports
    dead = sum(task.done() for task in tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    took.sort()
    return {
        "agents": len(agents),
        "reports_per_s": round(done / lasted, 1),
        "renewal_ms_max": round(max(agent.late_ms for agent in agents), 1),
        "submitted": len(took) if rate else 0,
        "submit_p50_ms": round(took[len(took) // 2], 1),
        "submit_p99_ms": round(took[int(len(took) * 0.99)], 1),
        "errors": errors + dead + sum(agent.lost + agent.refused for agent in agents),
        "server_cpu": round(share, 3),
        "own_cpu": round(time.process_time() / (time.monotonic() - began + 1), 2),
    }


def measure(agents: int, lease_ms: int, heartbeat_s: float, rate: float, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="corral-bench-", ignore_cleanup_errors=True) as folder:
        bed = Testbed(Path(folder) / "bed", 0, lease_ms=lease_ms)
        try:
            bed.start()
            tokens = join_all(bed, [f"node-{n}" for n in range(agents)])
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # what loads should cost little itself
                return runner.run(run_agents(bed, tokens, heartbeat_s, rate, seconds))
        finally:
            bed.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleet", description=__doc__)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--rate", type=float, default=500)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--idle-agents", type=int, default=1_000)
    parser.add_argument("--idle-seconds", type=float, default=30)
    asked = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    loaded = measure(asked.agents, 8_000, 2.0, asked.rate, asked.seconds) if asked.agents else {}
    idle = measure(asked.idle_agents, 20_000, 5.0, 0, asked.idle_seconds) if asked.idle_agents else {}
    figures = {
        **loaded,
        "idle": idle,
        "cpu_per_1000_agents": round(idle["server_cpu"] * 1000 / idle["agents"], 3) if idle else None,
        "errors": loaded.get("errors", 0) + idle.get("errors", 0),
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(figures))
    return 0 if not figures["errors"] else 1


if __name__ == "__main__":
    sys.exit(main())
