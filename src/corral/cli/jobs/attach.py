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
from corral.cli.jobs.logs import LogPrinter
from corral.cli.jobs.wait import ending, exit_code
from corral.cli.render import clock, count, print_note

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.client.blocking import Client
    from corral.wire.api.record import EventView

TASKS_MAX = 8  # tasks whose output is shown; for others there is corral logs
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


def attach(client: Client, job: str, after: int, quiet: bool = False) -> int:
    """Follow the job until it ends, and return its exit code. ``after``: report events after this record."""
    outputs = _Outputs(client, job)
    try:
        for event in _happenings(client, job, after):
            if event.type in _BEGINS:
                outputs.begin()
            if quiet or event.type in _NOT_SHOWN:
                continue
            if event.type == "GangStopped":
                time.sleep(_BEHIND_S)
            print_note(f"{clock(event.at_ms)} {event.text}", dim=True)
        outputs.finish()
        view = client.job(job)
    except KeyboardInterrupt:
        return _leave(client, job)
    if not quiet:
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
    """Follows both logs of every task, each in its own thread. With several tasks, lines begin with the task number."""

    def __init__(self, client: Client, job: str) -> None:
        self._client, self._job = client, job
        self._threads: list[threading.Thread] = []
        self._writing = threading.Lock()

    def begin(self) -> None:
        """The first attempt has started. The same threads follow later attempts."""
        if self._threads:
            return
        view = self._client.job(self._job)
        places = [(gang.id, gang.role, task) for gang in view.gangs for task in range(gang.tasks)]
        if len(places) > TASKS_MAX:
            print_note(
                f"showing {TASKS_MAX} of {count(len(places), 'task')}; corral logs --task N shows the others", dim=True
            )
        marked = len(places) > 1
        several = len(view.gangs) > 1
        for gang, role, task in places[:TASKS_MAX] or [("", "", 0)]:
            mark = f"[{role if several else ''}{task}] " if marked else ""
            for stream in ("stdout", "stderr"):
                arguments = (gang.removeprefix(f"{self._job}/"), task, stream, mark.encode())
                thread = threading.Thread(target=self._follow, args=arguments, daemon=True)
                self._threads.append(thread)
                thread.start()

    def finish(self) -> None:
        until_s = time.monotonic() + _DRAIN_S
        for thread in self._threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _follow(self, gang: str, task: int, stream: str, mark: bytes) -> None:
        from corral.client.errors import ClientError

        out = LogPrinter(sys.stdout if stream == "stdout" else sys.stderr)
        rest = b""
        try:
            for part in self._client.logs(self._job, gang=gang, task=task, stream=stream, follow=True):
                data = part.data
                if mark:
                    *lines, rest = (rest + data).split(b"\n")
                    data = b"".join(mark + line + b"\n" for line in lines)
                self._write(out, data)
            if rest:
                self._write(out, mark + rest + b"\n")
        except ClientError as error:
            print_note(f"the {stream} of task {task} cannot be shown: {error}", dim=True)

    def _write(self, out: LogPrinter, data: bytes) -> None:
        with self._writing, suppress(BrokenPipeError):  # standard output was closed; the job continues
            out.write(data)
