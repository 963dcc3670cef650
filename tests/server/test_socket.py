"""The interface behind a real socket: what only shows there. Slow and endless clients, the end of a server."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from corral.server.api.http.settings import ApiSettings
from tests.server.sockets import answer_of, connected, request, served

HEAD_S = 0.4


@pytest.fixture
def settings():
    return ApiSettings(head_timeout_s=HEAD_S, body_bytes_max=1 << 20, body_timeout_s=0.3, heartbeat_s=0.1)


async def test_an_endless_body_is_cut_off(setup):
    async with served(setup) as (_, port):
        reader, writer = await connected(port, request(setup, "POST", "/v1/jobs", "Transfer-Encoding: chunked"))
        part, sent = b"10000\r\n" + b" " * 0x10000 + b"\r\n", 0
        answer = asyncio.create_task(answer_of(reader))
        try:
            while not answer.done() and sent < 1 << 30:
                writer.write(part)
                sent += len(part)
                await asyncio.wait_for(writer.drain(), 5)
                await asyncio.sleep(0)
        except (ConnectionError, TimeoutError):
            pass
        status, problem = await answer
        assert (status, problem["code"]) == (413, "body_too_long")
        assert sent < 64 << 20
        writer.close()


async def test_a_slow_body_is_given_up_and_others_are_served_meanwhile(setup):
    async with served(setup) as (_, port):
        slow = [await connected(port, request(setup, "POST", "/v1/jobs", "Content-Length: 100")) for _ in range(50)]
        reader, writer = await connected(port, request(setup, "GET", "/v1/whoami"))
        assert (await answer_of(reader))[0] == 200
        for each, other in slow:
            assert (await answer_of(each))[0] == 408
            other.close()
        writer.close()


class TestRate:
    @pytest.fixture
    def settings(self):
        return ApiSettings(body_timeout_s=60, body_rate_min=1_000, body_allowance_s=0.3)

    async def test_a_body_that_drips_is_given_up_long_before_its_time_is_over(self, setup):
        async with served(setup) as (_, port):
            reader, writer = await connected(port, request(setup, "POST", "/v1/jobs", "Content-Length: 100000"))
            answer = asyncio.create_task(answer_of(reader))
            while not answer.done():
                writer.write(b" ")
                await asyncio.sleep(0.02)
            status, problem = await answer
            assert (status, problem["code"]) == (408, "body_too_slow")
            assert "1000 bytes per second" in str(problem["detail"])
            with suppress(ConnectionResetError):  # closed while it was still sending
                async with asyncio.timeout(10):
                    assert await reader.read() == b"", "and closed"
            writer.close()

    async def test_a_body_that_comes_in_parts_at_a_fair_rate_is_taken(self, setup):
        body = b'{"queue": "team", "command": "true"}'.ljust(30_000)
        async with served(setup) as (_, port):
            reader, writer = await connected(port, request(setup, "POST", "/v1/jobs", f"Content-Length: {len(body)}"))
            for start in range(0, len(body), 5_000):
                writer.write(body[start : start + 5_000])
                await asyncio.sleep(0.1)
            assert (await answer_of(reader))[0] == 201
            writer.close()


async def test_a_stream_does_not_hold_up_the_end(setup):
    async with served(setup) as (server, port):
        reader, writer = await connected(port, request(setup, "GET", "/v1/events?follow=true"))
        async with asyncio.timeout(10):
            await reader.readuntil(b"id: 1\n")
            setup.app.close()
            server.should_exit = True
            assert (await reader.read()).endswith(b"0\r\n\r\n")
        writer.close()


async def test_a_connection_is_used_again_after_a_problem(setup):
    async with served(setup) as (_, port):
        reader, writer = await connected(port, request(setup, "GET", "/v1/jobs/99"))
        assert (await answer_of(reader))[0] == 404
        writer.write(request(setup, "GET", "/v1/whoami").replace("\n", "\r\n").encode() + b"\r\n\r\n")
        assert (await answer_of(reader))[0] == 200
        writer.close()


@pytest.mark.parametrize("begun", [b"", b"GET /v1/who", b"GET /v1/whoami HTTP/1.1\r\nHost: here\r\n"])
async def test_who_never_says_what_it_wants_is_given_up(setup, begun):
    async with served(setup) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun)
        status, problem = await answer_of(reader)
        assert (status, problem["code"]) == (408, "head_too_slow")
        assert await reader.read() == b""
        writer.close()


async def test_a_later_request_on_a_connection_must_not_take_longer_either(setup):
    async with served(setup) as (_, port):
        reader, writer = await connected(port, request(setup, "GET", "/v1/whoami"))
        assert (await answer_of(reader))[0] == 200
        await asyncio.sleep(2 * HEAD_S)  # to be silent between two requests is another matter
        writer.write(b"GET /v1/whoami HTTP/1.1\r\n")
        assert (await answer_of(reader))[0] == 408
        writer.close()
