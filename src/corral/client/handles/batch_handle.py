"""A batching queue as an object: ``client.batch("embed").map(items)``. Knows the calls, not how they are sent."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from corral.client.errors import BatchItemFailed

if TYPE_CHECKING:
    from corral.client.asynchronous import AsyncClient
    from corral.client.blocking import Client


class BatchHandle:
    """A batching queue, with blocking methods."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def map(self, items: Iterable[Any], *, progress: bool = False) -> list[Any]:
        """The result of each item, in order. Raises `BatchItemFailed` with the first item that failed. ``progress``:
        show on standard error how many are done."""
        results: list[Any] = []
        for view in self._client.map_items(self.name, items):
            results.append(_result(len(results), view))
            if progress and len(results) % 100 == 0:
                print(f"\r{self.name}: {len(results)} done", end="", file=sys.stderr, flush=True)
        if progress:
            print(f"\r{self.name}: {len(results)} done", file=sys.stderr, flush=True)
        return results

    def __call__(self, item: Any) -> Any:
        """The result of one item."""
        return self.map([item])[0]


class AsyncBatchHandle:
    """A batching queue, with coroutines."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    async def map(self, items: Iterable[Any]) -> list[Any]:
        """As `BatchHandle.map`."""
        results: list[Any] = []
        async for view in self._client.map_items(self.name, items):
            results.append(_result(len(results), view))
        return results

    async def __call__(self, item: Any) -> Any:
        return (await self.map([item]))[0]


def _result(number: int, view: Any) -> Any:
    if view.state != "done":
        raise BatchItemFailed(number, view.id, view.error)
    return view.result
