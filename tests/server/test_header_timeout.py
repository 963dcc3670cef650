"""What a connection may cost before there is a request, and after its answer: endless heads, chunks and trailers,
bodies that never come, requests sent in advance, answers that are not read."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from corral.server.api.http.settings import ApiSettings
from tests.server.sockets import answer_of, connected, request, served

MIB = 1 << 20


@pytest.fixture
def settings():
    return ApiSettings(head_timeout_s=5, body_timeout_s=0.5, send_timeout_s=0.4)


async def pour(port: int, begin: bytes, part: bytes, most: int = 64 * MIB):
    """Send ``begin``, then ``part`` again and again until an answer comes: its status, its code, how much was sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(begin)
    answer = asyncio.create_task(answer_of(reader))
    sent = 0
    try:
        async with asyncio.timeout(20):
            while not answer.done() and sent < most:
                writer.write(part)
                sent += len(part)
                await writer.drain()
                await asyncio.sleep(0)
    except (ConnectionError, TimeoutError):
        pass
    try:
        status, problem = await answer
    finally:
        writer.close()
    return status, problem["code"], sent


@pytest.mark.parametrize(
    ("begin", "part", "status", "code"),
    [
        (b"GET /v1/health HTTP/1.1\r\nX-Long: ", b"x" * 65_536, 431, "head_too_long"),
        (b"GET /v1/health HTTP/1.1\r\n", b"X" * 65_536, 431, "head_too_long"),
        (b"GET /v1/health HTTP/1.1\r\n", b"a: b\r\n" * 10_000, 431, "head_too_long"),
        (b"GET /v1/health?", b"x" * 65_536, 431, "head_too_long"),
        (b"GET /v1/health HTTP/1.1\r\n", b"a:\r\n", 431, "head_too_long"),
    ],
    ids=["one endless value", "one endless name", "endless headers", "an endless address", "many small headers"],
)
async def test_a_head_that_does_not_end_is_refused_as_it_arrives(setup, begin, part, status, code):
    async with served(setup) as (_, port):
        assert (await pour(port, begin, part))[:2] == (status, code)


async def test_endless_heads_cost_no_more_than_their_bound_however_many_there_are(setup):
    async with served(setup) as (_, port):
        ends = await asyncio.gather(
            *(pour(port, b"GET /v1/health HTTP/1.1\r\nX-Long: ", b"x" * MIB, 16 * MIB) for _ in range(30))
        )
        assert {status for status, _, _ in ends} == {431}
        reader, writer = await connected(port, "GET /v1/health HTTP/1.1\nHost: here")
        assert (await answer_of(reader))[0] == 200
        writer.close()


@pytest.mark.parametrize(
    "part",
    [b"1;" + b"x" * 65_000 + b"\r\n \r\n", b"x" * 65_536, b"1;aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n \r\n" * 2_000],
    ids=["extensions of chunks", "one endless extension", "many short extensions"],
)
async def test_a_body_is_not_padded_without_end(setup, part):
    async with served(setup) as (_, port):
        head = request(setup, "POST", "/v1/jobs", "Transfer-Encoding: chunked").replace("\n", "\r\n").encode()
        begin = head + b"\r\n\r\n" + (b"1;" if part.startswith(b"x") else b"")
        status, code, sent = await pour(port, begin, part)
        assert (status, code) == (400, "bad_request")
        assert sent < 16 * MIB


async def test_trailers_after_a_body_are_bounded(setup):
    async with served(setup) as (_, port):
        head = request(setup, "POST", "/v1/jobs", "Transfer-Encoding: chunked").replace("\n", "\r\n").encode()
        status, _, sent = await pour(port, head + b"\r\n\r\n1\r\n \r\n0\r\n", b"X-T: " + b"x" * 500 + b"\r\n")
        assert status in (400, 431)
        assert sent < 16 * MIB


async def test_a_body_that_no_one_asked_for_and_that_never_comes_ends_the_connection(setup):
    async with served(setup) as (_, port):
        reader, writer = await connected(port, "GET /v1/health HTTP/1.1\nHost: here\nContent-Length: 1000000")
        assert (await answer_of(reader))[0] == 200
        async with asyncio.timeout(10):
            while not reader.at_eof():  # a byte now and then does not keep it
                writer.write(b"x")
                with suppress(TimeoutError, ConnectionError):
                    await asyncio.wait_for(reader.read(), 0.1)
        writer.close()


async def test_requests_sent_in_advance_are_few(setup):
    async with served(setup) as (server, port):
        reader, writer = await connected(port, request(setup, "GET", "/v1/events?follow=true"))
        await reader.readuntil(b"id: 1\n")
        writer.write(b"GET /v1/health HTTP/1.1\r\n\r\n" * 5_000)
        with suppress(ConnectionError):
            async with asyncio.timeout(10):
                await reader.read()
        writer.close()
        await until_nobody_is_connected(server)
        await until_no_stream_is_open(setup)


async def test_a_stream_ends_with_its_connection_also_when_another_request_waits_behind_it(setup):
    async with served(setup) as (server, port):
        reader, writer = await connected(port, request(setup, "GET", "/v1/events?follow=true"))
        await reader.readuntil(b"id: 1\n")
        writer.write(b"GET /v1/health HTTP/1.1\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.2)
        writer.transport.abort()
        await until_nobody_is_connected(server)
        await until_no_stream_is_open(setup)


async def test_a_few_requests_sent_in_advance_are_answered_in_order(setup):
    async with served(setup) as (_, port):
        reader, writer = await connected(port, "\n\n".join(["GET /v1/health HTTP/1.1\nHost: here"] * 8))
        for _ in range(8):
            assert (await answer_of(reader))[0] == 200
        writer.close()


@pytest.mark.parametrize(
    "header",
    ["Authorization: Bearer corral_x_y", "Host: there", "Content-Type: application/json", "Idempotency-Key: a",
     "X-Request-Id: 7", "Last-Event-ID: 3"],
)  # fmt: skip
async def test_a_header_that_may_be_there_once_is_refused_when_it_is_there_twice(setup, header):
    async with served(setup) as (_, port):
        twice = [header] if header.startswith(("Authorization", "Host")) else [header, header]
        reader, writer = await connected(port, request(setup, "GET", "/v1/whoami", *twice))
        status, problem = await answer_of(reader)
        assert (status, problem["code"]) == (400, "header_twice")
        writer.close()


@pytest.mark.parametrize(
    "headers",
    [("Content-Length: 2", "Content-Length: 3"), ("Content-Length: 2", "Transfer-Encoding: chunked")],
)
async def test_a_body_has_one_length(setup, headers):
    async with served(setup) as (_, port):
        reader, writer = await connected(port, request(setup, "POST", "/v1/jobs", *headers))
        assert (await answer_of(reader))[0] == 400
        writer.close()


# ---- answers that are not read ---------------------------------------------------------------------------


async def test_an_answer_that_no_one_reads_ends_its_connection(setup):
    """The answers fill what the machine keeps for the connection, and more."""
    async with served(setup) as (server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(200):
            writer.write(b"GET /v1/openapi.json HTTP/1.1\r\nHost: here\r\n\r\n")
            await asyncio.sleep(0.005)
        await until_nobody_is_connected(server)
        writer.close()


async def test_a_stream_that_no_one_reads_ends_its_connection(setup):
    async with served(setup) as (server, port):
        for n in range(40):
            setup.service.queue(f"team/{'x' * 30}{n}")
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(request(setup, "GET", "/v1/events?follow=true").replace("\n", "\r\n").encode() + b"\r\n\r\n")
        for _ in range(400):
            for n in range(40):
                setup.service.queue(f"team/{'x' * 30}{n}", weight=2 + n)
            await asyncio.sleep(0)
            if not server.server_state.connections:
                break
        await until_nobody_is_connected(server)
        writer.close()
        await until_no_stream_is_open(setup)


async def until_nobody_is_connected(server) -> None:
    async with asyncio.timeout(20):
        while server.server_state.connections:
            await asyncio.sleep(0.02)


async def until_no_stream_is_open(setup) -> None:
    async with asyncio.timeout(20):
        while setup.app.streams.open:
            await asyncio.sleep(0.02)


async def test_a_slow_reader_that_does_read_keeps_its_answer(setup):
    async with served(setup) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /v1/openapi.json HTTP/1.1\r\nHost: here\r\n\r\n" * 8)
        got = b""
        async with asyncio.timeout(30):
            while got.count(b"HTTP/1.1 200") < 8:
                got += await reader.read(32_768)
                await asyncio.sleep(0.01)
        writer.close()
