"""The files of a task's state directory: their names, and how its record is written so that no reader sees half a line.

Knows names and bytes. The server's side (`state`) reads and interprets them.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import errno
import os

#: What happened to the task, one line each: one of the words below, a space, and the rest as JSON. It is one file,
#: because creating and removing files is most of the cost of a small task.
RECORD = "record"
#: The order without its secrets; written before anything runs.
ORDER = "order"
#: When the processes were started, and their ids.
STARTED = "started"
#: How it ended. Nothing is written after it; the rest is removed.
EXIT = "exit"
#: A FIFO for orders that only the supervisor reads. If it has a reader, the supervisor lives.
CONTROL = "control"
#: The last checkpoint that the task has saved; of earlier versions only its step, as a number.
STEP = "step"
#: After a warning: the first step at which its ranks can stop; later the step at which they do.
STOP = "stop"
#: Job steps that have begun and ended, one line of JSON each.
JOB_STEPS = "job-steps"
#: In the run directory: the FIFO to which supervisors write the name of a task that has changed.
NEWS = "news"

Plain = str | int | bool | None
Record = dict[str, "Plain | list[str] | list[int]"]


def read_start(path: str, most: int) -> bytes:
    """The first bytes of a file; none if it cannot be read. Follows no link and never blocks, so anyone may own it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, most)
    except OSError:
        return b""
    finally:
        os.close(fd)


def make_state(state: str, blank: str) -> bool:
    """Create a state directory: rename ``blank``, or make a new one. False: it exists already, with an order. One that
    a killed spawner has left half created is completed."""
    if blank and _moved(blank, state):
        return True
    try:
        os.mkdir(state, 0o700)
    except FileExistsError:
        if _has_order(state):
            return False
    try:
        os.mkfifo(f"{state}/{CONTROL}", 0o600)
    except FileExistsError:
        pass
    return True


def _moved(blank: str, state: str) -> bool:
    try:
        os.rename(blank, state)
    except OSError as fault:
        if fault.errno in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
            return False  # a repeated request
        raise
    return True


def _has_order(state: str) -> bool:
    try:
        return os.stat(f"{state}/{RECORD}").st_size > 1
    except FileNotFoundError:
        return False


def make_blank(state: str) -> None:
    """Truncates the record to the newline with which every record starts. Truncating all of it would free its block on
    the disk, and the next task would have to find another."""
    os.truncate(f"{state}/{RECORD}", 1)


def begin(state: str, order: bytes) -> None:
    """Create the record of a new state directory, with its first line."""
    _add(state, os.O_CREAT, ORDER, order)


def add(state: str, word: str, rest: bytes) -> None:
    """Append a line. Raises FileNotFoundError if the record was removed: it is no longer needed."""
    _add(state, 0, word, rest)


def _add(state: str, flags: int, word: str, rest: bytes) -> None:
    """Atomic for readers: they take whole lines only. It starts with a newline, in case the previous line was torn."""
    fd = os.open(f"{state}/{RECORD}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)
    try:
        line = b"\n" + word.encode() + b" " + rest.strip() + b"\n"
        if os.write(fd, line) < len(line):
            raise OSError(errno.ENOSPC, "no space left for the record of a task")
    finally:
        os.close(fd)


def to_json(record: Record) -> bytes:
    """Like json.dumps. The json module is not imported, because every supervisor would pay for it."""
    return ("{" + ", ".join(f"{_text(name)}: {_value(value)}" for name, value in record.items()) + "}\n").encode(
        "utf-8", "replace"
    )


def _value(value: Plain | list[str] | list[int]) -> str:
    if value is None:
        return "null"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return str(value).lower()  # True, False and numbers


def _text(text: str) -> str:
    return '"' + "".join(c if c >= " " and c not in '"\\' else f"\\u{ord(c):04x}" for c in text) + '"'


def notify(run: str, name: str) -> None:
    """Hint to the server that the task has changed. It may be lost without harm: the files are authoritative."""
    try:
        fd = os.open(f"{run}/{NEWS}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # no server
    try:
        os.write(fd, name.encode() + b"\n")
    except OSError:
        pass  # full: the server is slow and will look by itself
    finally:
        os.close(fd)
