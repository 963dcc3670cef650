"""``corral logs``: the output of a job, and the end of the log of a job that has failed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.errors import NOT_FOUND, Complaint
from corral.cli.jobs.names import job_name
from corral.cli.jobs.waiting import WaitingLine
from corral.cli.option_types import Word
from corral.cli.render import print_note
from corral.cli.safe_text import LogText
from corral.cli.session import connected

if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.client.blocking import Client
    from corral.client.follow import LogBytes
    from corral.wire.api.jobs import JobView

END_LINES = 20  # of the log of a failed job
_STREAMS = {"out": "stdout", "err": "stderr", "stdout": "stdout", "stderr": "stderr"}


@click.command()
@click.argument("job")
@click.option("--follow", "-f", is_flag=True, help="Follow the output across restarts until the job ends.")
@click.option("--rank", type=click.IntRange(min=0), metavar="N", default=None, help="Only this rank.")
@click.option("--task", type=click.IntRange(min=0), metavar="N", default=None, help="Only this task; the first is 0.")
@click.option("--gang", metavar="ROLE", default="", help="Only this gang: a role, or 3/ROLE in an array.")
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", default=None, help="Show this attempt; default: the newest."
)
@click.option("--stream", type=Word(*_STREAMS), default=None, help="Only this stream.")
@click.option(
    "--tail", "-n", type=click.IntRange(1, 10_000), metavar="N", default=None, help="Show the last N lines of all."
)
def logs(job: str, **given: Any) -> None:
    """Print the output of a job: both streams of all tasks, ranks and array elements, in order of time.

    Where there are several, each line begins with a label: [3] for rank or element 3, [3 err] for its standard error.
    On a terminal, colours are kept and other control sequences are left out.
    JOB may be 17, 17[3], 17[3-9] or 17/trainer."""
    from corral.client.errors import NotFound

    id = job_name(job)
    wanted = {name: given[name] for name in ("rank", "task", "tail", "follow")}
    wanted |= {"attempt": given["attempt"] or 0, "stream": _STREAMS.get(given["stream"], "")}
    out = LabelledPrinter(marks_errors=not wanted["stream"])
    with connected() as client:
        waiting = WaitingLine(client, id, quiet=not given["follow"])
        waiting.begin()
        try:
            for part in client.output(id, gang=given["gang"], **wanted):
                waiting.end()
                out.write(part)
            out.finish()
            if not out.has_written:
                _say_empty(client, id, job, given)
        except NotFound as error:
            if error.code != "no_such_log":
                raise
            raise Complaint(str(error), _instead(client, id), exit_code=NOT_FOUND) from None
        except KeyboardInterrupt:
            waiting.end()
            print_note(f"\nthe job continues; to see more: corral logs -f {job}", dim=True)
        finally:
            waiting.end()


def _instead(client: Client, id: str) -> str:
    """Where there is no such log: what there is, or why the job has none yet."""
    if client.job(id).state == "waiting":
        return f"corral why {id} says what it waits for"
    return f"see: corral show {id}; all output: corral logs {id}"


def _say_empty(client: Client, id: str, job: str, given: dict[str, Any]) -> None:
    from corral.client.errors import ClientError

    is_narrowed = any(given[name] is not None for name in ("rank", "task", "attempt", "stream")) or given["gang"]
    try:
        is_over = client.job(id).ended_ms is not None
    except ClientError:
        is_over = True  # it was read just now, and cannot be any more
    what = "nothing of that" if is_narrowed else "no output"
    print_note(f"job {job} has written {what}" + ("" if is_over else " yet; -f waits for it"), dim=True)


def show_end_of_log(client: Client, job: JobView, say: Callable[[str], None] = print_note, out: Any = None) -> None:
    """Of a failed job: the last lines of the task that failed first, by default on standard error."""
    from corral.client.errors import ClientError

    failed = next((run for run in job.history if run.first_failure is not None and run.failure == job.failure), None)
    run = failed or next((run for run in reversed(job.history) if run.failure is not None), None)
    if job.state != "failed" or run is None:
        return
    first = run.first_failure
    task, rank = (None, None) if first is None else (first.task, first.rank)
    gang = run.gang.removeprefix(f"{job.id}/") if "[" not in run.gang else f"{run.index}/{run.role}"
    try:
        parts = list(client.output(job.id, gang=gang, attempt=run.attempt, tail=END_LINES, task=task, rank=rank))
    except ClientError:
        return  # its log is gone
    if not parts:
        say(f"job {job.id} has written no output")
        return
    where = "" if first is None or first.rank is None else f" of rank {first.rank} on {first.node}"
    say(f"the end of the log{where}:")
    printer = LogPrinter(out or sys.stderr)
    for part in parts:
        printer.write(part.data if part.data.endswith(b"\n") else part.data + b"\n")


class LabelledPrinter:
    """Write parts of the output of a job, each line with its label. ``marks_errors``: whether labels name stderr."""

    def __init__(self, out: Any = None, *, marks_errors: bool = True) -> None:
        self._out = LogPrinter(out)
        self._marks_errors = marks_errors
        self._unfinished = b""  # the label of a line that has no end yet
        self.has_written = False

    def write(self, part: LogBytes) -> None:
        self.has_written = True
        if not part.label:
            self._out.write(part.data)
            return
        word = f"{part.label} err" if self._marks_errors and part.stream == "stderr" else part.label
        label = f"[{word}] ".encode()
        data = part.data.removesuffix(b"\n").replace(b"\n", b"\n" + label)
        begin = b"" if self._unfinished == label else b"\n" + label if self._unfinished else label
        is_whole = part.data.endswith(b"\n")
        self._unfinished = b"" if is_whole else label
        self._out.write(begin + data + (b"\n" if is_whole else b""))

    def finish(self) -> None:
        if self._unfinished:
            self._unfinished = b""
            self._out.write(b"\n")


class LogPrinter:
    """Write to a stream: unchanged, except that on a terminal unsafe control sequences are left out."""

    def __init__(self, out: Any = None) -> None:
        self._out = sys.stdout if out is None else out
        self._text = LogText() if self._out.isatty() else None

    def write(self, data: bytes) -> None:
        self._out.flush()
        self._out.buffer.write(data if self._text is None else self._text.take(data))
        self._out.buffer.flush()
