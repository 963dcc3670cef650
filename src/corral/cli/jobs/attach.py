"""To be there while a job runs: what it writes comes out here, what happens to it is told beside it.

Output of tasks goes to standard output and error as if they ran here; everything else to standard error. Ctrl-C
detaches and the job goes on; pressed again at once, it cancels the job.
"""

from __future__ import annotations

import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from corral.cli.complaint import INTERRUPTED
from corral.cli.jobs.logs import Writer
from corral.cli.jobs.wait import ending, exit_code
from corral.cli.render import clock, count, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from corral.client.blocking import Client
    from corral.wire.api.record import EventView

TASKS_MAX = 8  # whose output is shown; the others have their logs
SECOND_S = 2.0  # for the second Ctrl-C
_DRAIN_S = 10.0  # for the rest of the logs, after the end
_BEGINS = ("GangStarted", "TasksStarted")
_UNTOLD = ("JobSubmitted", "TasksStarted", "TasksEnded", "GangFinished", "JobEnded")  # said otherwise, or by the end
_BEHIND_S = 0.25  # what a task wrote last is told before its end


def attach(client: Client, job: str, after: int, quiet: bool = False) -> int:
    """Until the job is over; its exit code. ``after``: the number of the record from which on things are told."""
    outputs = _Outputs(client, job)
    try:
        for event in _happenings(client, job, after):
            if event.type in _BEGINS:
                outputs.begin()
            if quiet or event.type in _UNTOLD:
                continue
            if event.type == "GangStopped":
                time.sleep(_BEHIND_S)
            say(f"{clock(event.at_ms)} {event.text}", dim=True)
        outputs.finish()
        view = client.job(job)
    except KeyboardInterrupt:
        return _leave(client, job)
    if not quiet:
        say(ending(view), bold=True)
    return exit_code(view)


def _happenings(client: Client, job: str, after: int) -> Iterator[EventView]:
    for event in client.events(after, follow=True, job=job):
        yield event
        if event.type == "JobEnded":
            return


def _leave(client: Client, job: str) -> int:
    """The first Ctrl-C has come. One more, even while this is being said, cancels."""
    try:
        say(f"\ndetached: job {job} goes on", bold=True)
        say(f"  corral logs -f {job}   to see it again", dim=True)
        say(f"  corral cancel {job}    to end it, or press Ctrl-C once more now", dim=True)
        time.sleep(SECOND_S)
    except KeyboardInterrupt:
        client.cancel(job)
        say(f"\njob {job} is cancelled", bold=True)
    return INTERRUPTED


class _Outputs:
    """Follows both logs of every task, each in a thread of its own. Of several, lines begin with a number."""

    def __init__(self, client: Client, job: str) -> None:
        self._client, self._job = client, job
        self._threads: list[threading.Thread] = []
        self._writing = threading.Lock()

    def begin(self) -> None:
        """The first run has begun; later ones are followed by the same threads."""
        if self._threads:
            return
        view = self._client.job(self._job)
        places = [(gang.id, task) for gang in view.gangs for task in range(gang.tasks)]
        if len(places) > TASKS_MAX:
            say(f"showing {TASKS_MAX} of {count(len(places), 'task')}; corral logs --task N shows the others", dim=True)
        marked = len(places) > 1
        several = len(view.gangs) > 1
        for gang, task in places[:TASKS_MAX] or [("", 0)]:
            mark = f"[{gang.partition('/')[2] if several else ''}{task}] " if marked else ""
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

        out = Writer(sys.stdout if stream == "stdout" else sys.stderr)
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
            say(f"the {stream} of task {task} cannot be shown: {error}", dim=True)

    def _write(self, out: Writer, data: bytes) -> None:
        with self._writing, suppress(BrokenPipeError):  # nobody reads any more; the job goes on
            out.write(data)
