"""Ask an ASGI application without a socket: a request in, an answer out, or a stream that can be read and left."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any
from urllib.parse import quote


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes, all_headers: list[tuple[str, str]]) -> None:
        self.status, self.headers, self.body = status, headers, body
        self.all_headers = all_headers  # names may repeat

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json()["code"])


def scope(method: str, path: str, token: str = "", headers: Iterable[tuple[str, str]] = (), client: str = "10.0.0.1"):
    path, _, query = path.partition("?")
    head = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    if token:
        head.append((b"authorization", f"Bearer {token}".encode()))
    return {
        "type": "http", "method": method, "path": path, "raw_path": quote(path).encode(),
        "query_string": query.encode(), "headers": head, "client": (client, 1), "root_path": "", "http_version": "1.1",
        "scheme": "http", "server": ("127.0.0.1", 80), "asgi": {"version": "3.0"},
    }  # fmt: skip


async def ask(
    app, method: str, path: str, token: str = "", body: bytes | object = b"", headers=(), client: str = "10.0.0.1"
) -> Answer:
    """One request and its whole answer. A body that is not bytes is sent as JSON; an iterator is sent in parts."""
    if not isinstance(body, bytes) and not hasattr(body, "__anext__"):
        body = json.dumps(body).encode()
    headers = list(headers)
    if isinstance(body, bytes) and body and not any(name.lower() == "content-length" for name, _ in headers):
        headers.append(("Content-Length", str(len(body))))
    parts = _parts(body) if isinstance(body, bytes) else body
    done = False

    async def receive():
        nonlocal done
        if done:
            await asyncio.Event().wait()  # the client stays
        try:
            part, more = await anext(parts)
        except StopAsyncIteration:
            part, more = b"", False
        done = not more
        return {"type": "http.request", "body": part, "more_body": more}

    sent: list[dict[str, Any]] = []

    async def send(message):
        sent.append(message)

    await app(scope(method, path, token, headers, client), receive, send)
    every = [(name.decode(), value.decode("latin-1")) for name, value in sent[0]["headers"]]
    return Answer(sent[0]["status"], dict(every), b"".join(m.get("body", b"") for m in sent[1:]), every)


async def _parts(body: bytes) -> AsyncIterator[tuple[bytes, bool]]:
    yield body, False


class Stream:
    """An answer that goes on. Leaving it is the client hanging up."""

    def __init__(self, app, path: str, token: str, headers=()) -> None:
        self.app, self.scope = app, scope("GET", path, token, headers)
        self.head: asyncio.Future[dict[str, Any]]
        self.parts: asyncio.Queue[bytes] = asyncio.Queue()

    async def __aenter__(self) -> Stream:
        self.head = asyncio.get_running_loop().create_future()
        self.gone = asyncio.Event()
        first = True

        async def receive():
            nonlocal first
            if first:
                first = False
                return {"type": "http.request", "body": b"", "more_body": False}
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message):
            if message["type"] == "http.response.start":
                self.head.set_result(message)
            elif message.get("body"):
                self.parts.put_nowait(message["body"])

        self.task = asyncio.create_task(self.app(self.scope, receive, send))
        return self

    async def until(self, text: bytes) -> bytes:
        """Read until this was there."""
        found = b""
        async with asyncio.timeout(10):
            while text not in found:
                found += await self.parts.get()
        return found

    async def rest(self) -> bytes:
        """Read until the server ends it."""
        async with asyncio.timeout(10):
            await self.task
        found = b""
        while not self.parts.empty():
            found += self.parts.get_nowait()
        return found

    async def __aexit__(self, *error: object) -> None:
        self.gone.set()
        async with asyncio.timeout(10):
            await self.task
