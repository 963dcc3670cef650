"""Follow a job: print its output, and report what happens to it.

Output of tasks goes to standard output and error as if they ran here; everything else to standard error. Ctrl-C
detaches and the job continues; a second Ctrl-C within a few seconds cancels the job.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from corral.cli.errors import INTERRUPTED
from corral.cli.jobs.logs import LabelledPrinter, show_end_of_log
from corral.cli.jobs.wait import ending, exit_code
from corral.cli.jobs.waiting import RETURNS, STARTS, WaitingLine
from corral.cli.render import clock, print_note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.client.blocking import Client
    from corral.wire.api.record import EventView

SECOND_S = 2.0  # time for the second Ctrl-C
_DRAIN_S = 10.0  # time for the rest of the logs, after the end of the job
_BEGINS = ("GangStarted", "TasksStarted")
_NOT_SHOWN = (
    "JobSubmitted",
    "TasksStarted",
    "TasksEnded",
    "GangFinished",
    "JobEnded",
)  # reported in other ways, or by the end
_BEHIND_S = 0.25  # the last output of a task is printed before its end is reported


def attach(client: Client, job: str, after: int, quiet: bool = False, *, has_started: bool = False) -> int:
    """Follow the job until it ends, and return its exit code. ``after``: report events after this record."""
    outputs = _Outputs(client, job)
    if has_started:
        outputs.begin()
    waiting = WaitingLine(client, job, quiet)
    if not has_started:
        waiting.begin()
    try:
        for event in _happenings(client, job, after):
            if event.type in STARTS:
                waiting.end()
            elif event.type in RETURNS:
                waiting.begin()
            if event.type in _BEGINS:
                outputs.begin()
            if quiet or event.type in _NOT_SHOWN:
                continue
            if event.type == "GangStopped":
                time.sleep(_BEHIND_S)
            with waiting.aside():
                print_note(f"{clock(event.at_ms)} {event.text}", dim=True)
        outputs.finish()
        view = client.job(job)
    except KeyboardInterrupt:
        waiting.end()
        return _leave(client, job)
    finally:
        waiting.end()
    if not quiet:
        if outputs.has_labels:  # the lines that explain it may be far up
            show_end_of_log(client, view)
        print_note(ending(view), bold=True)
    return exit_code(view)


def _happenings(client: Client, job: str, after: int) -> Iterator[EventView]:
    for event in client.events(after, follow=True, job=job):
        yield event
        if event.type == "JobEnded":
            return


def _leave(client: Client, job: str) -> int:
    """The first Ctrl-C. A second one cancels the job, even while this message is printed."""
    try:
        print_note(f"\ndetached: job {job} continues", bold=True)
        print_note(f"  corral logs -f {job}   to see it again", dim=True)
        print_note(f"  corral cancel {job}    to cancel it, or press Ctrl-C again now", dim=True)
        time.sleep(SECOND_S)
    except KeyboardInterrupt:
        client.cancel(job)
        print_note(f"\njob {job} is cancelled", bold=True)
    return INTERRUPTED


class _Outputs:
    """Follows all output of the job in a thread of its own, across restarts. If there are several processes, lines have
    labels."""

    def __init__(self, client: Client, job: str) -> None:
        self._client, self._job = client, job
        self._thread: threading.Thread | None = None
        self.has_labels = False

    def begin(self) -> None:
        """The first attempt has started. The same thread follows later attempts."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, daemon=True)
            self._thread.start()

    def finish(self) -> None:
        if self._thread is not None:
            self._thread.join(_DRAIN_S)

    def _follow(self) -> None:
        from corral.client.errors import ClientError

        printers = {
            "stdout": LabelledPrinter(sys.stdout, marks_errors=False),
            "stderr": LabelledPrinter(sys.stderr, marks_errors=False),
        }
        try:
            for part in self._client.output(self._job, follow=True):
                self.has_labels = self.has_labels or bool(part.label)
                with suppress(BrokenPipeError):  # standard output was closed; the job continues
                    printers[part.stream].write(part)
            for printer in printers.values():
                with suppress(BrokenPipeError):
                    printer.finish()
        except ClientError as error:
            print_note(f"the output cannot be shown: {error}", dim=True)
