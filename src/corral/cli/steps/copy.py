"""``corral cp``: files and folders from a running job and into it, with a digest of all bytes at both ends."""

from __future__ import annotations

import os
import threading
from typing import Any

import rich_click as click

from corral.cli.errors import BAD_INPUT, Complaint
from corral.cli.render import print_note
from corral.cli.session import complaint_of
from corral.cli.steps.in_job import finder_of

_JOB_PATH = "JOB:PATH"


@click.command("cp")
@click.option("--task", type=click.IntRange(0), default=0, help="Number of the task. Default: the first.")
@click.option("--quiet", is_flag=True, help="Print nothing.")
@click.argument("source")
@click.argument("target")
def copy(source: str, target: str, task: int, quiet: bool) -> int:
    """Copy a file or a folder out of a running job, or into it.

    One of both is JOB:PATH; a relative PATH begins in the directory of the job: corral cp 17:out/log.txt . As with
    cp, a target that is a folder gets the source in it. The copy is compared by its SHA-256. What comes from a job
    never writes outside of the target: links that lead out of it are refused.
    """
    job, path, is_out = _sides(source, target)
    try:
        count, digest = _copied_out(job, task, path, target) if is_out else _copied_in(job, task, source, path)
    except OSError as fault:
        raise Complaint(f"{fault.filename or target}: {fault.strerror or fault}", "nothing more was copied") from None
    if not quiet:
        from corral.amount_text import size

        print_note(f"{size(count >> 20) if count >> 20 else f'{count} bytes'} copied, sha256 {digest[:16]}", dim=True)
    return 0


def _sides(source: str, target: str) -> tuple[str, str, bool]:
    sides = []
    for text in (source, target):
        job, colon, path = text.partition(":")
        sides.append((job, path) if colon and job.partition("[")[0].isdecimal() else None)
    if (sides[0] is None) == (sides[1] is None):
        what = "both are in jobs" if sides[0] else "neither is in a job"
        raise Complaint(f"{what}: {source} and {target}", f"write one of them as {_JOB_PATH}", BAD_INPUT)
    found = sides[0] or sides[1]
    assert found is not None
    return found[0], found[1] or ".", sides[0] is not None


def _copied_out(job: str, task: int, path: str, target: str) -> tuple[int, str]:
    from corral.runtime.steps.copy_stream import unpack

    read, write = os.pipe()
    name = os.path.basename(path.rstrip("/")) or f"job-{job}"
    result: list[Any] = []

    def unpacked() -> None:
        with os.fdopen(read, "rb") as stream:
            result.append(_tried(lambda: unpack(stream, target, name)))

    thread = threading.Thread(target=unpacked)
    thread.start()
    source = os.open(os.devnull, os.O_RDONLY)
    try:
        code, said, fault = _run(job, task, ["send", path], source, write)
    finally:
        os.close(write)
        os.close(source)
        thread.join()
    return _compared(result[0], code, said, fault)


def _copied_in(job: str, task: int, source: str, path: str) -> tuple[int, str]:
    from corral.runtime.steps.copy_stream import pack

    os.lstat(source)
    read, write = os.pipe()
    result: list[Any] = []

    def packed() -> None:
        with os.fdopen(write, "wb") as stream:
            result.append(_tried(lambda: pack(source, stream)))

    thread = threading.Thread(target=packed)
    thread.start()
    sink = os.open(os.devnull, os.O_WRONLY)
    name = os.path.basename(os.path.abspath(source))
    try:
        code, said, fault = _run(job, task, ["receive", path, name], read, sink)
    finally:
        os.close(read)
        os.close(sink)
        thread.join()
    return _compared(result[0], code, said, fault)


def _tried(act: Any) -> Any:
    """The result, or what went wrong: it is raised in the thread of the command."""
    try:
        return act()
    except Exception as fault:
        return fault


def _run(job: str, task: int, words: list[str], source: int, sink: int) -> tuple[int, str, Exception | None]:
    from corral.client.errors import Problem
    from corral.runtime.steps import step_frames as frames
    from corral.runtime.steps.seat_link import StepRefused
    from corral.runtime.steps.seat_pipe import SeatPipe

    pipe = SeatPipe(finder_of(job, "cp"), task, [frames.OWN_PROGRAM, *words])
    try:
        code = pipe.run(source, sink)
    except Problem as problem:
        return 1, "", complaint_of(problem)
    except StepRefused as refused:
        return 1, "", Complaint(refused.why, f"is it running? corral show {job}")
    except OSError as fault:
        return 1, pipe.errors.decode(errors="replace"), fault
    return code, pipe.errors.decode(errors="replace"), None


def _compared(own: Any, code: int, said: str, fault: Exception | None) -> tuple[int, str]:
    from corral.runtime.steps.copy_stream import BadArchive

    if isinstance(fault, Complaint):
        raise fault
    lines = [line for line in said.splitlines() if line.strip()]
    theirs = lines[-1].removeprefix("sha256 ") if lines and lines[-1].startswith("sha256 ") else ""
    if code and not theirs:
        raise Complaint(f"in the job: {lines[-1][:500] if lines else f'exit code {code}'}", "nothing was copied whole")
    if isinstance(own, BadArchive):
        raise Complaint(f"refused: {own}", "copy a folder inside it, or look with corral exec")
    if isinstance(own, Exception):
        raise own
    if fault is not None:
        raise fault
    if own.digest != theirs:
        raise Complaint("the copy differs from the source", "was it written meanwhile? copy it again")
    return own.count, own.digest
