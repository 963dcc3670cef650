"""Sign-ins that were begun and not ended: bounded in number, by address and in time. Kept in memory only: a restart of
the server ends them, and their users begin again."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Generic, TypeVar

from msgspec import Struct

FLOWS_MAX = 1_000
FLOWS_PER_ADDRESS = 20
FLOW_S_MAX = 900.0

T = TypeVar("T")


class TooManyFlows(Exception):
    pass


class _Begun(Struct, Generic[T]):
    content: T
    address: str
    until_s: float


class Flows(Generic[T]):
    """``now_s``: a clock that only runs forward."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._begun: dict[str, _Begun[T]] = {}

    def begin(self, content: T, address: str, seconds: float) -> str:
        """Keep a flow; its id is hard to guess."""
        now_s = self._now_s()
        self._begun = {id: each for id, each in self._begun.items() if each.until_s > now_s}
        mine = sum(each.address == address for each in self._begun.values())
        if len(self._begun) >= FLOWS_MAX or mine >= FLOWS_PER_ADDRESS:
            raise TooManyFlows
        id = secrets.token_urlsafe(24)
        self._begun[id] = _Begun(content, address, now_s + min(seconds, FLOW_S_MAX))
        return id

    def find(self, id: str) -> T | None:
        begun = self._begun.get(id)
        return None if begun is None or begun.until_s <= self._now_s() else begun.content

    def end(self, id: str) -> None:
        self._begun.pop(id, None)
