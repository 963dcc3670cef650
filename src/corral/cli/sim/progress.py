"""Progress of a run: a bar on a terminal, a line every few seconds elsewhere, or nothing.

Counts events as they are written and checks the run after each simulated instant. Ctrl-C takes effect between two
instants, so that the results so far are consistent; a second Ctrl-C ends the program at once.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from corral.core import events as e
from corral.sim.report.wording import duration
from corral.sim.run import Simulation

LOOK_EVERY = 64  # instants between two readings of the clock
SHOW_EVERY_S, NOTE_EVERY_S = 0.2, 10.0

Note = Callable[[str], None]


class Interrupt:
    """Whether the user has interrupted. Inside the context the first SIGINT sets it; the second raises."""

    def __init__(self) -> None:
        self.is_set = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of a handler
        if self.is_set:
            raise KeyboardInterrupt
        self.is_set = True


class Count:
    """The progress of a run so far."""

    def __init__(self) -> None:
        self.events = 0
        self.ended = 0

    def __call__(self, events: Sequence[e.Event]) -> None:
        self.events += len(events)
        for event in events:
            if type(event) is e.JobEnded:
                self.ended += 1


class Watcher:
    """Called after every instant of a run: shows progress, and stops the run after an interrupt."""

    def __init__(self, policy: str, jobs: int, count: Count, is_stopped: Callable[[], bool], show: Show) -> None:
        self._policy = policy
        self._jobs = jobs
        self._count = count
        self._is_stopped, self._show = is_stopped, show
        self._began_s = time.monotonic()

    def __call__(self, simulation: Simulation) -> None:
        if self._is_stopped():
            raise KeyboardInterrupt
        if simulation.steps % LOOK_EVERY == 0 and self._show.is_due():
            took_s = max(1e-9, time.monotonic() - self._began_s)
            passed = duration(simulation.now_ms - simulation.begin_ms)
            self._show(self._policy, self._count.ended, self._jobs, passed, round(self._count.events / took_s))


class Show:
    """Shows nothing; the base of the others."""

    every_s = float("inf")

    def __init__(self) -> None:
        self._next_s = time.monotonic() + self.every_s

    def is_due(self) -> bool:
        now = time.monotonic()
        if now < self._next_s:
            return False
        self._next_s = now + self.every_s
        return True

    def __call__(self, policy: str, ended: int, jobs: int, passed: str, rate: int) -> None:
        """Show how many jobs have ended, the simulated time that has passed, and events per second."""

    def note(self, text: str) -> None:
        """Show a note with the progress."""

    def close(self) -> None:
        """Finish the display."""


class Lines(Show):
    """A line every few seconds."""

    every_s = NOTE_EVERY_S

    def __call__(self, policy: str, ended: int, jobs: int, passed: str, rate: int) -> None:
        self.note(f"{policy}: {ended:,} of {jobs:,} jobs ended, {passed} simulated, {rate:,} events/s")

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bar(Show):
    """One bar per policy on a terminal."""

    every_s = SHOW_EVERY_S

    def __init__(self) -> None:
        super().__init__()
        self._console = Console(stderr=True)
        figures = TextColumn("{task.fields[passed]} simulated, {task.fields[rate]:,} events/s")
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), figures, TimeRemainingColumn())
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._progress.start()
        self._tasks: dict[str, Any] = {}

    def __call__(self, policy: str, ended: int, jobs: int, passed: str, rate: int) -> None:
        if policy not in self._tasks:
            self._tasks[policy] = self._progress.add_task(policy, total=jobs, passed=passed, rate=rate)
        self._progress.update(self._tasks[policy], completed=ended, passed=passed, rate=rate)

    def note(self, text: str) -> None:
        self._console.print(text, style="dim", highlight=False, markup=False)

    def close(self) -> None:
        self._progress.stop()


def shown(quiet: bool) -> Show:
    """The display that suits standard error."""
    if quiet:
        return Show()
    return Bar() if sys.stderr.isatty() else Lines()
