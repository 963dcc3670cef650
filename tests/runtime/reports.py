"""Listening to a backend in tests: reports are collected, and waited for without sleeping."""

import threading
import time
from collections.abc import Callable

from corral.runtime.base import Phase, Report, SavedReport, TaskKey, TaskOrder, TaskReport

PATIENCE_S = 90.0  # a busy machine with a slow disk takes its time


class Collector:
    """What `Backend.open` is given to tell to."""

    def __init__(self) -> None:
        self.heard: list[Report] = []
        self._news = threading.Condition()

    def __call__(self, report: Report) -> None:
        with self._news:
            self.heard.append(report)
            self._news.notify_all()

    def wait(self, key: TaskKey, phase: Phase, count: int = 1, patience_s: float = PATIENCE_S) -> TaskReport:
        """The last of the first ``count`` reports of this task in this phase."""

        def found() -> list[TaskReport]:
            return [r for r in self.of(key) if isinstance(r, TaskReport) and r.phase is phase]

        until = time.monotonic() + patience_s
        with self._news:
            while len(found()) < count:
                left = until - time.monotonic()
                assert left > 0, f"{key} was not reported {phase} {count} times; received: {self.heard}"
                self._news.wait(left)
            return found()[count - 1]

    def up(self, key: TaskKey, count: int = 1) -> TaskReport:
        return self.wait(key, Phase.UP, count)

    def down(self, key: TaskKey, count: int = 1) -> TaskReport:
        return self.wait(key, Phase.DOWN, count)

    def step(self, key: TaskKey, step: int, patience_s: float = PATIENCE_S) -> None:
        until = time.monotonic() + patience_s
        with self._news:
            while SavedReport(key, step) not in self.heard:
                left = until - time.monotonic()
                assert left > 0, f"step {step} of {key} was not reported; received: {self.heard}"
                self._news.wait(left)

    def of(self, key: TaskKey) -> list[Report]:
        return [r for r in self.heard if isinstance(r, TaskReport | SavedReport) and r.key == key]


def order(key: TaskKey, *command: str, epoch: int = 1, **rest: object) -> TaskOrder:
    return TaskOrder(key=key, epoch=epoch, node="n1", command=command, **rest)  # type: ignore[arg-type]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def until(is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
    end = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < end, "it did not come to pass in time"
        time.sleep(0.005)
