"""Texts about a job that waits: why, and when it is expected to start; and how far an array is.

On a terminal one line is kept current; elsewhere a line is printed when something has changed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from corral.cli.render import ahead, cut, now_ms, print_note, style, terminal_columns, write_note
from corral.duration_text import without_spans

if TYPE_CHECKING:
    from corral.client.blocking import Client
    from corral.wire.api.jobs import GangCounts, JobSummary

#: Events with which a job stops waiting, and with which it waits again.
STARTS = ("GangPlaced", "GangStarted", "TasksStarted", "JobEnded")
RETURNS = ("GangRequeued",)

_FIRST_S = 0.5
_EVERY_S, _EVERY_S_MAX = 2.0, 10.0
_SOON_MS = 60_000  # an expected start that moves by less is not news


def progress(counts: GangCounts) -> str:
    """How far an array is: 6/50 done, 1 failed, 3 running."""
    others = ("failed", "cancelled", "running", "starting", "stopping")
    parts = [f"{number} {word}" for word in others if (number := getattr(counts, word))]
    return ", ".join([f"{counts.succeeded}/{counts.total} done", *parts])


def waiting_text(job: JobSummary, now: int | None = None) -> str:
    """Why a job waits, and when it is expected to start."""
    now = now_ms() if now is None else now
    if not job.starts_ms:
        return job.reason
    note = f": {job.starts_note}" if job.starts_note else ""
    return f"{job.reason}; expected to start {ahead(job.starts_ms, now)}{note}"


class WaitingLine:
    """Tells, from ``begin`` to ``end``, why a job waits. Asks the server in a thread, less often as time passes."""

    def __init__(self, client: Client, job: str, quiet: bool = False) -> None:
        self._client = client
        self._job = job
        self._is_off = quiet
        self._is_terminal = sys.stderr.isatty()
        self._stop: threading.Event | None = None
        self._writing = threading.RLock()
        self._line = ""  # what is on the screen now
        self._told: tuple[str, int] = ("", 0)

    def begin(self) -> None:
        if self._stop is None and not self._is_off:
            self._stop = threading.Event()
            threading.Thread(target=self._watch, args=(self._stop,), daemon=True).start()

    def end(self) -> None:
        with self._writing:
            if self._stop is not None:
                self._stop.set()
                self._stop = None
            self._erase()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """While something else is printed."""
        with self._writing:
            self._erase()
            yield

    def _watch(self, stop: threading.Event) -> None:
        from corral.client.errors import ClientError

        wait_s = _FIRST_S
        while not stop.wait(wait_s):
            try:
                job = self._client.job(self._job)
            except ClientError:
                return  # the command itself finds out
            if job.state != "waiting":
                return
            with self._writing:
                if not stop.is_set() and job.reason:
                    self._tell(job)
            wait_s = min(_EVERY_S_MAX, max(_EVERY_S, wait_s * 1.2))

    def _tell(self, job: JobSummary) -> None:
        text = f"job {job.id} waits: {waiting_text(job)}"
        if self._is_terminal:
            self._erase()
            self._line = cut(text, max(20, terminal_columns(sys.stderr) - 1))
            write_note(style(self._line, stream=sys.stderr, fg="yellow"))
            return
        reason, starts = self._told
        news = without_spans(job.reason)
        if news != reason or abs((job.starts_ms or 0) - starts) > _SOON_MS:
            self._told = (news, job.starts_ms or 0)
            print_note(text)

    def _erase(self) -> None:
        if self._line:
            self._line = ""
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
