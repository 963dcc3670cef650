"""A server with more connections than it may have, behind a real socket."""

from __future__ import annotations

import asyncio

import pytest

from corral.server.api import connection_limit
from tests.server.sockets import answer_of, connected, request, served


async def idle(port: int, count: int) -> list[asyncio.StreamWriter]:
    return [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(count)]


async def asked(setup, port: int, path: str) -> tuple[int, dict[str, object]]:
    reader, writer = await connected(port, request(setup, "GET", path))
    try:
        return await answer_of(reader)
    finally:
        writer.close()


async def test_a_full_server_says_that_it_is_busy_and_health_is_answered(setup):
    async with served(setup, most=3) as (_, port):
        silent = await idle(port, 5)
        status, problem = await asked(setup, port, "/v1/whoami")
        assert (status, problem["code"]) == (503, "server_busy")
        assert "has reached its limit of connections" in str(problem["detail"])
        reader, writer = await connected(port, request(setup, "GET", "/v1/whoami"))
        assert b"retry-after: 1" in (await reader.readuntil(b"\r\n\r\n")).lower()
        writer.close()
        assert (await asked(setup, port, "/v1/health"))[0] == 200
        for each in silent:
            each.close()
        async with asyncio.timeout(10):
            while (await asked(setup, port, "/v1/whoami"))[0] != 200:
                await asyncio.sleep(0.05)


async def test_beyond_what_is_held_back_who_came_first_and_said_nothing_goes(setup, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_limit, "HELD_BACK", 2)
    async with served(setup, most=3) as (_, port):
        first, writer = await asyncio.open_connection("127.0.0.1", port)
        silent = await idle(port, 40)
        assert (await asked(setup, port, "/v1/health"))[0] == 200
        writer.write(request(setup, "GET", "/v1/whoami").replace("\n", "\r\n").encode() + b"\r\n\r\n")
        async with asyncio.timeout(10):
            told = (await first.read()).lower()
        assert told.startswith(b"http/1.1 503 "), "also for later requests"
        assert b"retry-after: 1" in told
        assert b"server_busy" in told
        for each in (writer, *silent):
            each.close()


async def test_those_who_are_on_their_way_out_are_bounded_as_well(setup, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_limit, "HELD_BACK", 2)
    monkeypatch.setattr(connection_limit, "LEAVING_MAX", 4)
    async with served(setup, most=3) as (server, port):
        silent = await idle(port, 100)
        async with asyncio.timeout(10):
            while len(server.server_state.connections) > 3 + 2 + 4:
                await asyncio.sleep(0.01)
        assert (await asked(setup, port, "/v1/health"))[0] == 200
        for each in silent:
            each.close()
