"""``corral logs``: the output of a job."""

from __future__ import annotations

import sys
from typing import Any

import rich_click as click

from corral.cli.errors import NOT_FOUND, Complaint
from corral.cli.jobs.names import selector_of
from corral.cli.option_types import Word
from corral.cli.render import print_note
from corral.cli.safe_text import LogText
from corral.cli.session import connected

_LINES_AT_ONCE = 256 << 10  # bytes at the end of a log in which its last lines are searched


@click.command()
@click.argument("job")
@click.option("--follow", "-f", is_flag=True, help="Follow the output across restarts until the job ends.")
@click.option("--task", type=click.IntRange(min=0), metavar="N", default=0, help="Show this task; the first is 0.")
@click.option("--gang", metavar="ROLE", default="", help="Show this gang: a role, or 3/ROLE in an array.")
@click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", default=None, help="Show this attempt; default: the newest."
)
@click.option("--stream", type=Word("stdout", "stderr"), default="stdout", help="Show this stream.")
@click.option("--tail", "-n", type=click.IntRange(min=1), metavar="N", default=None, help="Show the last N lines.")
def logs(job: str, **given: Any) -> None:
    """Print the output of a task of a job. On a terminal, colours are kept and other control sequences are left out.

    JOB may be 17, 17[3] or 17/trainer."""
    from corral.client.errors import NotFound

    id, gang = named(job, given["gang"])
    where = {"gang": gang, "task": given["task"], "attempt": given["attempt"] or 0, "stream": given["stream"]}
    out = LogPrinter()
    with connected() as client:
        try:
            offset = 0
            if given["tail"]:
                end = b"".join(part.data for part in client.logs(id, tail=_LINES_AT_ONCE, **where))
                out.write(_last_lines(end, given["tail"]))
                if not given["follow"]:
                    return
                offset = _end(client, id, where)
            for part in client.logs(id, offset=offset, follow=given["follow"], **where):
                out.write(part.data)
        except NotFound as error:
            if error.code != "no_such_log":
                raise
            raise Complaint(str(error), f"corral why {id} says what it waits for", exit_code=NOT_FOUND) from None
        except KeyboardInterrupt:
            print_note(f"\nthe job continues; to see more: corral logs -f {job}", dim=True)


def named(job: str, gang: str = "") -> tuple[str, str]:
    """``17``, ``17[3]``, ``17/trainer``, ``17[3]/trainer``: the job, and the gang as the API takes it."""
    selector = selector_of(job)
    index = "" if not selector.indices else str(selector.indices[0][0])
    return selector.job, gang or "/".join(part for part in (index, selector.role) if part)


def _end(client: Any, id: str, where: dict[str, Any]) -> int:
    """The current end of a log."""
    end = 0
    for part in client.logs(id, tail=1, **where):
        end = part.offset + len(part.data)
    return end


def _last_lines(text: bytes, count: int) -> bytes:
    lines = text.splitlines(keepends=True)
    return b"".join(lines[-count:])


class LogPrinter:
    """Write to a stream: unchanged, except that on a terminal unsafe control sequences are left out."""

    def __init__(self, out: Any = None) -> None:
        self._out = sys.stdout if out is None else out
        self._text = LogText() if self._out.isatty() else None

    def write(self, data: bytes) -> None:
        self._out.flush()
        self._out.buffer.write(data if self._text is None else self._text.take(data))
        self._out.buffer.flush()
