"""Files of reports. Every path is tried before a run starts, so that no run is lost to a misspelt folder.

Knows files and their contents; measures nothing.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console

from corral.cli.errors import Complaint
from corral.cli.sim.options import Asked
from corral.core import events as e
from corral.sim.report.page import page
from corral.sim.report.result import Result
from corral.sim.report.result_files import measures_json, write_jobs
from corral.sim.report.terminal_table import show

STDOUT = "-"
WIDTH = 120  # width of tables that go into a file or a pipe

Journal = Callable[[Sequence[e.Event]], None]


def check_places(asked: Asked, policies: Sequence[str]) -> None:
    """Raise ``Complaint`` for a report that could not be written, before the run."""
    seen: dict[Path, str] = {}
    named = {"--json": asked.json, "--csv": asked.csv, "--html": asked.html, "--journal": asked.journal}
    for option, name in named.items():
        if name is None or (name == STDOUT and option == "--json"):
            continue
        if name == STDOUT:
            raise Complaint(f"{option} cannot go to standard output", "only --json can; name a file")
        for path in _paths(option, name, policies):
            if path.resolve() in seen and _is_plain(path):
                raise Complaint(f"{option} and {seen[path.resolve()]} are the same file, {path}", "name two files")
            seen[path.resolve()] = option
            check_writable(option, path)


def _paths(option: str, name: str, policies: Sequence[str]) -> list[Path]:
    return [_place(name, policy, policies) for policy in policies] if option in ("--csv", "--journal") else [Path(name)]


def _place(name: str, policy: str, policies: Sequence[str]) -> Path:
    """The file of one run. With several runs, the name of the policy comes before the extension."""
    path = Path(name)
    return path if len(policies) == 1 else path.with_name(f"{path.stem}.{policy}{path.suffix}")


def _is_plain(path: Path) -> bool:
    return not path.exists() or path.is_file()


def check_writable(option: str, path: Path) -> None:
    """Try to write: permissions do not tell about full or read-only file systems."""
    if path.is_dir():
        raise Complaint(f"{option}: {path} is a folder", "name a file")
    if not path.parent.is_dir():
        raise Complaint(f"{option}: there is no folder {path.parent}", "create it, or name another")
    is_new = not path.exists()
    try:
        if is_new or stat.S_ISREG(path.stat().st_mode):
            with path.open("ab"):
                pass
        elif not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        what = f"{option}: {path} cannot be written: {error.strerror or error}"
        raise Complaint(what, "name a file that you may write") from None
    if is_new:
        path.unlink(missing_ok=True)


@contextmanager
def journal(asked: Asked, policy: str, policies: Sequence[str]) -> Iterator[Journal | None]:
    """Write the events of a run as they happen: one line of JSON each."""
    if asked.journal is None:
        yield None
        return
    encoder, path = msgspec.json.Encoder(), _place(asked.journal, policy, policies)
    with _errors_as_complaints("--journal", path), path.open("wb") as out:

        def write(events: Sequence[e.Event]) -> None:
            out.write(encoder.encode_lines(events))

        yield write


def write_reports(asked: Asked, results: Sequence[Result], policies: Sequence[str], title: str) -> None:
    """Print the table, then write every file that was requested."""
    if asked.json == STDOUT:
        sys.stdout.write(measures_json(results).decode())
    else:
        is_wide = sys.stdout.isatty() or "COLUMNS" in os.environ
        console = Console(file=sys.stdout, width=None if is_wide else WIDTH)
        console.print(title, highlight=False, markup=False, soft_wrap=True)
        show(results, console)
    if asked.json not in (None, STDOUT):
        with _errors_as_complaints("--json", Path(asked.json)):
            Path(asked.json).write_bytes(measures_json(results))
    if asked.html is not None:
        with _errors_as_complaints("--html", Path(asked.html)):
            Path(asked.html).write_text(page(results, title), encoding="utf-8")
    for result in results if asked.csv is not None else ():
        path = _place(asked.csv or "", result.policy, policies)
        with _errors_as_complaints("--csv", path), path.open("w", encoding="utf-8", newline="") as out:
            write_jobs(result.history, out)


@contextmanager
def _errors_as_complaints(option: str, path: Path) -> Iterator[None]:
    """Turns a failure to write after the run, such as a full disk, into a ``Complaint``."""
    try:
        yield
    except OSError as error:
        what = f"{option}: {path} could not be written: {error.strerror or error}"
        raise Complaint(what, "free some disk space and run it again", exit_code=1) from None
