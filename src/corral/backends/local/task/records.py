"""The files of a task's state directory: their names, and how they are written so that no reader takes half of one.

Knows names and bytes. Reading and judging them is the server's side (`state`).
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import errno
import os

#: What happened to the task, a line for each: one of the words below, a space, and the rest as JSON. One file rather
#: than one for each, because making and removing files is most of what a small task costs.
RECORD = "record"
#: The order as it came, without its secrets; written before anything runs.
ORDER = "order"
#: When the processes were up, and which they are.
STARTED = "started"
#: How it ended. Nothing is written after it but the removal of what is left.
EXIT = "exit"
#: A FIFO that the supervisor, and nobody else, reads: orders go in here; that it has a reader means that one lives.
CONTROL = "control"
#: The last step that the task has saved, as a number.
STEP = "step"
#: In the run directory: the FIFO in which supervisors say the name of a task that has news.
NEWS = "news"

Plain = str | int | bool | None
Record = dict[str, "Plain | list[str] | list[int]"]


def write_whole(path: str, data: bytes) -> None:
    """A reader sees all of it or the file as it was."""
    beside = path + ".new"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)
    os.rename(beside, path)


def make_state(state: str, blank: str) -> bool:
    """A state directory: ``blank`` in its new place, or a new one. False: it is there already, with an order; one that
    was left half made by a spawner that was killed is finished."""
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
            return False  # this was asked before
        raise
    return True


def _has_order(state: str) -> bool:
    try:
        return os.stat(f"{state}/{RECORD}").st_size > 1
    except FileNotFoundError:
        return False


def make_blank(state: str) -> None:
    """Of what was written, only the end of line is left with which every record begins: to cut off everything would
    cost the file its place on the disk, and the next task the search for another."""
    os.truncate(f"{state}/{RECORD}", 1)


def begin(state: str, order: bytes) -> None:
    """Of a new state directory: the record, with its first line."""
    _add(state, os.O_CREAT, ORDER, order)


def add(state: str, word: str, rest: bytes) -> None:
    """One more line. FileNotFoundError: the record was removed, nobody wants to know."""
    _add(state, 0, word, rest)


def _add(state: str, flags: int, word: str, rest: bytes) -> None:
    """All of it or nothing, as far as readers are concerned: they take whole lines only. It begins with an end of line,
    in case the last one was torn."""
    fd = os.open(f"{state}/{RECORD}", os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o600)
    try:
        line = b"\n" + word.encode() + b" " + rest.strip() + b"\n"
        if os.write(fd, line) < len(line):
            raise OSError(errno.ENOSPC, "no space left for the record of a task")
    finally:
        os.close(fd)


def make_durable(path: str) -> None:
    """The file survives a power failure from here on; and its name, because journalling file systems (ext4, XFS, btrfs)
    commit the renaming of a file, which changes it, with the file."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def to_json(record: Record) -> bytes:
    """As json.dumps would; json is not imported because every supervisor would pay for it."""
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


def say_news(run: str, name: str) -> None:
    """A hint to the server that the task has news. Lost without harm when nobody listens: the files are the truth."""
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
