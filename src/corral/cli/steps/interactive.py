"""``corral run --pty``: a job that is a terminal: the command runs in it, and both end together.

The job itself only waits for the session: it ends with the session, also when the client is killed or the connection
stays lost, and when no session begins.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from corral.cli.errors import TIMED_OUT, Complaint
from corral.cli.jobs.waiting import WaitingLine
from corral.cli.render import print_note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.client.blocking import Client

_LOOK_S = 0.25
_BEGIN_S = 180  # a session that has not begun by then does not come
_MARK = "$TMPDIR/.session"
#: Of the job: wait for the session, then for its end; or for the end of its idle time.
HOLDER = f"""n=0
while [ ! -s "{_MARK}" ]; do n=$((n+1)); [ $n -gt {_BEGIN_S * 2} ] && exit 0; sleep 0.5; done
pid=$(cat "{_MARK}")
while kill -0 "$pid" 2>/dev/null; do sleep 1; done
"""
#: Of the session: say which process it is, and become the command.
_SESSION = f'echo $$ >"{_MARK}"; exec "$@"'


def run_terminal(client: Client, job: str, command: Sequence[str], most_wait_ms: int | None) -> int:
    from corral.cli.steps.in_job import run_in_job
    from corral.client.errors import Problem

    try:
        until_running(client, job, most_wait_ms)
        words = ["/bin/sh", "-c", _SESSION, "session", *command]
        return run_in_job(job, 0, words, has_terminal=True, what="run")
    except (KeyboardInterrupt, Complaint):
        with suppress(Problem):  # it may have ended
            client.cancel(job, now=True)
        raise


def until_running(client: Client, job: str, most_wait_ms: int | None) -> Any:
    """The running job. Raises ``Complaint`` if it ends first, or has not started in time: then it is cancelled."""
    waiting = WaitingLine(client, job, False)
    end = None if most_wait_ms is None else time.monotonic() + most_wait_ms / 1000
    waiting.begin()
    try:
        while True:
            view = client.job(job)
            if view.ended_ms is not None:
                raise Complaint(f"job {job} ended before it began: {view.why or view.state}", f"see: corral show {job}")
            if view.state == "running":
                return view
            if end is not None and time.monotonic() > end:
                client.cancel(job, now=True)
                hint = "wait longer with --max-wait, or ask for less"
                raise Complaint(f"job {job} did not start in time, and is cancelled", hint, TIMED_OUT)
            time.sleep(_LOOK_S)
    finally:
        waiting.end()
        print_note(f"job {job}", dim=True)
