"""Lines for tests: one that leads straight into a fleet, and one on which everything that can happen to a message
does."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import msgspec

from corral.agent.server_connection import NoAnswer, Refused, ServerConnection
from corral.remote.backend import RemoteBackend
from corral.remote.messages import (
    AgentAnswer,
    AgentReport,
    DesiredAnswer,
    DesiredAsk,
    LeaseAnswer,
    LogDelivery,
    LogReceipt,
    Renewal,
)
from corral.runtime.base import StaleEpoch, TaskKey
from tests.agent.lease_table import InProcessKeeper

T = TypeVar("T")


def copied(value: T) -> T:
    """As it would arrive: written down and read again."""
    return msgspec.json.decode(msgspec.json.encode(value), type=type(value))


class DirectLine:
    """To the fleet that is there now, and to the process that keeps its leases; None: no answer."""

    def __init__(self) -> None:
        self.fleet: RemoteBackend | None = None
        self.ordered: dict[TaskKey, None] = {}  # by any of them
        self.keeper: InProcessKeeper | None = None
        self.node = "n1"
        self.answer_s = 1.0
        self._waiting: set[threading.Event] = set()

    def _there(self) -> RemoteBackend:
        if self.fleet is None:
            raise NoAnswer("no server is there")
        return self.fleet

    def renew(self, asked: Renewal) -> LeaseAnswer:
        self._there()
        assert self.keeper is not None
        return copied(self.keeper.renew(self.node, copied(asked)))

    def when_granted(self, tell: Callable[[LeaseAnswer], None]) -> None:
        del tell

    def report(self, said: AgentReport) -> AgentAnswer:
        try:
            return copied(self._there().report(copied(said)))
        except StaleEpoch as stale:
            raise NoAnswer(str(stale)) from None

    def desired(self, ask: DesiredAsk) -> DesiredAnswer | None:
        fleet = self._there()
        answer = fleet.desired(ask)
        if answer is None:
            news = threading.Event()
            self._waiting.add(news)
            fleet.when_desired(ask.node, news.set)
            answer = fleet.desired(ask)  # between the two there may have been something
            if answer is None:
                news.wait(ask.wait_ms / 1000)
                answer = fleet.desired(ask)
            self._waiting.discard(news)
        return None if answer is None else copied(answer)

    def logs(self, delivery: LogDelivery) -> LogReceipt:
        return copied(self._there().take_logs(copied(delivery)))

    def hang_up(self) -> None:
        for news in list(self._waiting):
            news.set()


class FaultyLine:
    """Messages and answers are dropped, come twice, or come late and out of order; by a seed. ``aside``: the way that
    copies take."""

    def __init__(
        self, line: ServerConnection, aside: ServerConnection, seed: int, share: float = 0.1, late_s: float = 0.3
    ) -> None:
        self._line, self._aside, self._copying = line, aside, threading.Lock()
        self._random, self._share, self._late_s = random.Random(seed), share, late_s
        self._lock = threading.Lock()
        self._last: dict[str, object] = {}
        self.faults = 0
        self._is_over = False

    @property
    def answer_s(self) -> float:
        return self._line.answer_s

    @answer_s.setter
    def answer_s(self, seconds: float) -> None:
        self._line.answer_s = seconds

    def renew(self, asked: Renewal) -> LeaseAnswer:
        return self._through("renew", lambda line: line.renew(asked))

    def when_granted(self, tell: Callable[[LeaseAnswer], None]) -> None:
        self._line.when_granted(tell)

    def report(self, said: AgentReport) -> AgentAnswer:
        return self._through("report", lambda line: line.report(said))

    def desired(self, ask: DesiredAsk) -> DesiredAnswer | None:
        return self._through("desired", lambda line: line.desired(ask))

    def logs(self, delivery: LogDelivery) -> LogReceipt:
        return self._through("logs", lambda line: line.logs(delivery))

    def hang_up(self) -> None:
        self._line.hang_up()

    def close(self) -> None:
        with self._copying:
            self._is_over = True
            self._aside.hang_up()

    def _copy(self, send: Callable[[ServerConnection], object]) -> None:
        with self._copying, suppress(NoAnswer, Refused):
            if not self._is_over:
                send(self._aside)

    def _through(self, kind: str, send: Callable[[ServerConnection], T]) -> T:
        if self._happens():
            raise NoAnswer("the message was dropped")
        if self._happens():  # it comes again, later than others
            threading.Timer(self._random.uniform(0, self._late_s), self._copy, [send]).start()
        if self._happens():
            time.sleep(self._random.uniform(0, self._late_s))
        answer = send(self._line)
        if self._happens():
            raise NoAnswer("the answer was dropped")
        if self._happens() and kind in self._last:  # an old answer comes in its place
            return self._last[kind]  # type: ignore[return-value]
        self._last[kind] = answer
        return answer

    def _happens(self) -> bool:
        with self._lock:
            does = self._random.random() < self._share
            self.faults += does
            return does
