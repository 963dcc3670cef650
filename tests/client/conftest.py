"""A fake server, and both clients behind one face, so that each test speaks about both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from corral.client import AsyncClient, Client
from tests.client.fake import Fake, serving


@pytest.fixture
def fake() -> Iterator[Fake]:
    with serving(Fake()) as server:
        yield server


class Both:
    """Calls a client by the name of the method, blocking or awaited."""

    def __init__(self, kind: str, url: str, **settings: Any) -> None:
        self.kind, self.url, self.settings = kind, url, {"patience_s": 5.0} | settings

    def __call__(self, method: str, *args: Any, **named: Any) -> Any:
        if self.kind == "blocking":
            with Client(self.url, "secret", **self.settings) as client:
                return getattr(client, method)(*args, **named)
        return asyncio.run(self._later(method, args, named))

    async def _later(self, method: str, args: Any, named: Any) -> Any:
        async with AsyncClient(self.url, "secret", **self.settings) as client:
            return await getattr(client, method)(*args, **named)

    def all(self, method: str, *args: Any, most: int = 1000, **named: Any) -> list[Any]:
        """The first items of an iteration, which is then left."""
        if self.kind == "blocking":
            with Client(self.url, "secret", **self.settings) as client:
                found: list[Any] = []
                items = getattr(client, method)(*args, **named)
                for item in items:
                    found.append(item)
                    if len(found) == most:
                        break
                items.close()
                return found
        return asyncio.run(self._all_later(method, most, args, named))

    async def _all_later(self, method: str, most: int, args: Any, named: Any) -> list[Any]:
        async with AsyncClient(self.url, "secret", **self.settings) as client:
            found: list[Any] = []
            items: AsyncIterator[Any] = getattr(client, method)(*args, **named)
            async for item in items:
                found.append(item)
                if len(found) == most:
                    break
            await items.aclose()  # type: ignore[attr-defined]
            return found


@pytest.fixture(params=["blocking", "asynchronous"])
def client(request: pytest.FixtureRequest, fake: Fake) -> Both:
    return Both(request.param, fake.url)
