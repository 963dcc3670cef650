"""The interface behind a real socket of this machine, and a client that writes and reads bytes as it likes."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import uvicorn

from corral.server.api.connection_limit import ConnectionBudget
from corral.server.api.http.header_timeout import timed_heads


@asynccontextmanager
async def served(setup, most: int = 4_000):
    """uvicorn on some free port of this machine, with this many connections."""
    budget = ConnectionBudget(setup.app, most)
    config = uvicorn.Config(
        budget,
        host="127.0.0.1",
        port=0,
        http=budget.counted(timed_heads(setup.app.shared.settings)),
        interface="asgi3",
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    serving = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield server, port
    finally:
        server.should_exit = True
        async with asyncio.timeout(10):
            await serving


async def connected(port: int, head: str):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(head.replace("\n", "\r\n").encode() + b"\r\n\r\n")
    await writer.drain()
    return reader, writer


async def answer_of(reader) -> tuple[int, dict[str, object]]:
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(
            next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")).split()[1]
        )
        return int(head.split()[1]), json.loads(await reader.readexactly(length))


def request(setup, method: str, path: str, *headers: str) -> str:
    lines = [f"{method} {path} HTTP/1.1", "Host: here", f"Authorization: Bearer {setup.member}", *headers]
    return "\n".join(lines)
