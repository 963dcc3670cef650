"""Load on the interface from a light process of its own: requests made in advance, many connections kept open.

`python -m tests.bench.load PORT TOKEN ...` sends the given number of requests over the given number of connections,
each connection one after another, and prints one line of JSON. Of an answer it reads the status and the length only, so
that it takes as little as possible of the cores that the server has.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import uvloop


class Client(asyncio.Protocol):
    """One connection: sends the next request as soon as the answer to the last is there."""

    def __init__(self, load: Load) -> None:
        self.load, self.buffer = load, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.send()

    def send(self) -> None:
        request = next(self.load.requests, None)
        if request is None:
            self.transport.close()
            return
        self.began = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head = self.buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self.buffer.find(b"content-length: ")
        length = int(self.buffer[at + 16 : self.buffer.find(b"\r\n", at)]) if at > 0 else 0
        if len(self.buffer) >= head + 4 + length:
            self.load.answered(self.buffer[9:12], time.perf_counter() - self.began)
            self.buffer = b""
            self.send()

    def connection_lost(self, exc: Exception | None) -> None:
        self.load.left()


class Load:
    def __init__(self, requests: Iterator[bytes], connections: int) -> None:
        self.requests, self.connections, self.open = requests, connections, connections
        self.times_s: list[float] = []
        self.statuses: Counter[str] = Counter()
        self.over = asyncio.Event()

    def answered(self, status: bytes, seconds: float) -> None:
        self.statuses[status.decode()] += 1
        self.times_s.append(seconds)

    def left(self) -> None:
        self.open -= 1
        if self.open == 0:
            self.over.set()

    async def run(self, port: int) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        began, cpu = time.perf_counter(), time.process_time()
        for _ in range(self.connections):
            await loop.create_connection(lambda: Client(self), "127.0.0.1", port)
        await self.over.wait()
        seconds = time.perf_counter() - began
        times = sorted(self.times_s)
        return {
            "answers": len(times),
            "statuses": dict(self.statuses),
            "seconds": seconds,
            "per_s": len(times) / seconds,
            "p50_ms": share(times, 0.5) * 1000,
            "p99_ms": share(times, 0.99) * 1000,
            "max_ms": times[-1] * 1000 if times else 0.0,
            "load_cpu_s": time.process_time() - cpu,
        }


def share(times: list[float], part: float) -> float:
    return times[min(len(times) - 1, int(len(times) * part))] if times else 0.0


def requests(token: str, document: dict[str, Any], count: int, batch: int, mark: str) -> list[bytes]:
    """The same job again and again; with ``mark``, each under an idempotency key of its own, as the client does it."""
    path, body = "/v1/jobs", json.dumps(document).encode()
    if batch:
        path, body = "/v1/jobs/batch", json.dumps({"jobs": [document] * batch}).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: here\r\nauthorization: Bearer {token}\r\ncontent-type: application/json\r\n"
    end = f"content-length: {len(body)}\r\n\r\n".encode() + body
    keys = (f"idempotency-key: {mark}-{n}\r\n" if mark else "" for n in range(count))
    return [head.encode() + key.encode() + end for key in keys]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.load", description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("token")
    parser.add_argument("--document", type=json.loads, required=True)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--mark", default="")
    asked = parser.parse_args()
    made = iter(requests(asked.token, asked.document, asked.count, asked.batch, asked.mark))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(_run(made, asked.connections, asked.port))))
    return 0


async def _run(made: Iterator[bytes], connections: int, port: int) -> dict[str, Any]:
    return await Load(made, connections).run(port)


if __name__ == "__main__":
    sys.exit(main())
