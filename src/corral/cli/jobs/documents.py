"""From the command line to job documents: a file, a script, standard input or a command; options override them.

Knows where texts come from. ``wire.job`` finds all errors in them at once; they are shown with file, line and column
before anything is sent.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.cli.errors import BAD_INPUT, Complaint
from corral.cli.render import count, now_ms, print_note, style
from corral.wire.environment.export import with_environment
from corral.wire.environment.python import NoPython, python_environment, python_note

if TYPE_CHECKING:
    from datetime import tzinfo

    from corral.wire.job.job_files import Exporter, Parsed

STDIN = "-"


def job_documents(
    words: Sequence[str],
    command: Sequence[str] | None,
    over: dict[str, Any],
    venv: str = "",
    *,
    slurms: Sequence[str] = (),
    quiet: bool = False,
) -> list[Parsed]:
    """The jobs to submit. Raises one ``Complaint`` with all errors in them. ``venv``: the Python environment to use.
    ``slurms``: options of sbatch. ``quiet``: do not say which Python they will have."""
    if slurms:
        keys, wrap = _of_slurm(slurms)
        over = keys | over
        if wrap and command is None and not words:
            command = [wrap]
    jobs = _read_documents(words, command, over, _exporter(venv))
    if not quiet and (note := python_note(jobs[0].document, os.environ)):
        print_note(note, dim=True)
    return jobs


def _of_slurm(slurms: Sequence[str]) -> tuple[dict[str, Any], str]:
    """The keys that options of sbatch set, and the command line of ``--wrap``."""
    from corral.wire.job.sbatch import read_options

    options = read_options(slurms, now_ms=now_ms(), zone=_zone())
    if options.faults:
        raise BadFile([(*_at_option(fault.why), fault.hint) for fault in options.faults])
    for note in options.notes:
        print_note(f"note: {note.what}: {note.why}", dim=True)
    if limit := options.document.get("time_limit"):
        print_note(f"note: --time: without a unit it is minutes, as in sbatch: {limit}", dim=True)
    return options.document, options.wrap


def _at_option(why: str) -> tuple[str, str]:
    """``--time: 'soon' is no time`` or ``--wrap needs a value``: the option, and what is wrong with it."""
    option, colon, rest = why.rpartition(": ")
    if colon:
        return option, rest
    option, _, rest = why.partition(" ")
    return option, rest


def _zone() -> tzinfo:
    from datetime import datetime

    zone = datetime.now().astimezone().tzinfo
    assert zone is not None, "astimezone sets a time zone"
    return zone


def _exporter(venv: str) -> Exporter:
    """How a document gets the variables of this shell."""
    try:
        python = python_environment(venv, os.environ) if venv else None
    except NoPython as error:
        raise Complaint(str(error), error.hint, exit_code=BAD_INPUT) from None
    return lambda document: with_environment(document, os.environ, python)


def _read_documents(
    words: Sequence[str], command: Sequence[str] | None, over: dict[str, Any], exporter: Exporter
) -> list[Parsed]:
    usual = _of_this_shell()
    if command is not None:
        if words:
            what = f"both a job file, {words[0]!r}, and a command after --"
            raise Complaint(what, "give one of them")
        return _sound(_from_command(command, usual | over, exporter))
    if not words:
        here = _command_path()
        hint = f"{here} job.yaml, {here} script.sh, or {here} --gpus 1 -- python train.py"
        raise Complaint("there is nothing to run", hint)
    text, name = _read(words[0], words[1:])
    return _sound(_from_text(text, name, words[1:], usual, over, exporter))


def _command_path() -> str:
    """The command that was typed: ``corral submit`` or ``corral run``."""
    context = click.get_current_context(silent=True)
    return context.command_path if context else "corral submit"


def _of_this_shell() -> dict[str, Any]:
    """What a job takes from where it is submitted: the directory, and the umask if it is not the usual one."""
    umask = os.umask(0o022)
    os.umask(umask)
    return {"directory": os.getcwd()} | ({"umask": f"{umask:03o}"} if umask != 0o022 else {})


def _from_command(command: Sequence[str], stated: dict[str, Any], exporter: Exporter) -> list[Parsed]:
    from corral.core.model import JobSpec
    from corral.wire.job import parse_job
    from corral.wire.job.job_files import Parsed
    from corral.wire.job.shorthand import document_of, option_of

    if not command:
        raise Complaint("there is no command after --", f"write it like: {_command_path()} --gpus 1 -- python train.py")
    document, notes = exporter(document_of({}, command) | stated)
    for note in notes:
        print_note(f"note: --export: {note}", dim=True)
    spec = parse_job(document, now_ms=now_ms())
    if isinstance(spec, JobSpec):
        return [Parsed(document, spec)]
    raise BadFile([(option_of(fault.path), fault.why, fault.hint) for fault in spec])


def _from_text(
    text: str, name: str, words: Sequence[str], usual: dict[str, Any], over: dict[str, Any], exporter: Exporter
) -> list[Parsed]:
    from corral.wire.job.job_files import is_script, read_job_file

    if is_script(text):
        from corral.wire.job.sbatch import read_sbatch

        return [
            read_sbatch(
                text,
                name,
                arguments=words,
                now_ms=now_ms(),
                defaults=usual,
                overrides=over,
                exporter=exporter,
                zone=_zone(),
            )
        ]
    if words:
        hint = f"for a command write: corral submit -- {' '.join([name, *words])}"
        raise Complaint(f"unexpected arguments after a job file: {' '.join(words)}", hint)
    return read_job_file(text, name, now_ms=now_ms(), defaults=usual, overrides=over, exporter=exporter)


def _read(name: str, more: Sequence[str] = ()) -> tuple[str, str]:
    if name == STDIN:
        return sys.stdin.read(), "stdin"
    try:
        return Path(name).read_text(encoding="utf-8"), name
    except FileNotFoundError:
        raise Complaint(f"there is no job file {name!r}", _file_hint(name, more)) from None
    except UnicodeDecodeError:
        raise Complaint(f"{name} is not text", f"to run a program write -- before it: -- {name}") from None
    except OSError as error:
        raise Complaint(f"{name} cannot be read: {error.strerror}", "name a job file") from None


def _file_hint(name: str, more: Sequence[str]) -> str:
    """What was meant by a name that is no file: a job file elsewhere, a Python program, or a command."""
    here = _command_path()
    match Path(name).suffix:
        case ".yaml" | ".yml" | ".json" | ".sh" | ".sbatch" | ".slurm":
            return f"check the name; the current folder is {Path.cwd()}"
        case ".py" if " " not in name:
            return f"for a command write -- before it: {here} -- {' '.join(['python', name, *more])}"
    return f"for a command write -- before it: {here} -- {' '.join([name, *more])}"


def _sound(jobs: list[Parsed]) -> list[Parsed]:
    for job in jobs:
        for note in job.notes:
            print_note(f"note: {note}", dim=True)
    faults = [fault for job in jobs for fault in job.faults]
    if faults:
        raise BadFile([(str(each.place), each.fault.why, each.fault.hint) for each in faults])
    return jobs


def placed(jobs: Sequence[Parsed], faults: Sequence[Any], batch: bool) -> BadFile:
    """Errors that the server found, with their position in the file."""
    from corral.wire.job.shorthand import option_of

    placed = []
    for fault in faults:
        path, job = tuple(fault.path), jobs[0]
        if batch and len(path) >= 2 and path[0] == "jobs" and isinstance(path[1], int):
            job, path = jobs[path[1]], path[2:]
        place = job.place(path)
        placed.append((str(place) if place else option_of(path), fault.why, fault.hint))
    return BadFile(placed)


class BadFile(Complaint):
    """All errors in job files, one per line, as compilers print them."""

    def __init__(self, faults: Sequence[tuple[str, str, str]]) -> None:
        hint = "" if all(hint for _, _, hint in faults) else "see: corral submit --help"
        super().__init__(f"{count(len(faults), 'error')} found", hint, exit_code=BAD_INPUT)
        self.faults = faults

    def format_message(self) -> str:
        return self.message

    def show_faults(self) -> None:
        for place, why, hint in self.faults:
            shown = style(place, stream=sys.stderr, bold=True)
            print_note(f"{shown}: {why}" + (f" ({hint})" if hint else ""))
