"""Do leases depend on anything that users do? Everything at once against one server, for `make attack`.

`python -m tests.bench.attack` starts a server for many machines, 200 light agents that run a task each, and then for
`--seconds`: a member submits the largest batches that are allowed, again and again; 5,000 connections stand idle; 500
followers read logs; heads of 100 MiB arrive; and the planner is stopped (SIGSTOP). Meanwhile another user asks
`/v1/health` ten times a second. All of it on loopback, bounded in time, in processes of its own. Ends with one line of
JSON: `tasks_lost` (tasks whose lease passed, and attempts that the server gave up), `lease_gap_ratio` (the longest time
between two renewals over the lease), `health_p99_ms`, `rss_mib` (the most that server and gateway had together).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import uvloop

from corral.cli.fleet.testbed_parts import GATEWAY, PLANNER, SERVER, Testbed
from tests.bench.fleet import join_all
from tests.bench.light import LightAgent

LEASE_MS = 8_000
IDLE, FOLLOWERS, HEADS, BATCHES = 5_000, 500, 4, 2
HEAD_BYTES, PIECE = 100 << 20, 64 << 10
MEMBERS = tuple(f"member-{n}" for n in range(5))  # one user may not have as many streams as followers there are


# ---- the attackers, each in a process of its own -----------------------------------------------------------------


async def idle(port: int, _token: str, end: float) -> None:
    """Connections that say nothing; those that are closed come again."""

    async def one(number: int) -> None:
        await asyncio.sleep(number / IDLE * 5)
        while time.monotonic() < end:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(10):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(max(end - time.monotonic(), 0)):
                        await reader.read(1 << 16)
                writer.close()
            await asyncio.sleep(1)

    await asyncio.gather(*(one(number) for number in range(IDLE)))


async def heads(port: int, _token: str, end: float) -> None:
    """Requests whose head has 100 MiB."""

    async def one() -> None:
        while time.monotonic() < end:
            with suppress(OSError, TimeoutError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                try:
                    writer.write(b"GET /v1/health HTTP/1.1\r\nHost: x\r\nX-Long: ")
                    for _ in range(HEAD_BYTES // PIECE):
                        writer.write(b"x" * PIECE)
                        async with asyncio.timeout(10):
                            await writer.drain()
                        if writer.is_closing() or time.monotonic() > end:
                            break
                finally:
                    writer.close()
            await asyncio.sleep(0.2)

    await asyncio.gather(*(one() for _ in range(HEADS)))


async def followers(port: int, tokens: str, end: float) -> None:
    """Logs of the tasks that run, followed; who is refused comes again."""
    everybody = tokens.split()

    async def one(number: int) -> None:
        await asyncio.sleep(number / FOLLOWERS * 5)
        token = everybody[number % len(everybody)]
        path = f"/v1/jobs/{1 + number % 50}/logs?follow=true"
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        while time.monotonic() < end:
            with suppress(OSError, TimeoutError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(head)
                with suppress(OSError, TimeoutError):
                    async with asyncio.timeout(max(end - time.monotonic(), 0)):
                        while await reader.read(1 << 16):
                            pass
                writer.close()
            await asyncio.sleep(1)

    await asyncio.gather(*(one(number) for number in range(FOLLOWERS)))


async def batches(port: int, tokens: str, end: float) -> None:
    """The largest batches that are allowed: halved when one is refused for its size, doubled when it was taken."""
    token = tokens.split()[0]
    document = {
        "name": "flood",
        "array": "0-9999",
        "gangs": [{"role": f"g{n}", "command": "true", "gpus": 1} for n in range(16)],
    }

    async def one() -> None:
        array, count = 10_000, 64
        while time.monotonic() < end:
            body = json.dumps({"jobs": [document | {"array": f"0-{array - 1}"}] * count}).encode()
            status = 0
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                status = await _post(port, token, "/v1/jobs/batch", body)
            if status == 201:
                count = min(count * 2, 5_000)
            elif status == 422:
                array, count = (array, count // 2) if count > 1 else (max(array // 2, 1), 64)
            await asyncio.sleep(0.05)

    await asyncio.gather(*(one() for _ in range(BATCHES)))


async def _post(port: int, token: str, path: str, body: bytes) -> int:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n"
        writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(60):
            answer = await reader.readuntil(b"\r\n\r\n")
        return int(answer[9:12])
    finally:
        writer.close()


ATTACKERS: dict[str, Callable[[int, str, float], Awaitable[None]]] = {
    "idle": idle, "heads": heads, "followers": followers, "batches": batches,
}  # fmt: skip


def attack(name: str, port: int, seconds: float) -> int:
    raise_files()
    with suppress(ProcessLookupError):
        uvloop.run(_bounded(ATTACKERS[name], port, os.environ["ATTACK_TOKEN"], seconds))
    return 0


async def _bounded(
    attacker: Callable[[int, str, float], Awaitable[None]], port: int, token: str, seconds: float
) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds + 5):
            await attacker(port, token, time.monotonic() + seconds)


# ---- the others ----------------------------------------------------------------------------------------------------


class Prober(threading.Thread):
    """Asks for the health of the server ten times a second, each time over a new connection."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self._port, self.took_ms, self.over = port, list[float](), threading.Event()

    def run(self) -> None:
        import http.client

        while not self.over.wait(0.1):
            began = time.monotonic()
            try:
                line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
                line.request("GET", "/v1/health")
                if line.getresponse().status != 200:
                    began -= 30
                line.close()
            except OSError:
                began -= 30
            self.took_ms.append((time.monotonic() - began) * 1000)


def rss_mib(pids: list[int]) -> int:
    found = 0
    for pid in pids:
        with suppress(OSError, ValueError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    found += int(line.split()[1]) >> 10
    return found


def raise_files() -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def agents_at_work(bed: Testbed, tokens: dict[str, str], seconds: float) -> dict[str, object]:
    agents = [LightAgent(node, bed.agent_port, token) for node, token in tokens.items()]
    tasks = [asyncio.create_task(agent.run(n / len(agents))) for n, agent in enumerate(agents)]
    await asyncio.to_thread(_fill, bed, len(agents))
    deadline = time.monotonic() + 120
    while sum(len(agent.tasks) for agent in agents) < len(agents):
        assert time.monotonic() < deadline, "the tasks of the agents did not begin"
        await asyncio.sleep(0.2)
    running = sum(len(agent.tasks) for agent in agents)
    for agent in agents:
        agent.gap_ms = 0
    result = await asyncio.to_thread(_storm, bed, seconds)
    result |= {
        "agents": len(agents),
        "tasks": running,
        "tasks_lost": sum(agent.lost for agent in agents) + running - sum(len(agent.tasks) for agent in agents),
        "lease_gap_ratio": round(max(agent.gap_ms for agent in agents) / LEASE_MS, 3),
        "renewals": sum(agent.renewals for agent in agents),
    }
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return result


def _storm(bed: Testbed, seconds: float) -> dict[str, object]:
    server, planner = bed.processes[SERVER].pid, bed.child(PLANNER)
    env = {**os.environ, "ATTACK_TOKEN": " ".join(_member(bed, name) for name in MEMBERS)}
    prober = Prober(bed.port)
    stormers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.bench.attack", "--attacker", name, "--port", str(bed.port),
             "--seconds", str(seconds)], env=env,
        )
        for name in ATTACKERS
    ]  # fmt: skip
    os.kill(planner, signal.SIGSTOP)
    prober.start()
    end, most = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < end:
            with suppress(Exception):
                most = max(most, rss_mib([server, bed.child(GATEWAY)]))
            time.sleep(0.5)
    finally:
        prober.over.set()
        for stormer in stormers:
            stormer.terminate()
        for stormer in stormers:
            stormer.wait()
        with suppress(ProcessLookupError):
            os.kill(planner, signal.SIGCONT)
    took = sorted(prober.took_ms) or [0.0]
    return {
        "seconds": round(seconds),
        "health_p50_ms": round(took[len(took) // 2], 1),
        "health_p99_ms": round(took[int(len(took) * 0.99)], 1),
        "health_asked": len(took),
        "rss_mib": most,
        "server_alive": bed.processes[SERVER].poll() is None,
    }


def _member(bed: Testbed, name: str) -> str:
    with bed.client() as client:
        client.set_user(name, account="nobody")
        client.grant(name, "member", "default")
        return client.make_token(user=name).token


def _fill(bed: Testbed, jobs: int) -> None:
    """A job for every machine, once they have joined."""
    with bed.client() as client:
        end = time.monotonic() + 120
        while len(client.nodes().nodes) < jobs:
            assert time.monotonic() < end, "the machines did not join"
            time.sleep(0.5)
        for _ in range(jobs):
            client.submit({"command": ["sleep", "100000"], "gpus": 8, "name": "work"})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.attack", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--attacker", choices=list(ATTACKERS), help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.attacker:
        return attack(asked.attacker, asked.port, asked.seconds)
    raise_files()
    load = round(os.getloadavg()[0], 1)
    with tempfile.TemporaryDirectory(prefix="corral-attack-", ignore_cleanup_errors=True) as folder:
        bed = Testbed(Path(folder) / "bed", 0, lease_ms=LEASE_MS)
        try:
            bed.start()
            tokens = join_all(bed, [f"node-{n}" for n in range(asked.agents)])
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                figures = runner.run(agents_at_work(bed, tokens, asked.seconds))
        finally:
            bed.stop()
    print(json.dumps(figures | {"load_average_before": load}))
    ratio = figures["lease_gap_ratio"]
    assert isinstance(ratio, float)
    return 0 if not figures["tasks_lost"] and ratio <= 0.5 and figures["server_alive"] else 1


if __name__ == "__main__":
    sys.exit(main())
