"""Kinds of values for what a task executes: commands, processes, early signals, mounts, paths.

Each accepts the short forms that users know from other tools and writes one canonical form. Runs nothing.
"""

from __future__ import annotations

from typing import Any

from corral.core.work import EarlySignal, Mount
from corral.duration_text import write_span
from corral.wire.document.errors import Path, Reading, Wrong, show
from corral.wire.document.key_table import Key, KeyTable
from corral.wire.document.kinds import FLAG, SPAN, ValueKind, check_characters, choice, meant, number, text

#: How a line for the shell is executed. A machine without bash uses sh instead.
SHELL = ("bash", "-c")


def _read_command(value: Any, _path: Path, reading: Reading) -> tuple[str, ...]:
    """A string is for the shell; a list is executed directly."""
    most = reading.limits.command_bytes
    if type(value) is str:
        if not value.strip():
            raise Wrong("empty", "the command is empty", "give the command to run")
        words: tuple[str, ...] = (*SHELL, value)
    elif type(value) is list and value:
        words = tuple(value)
    else:
        raise Wrong("wrong_type", f"this must be {COMMAND_SAYS}, not {show(value)}")
    weight = 0
    for word in words:
        if type(word) is not str:
            raise Wrong("wrong_type", f"{show(word)} in the command is not text", "put it in quotes")
        is_plain = word.isascii() and "\0" not in word
        weight += len(word) if is_plain else len(word.encode(errors="surrogatepass"))
        if weight > most:
            raise Wrong("too_long", f"the command has more than {most} bytes", "put it into a script file")
        if not is_plain:
            check_characters(word)
    if not words[0]:
        raise Wrong("empty", "the name of the program is empty")
    return words


COMMAND_SAYS = "a line for the shell, or a list of a program and its arguments"
COMMAND = ValueKind(
    _read_command,
    {"anyOf": [{"type": "string", "pattern": r"\S"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
    COMMAND_SAYS,
    lambda words: words[2] if words[:2] == SHELL and len(words) == 3 and words[2].strip() else list(words),
)


def _read_processes(value: Any, path: Path, reading: Reading) -> int:
    if value == "gpu":
        return 0
    if type(value) is str:
        raise Wrong("bad_choice", f"{show(value)} is neither a number nor gpu", "gpu: one process for each GPU")
    return int(_PROCESSES.read(value, path, reading))


_PROCESSES = number("a number of processes, or gpu", 1, 4096)
PROCESSES = ValueKind(
    _read_processes,
    {"anyOf": [_PROCESSES.schema, {"const": "gpu"}]},
    "a number of processes, or gpu for one on each GPU",
    lambda count: count or "gpu",
)


def _read_export(value: Any, _path: Path, _reading: Reading) -> str:
    """Clients replace it by values. Here the environment of the user is unknown, so that only NONE has a meaning."""
    if value in ("NONE", "NIL"):
        return "NONE"
    is_text = isinstance(value, str) or (type(value) is list and value and all(type(each) is str for each in value))
    if not is_text:
        raise Wrong("wrong_type", f"this must be ALL, NONE or names of variables, not {show(value)}", _EXPORT_HINT)
    why = f"{show(value)} does not name variables of a shell that is known here"
    raise Wrong("bad_export", why, f"{_EXPORT_HINT}; through the API give values in env")


_EXPORT_HINT = "write it like ALL, NONE, or HF_HOME,MODE=fast"
EXPORT = ValueKind(
    _read_export,
    {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
    "ALL, NONE, or names of variables",
)

# --- signals and mounts --------------------------------------------------------------------------------------------

SIGNALS = [
    "SIGHUP",
    "SIGINT",
    "SIGQUIT",
    "SIGUSR1",
    "SIGUSR2",
    "SIGALRM",
    "SIGTERM",
    "SIGCONT",
    "SIGTSTP",
    "SIGURG",
    "SIGXCPU",
    "SIGWINCH",
]
_SIGNAL_NUMBERS = {
    "1": "SIGHUP",
    "2": "SIGINT",
    "3": "SIGQUIT",
    "10": "SIGUSR1",
    "12": "SIGUSR2",
    "14": "SIGALRM",
    "15": "SIGTERM",
}


def signal_name(word: str) -> str:
    """``USR1``, ``sigusr1`` and ``10`` are SIGUSR1; raises ``Wrong`` for signals that a job cannot request."""
    name = _SIGNAL_NUMBERS.get(word, word.upper())
    name = name if name.startswith("SIG") else f"SIG{name}"
    if name not in SIGNALS:
        raise Wrong("bad_signal", f"{show(word)} is not a signal that a job can request", meant(name, SIGNALS))
    return name


AUDIENCES = ["script", "steps"]
_SIGNAL_KEYS = KeyTable(
    "signal",
    [
        Key("signal", text("a signal such as SIGUSR1"), "Signal to send.", "SIGUSR1", required=True),
        Key("before", SPAN, "How long before the end to send it.", "60s", default="60s"),
        Key(
            "only",
            choice(AUDIENCES),
            "Who gets it: only the script itself, or only its job steps.",
            "script",
            default="all that handle it",
        ),
    ],
)


def _read_signal(value: Any, path: Path, reading: Reading) -> EarlySignal:
    if type(value) is dict:
        found = _SIGNAL_KEYS.read(value, path, reading)
        name = signal_name(found.get("signal", "SIGUSR1"))
        return EarlySignal(name, found.get("before", 60_000), found.get("only", ""))
    if type(value) is not str or len(value) > 60:
        raise Wrong("wrong_type", f"this must be a signal, not {show(value)}", "write it like SIGUSR1@60s")
    audience, colon, rest = value.partition(":")
    if colon and audience not in AUDIENCES:
        raise Wrong("bad_signal", f"{show(audience)} does not say who gets the signal", meant(audience, AUDIENCES))
    name, at, before = (rest if colon else value).partition("@")
    before_ms = SPAN.read(before, path, reading) if at else 60_000
    return EarlySignal(signal_name(name.strip()), before_ms, audience if colon else "")


SIGNAL = ValueKind(
    _read_signal,
    {"anyOf": [{"type": "string", "minLength": 1}, _SIGNAL_KEYS.schema]},
    "a signal, and how long before the end to send it: SIGUSR1@60s",
    lambda early: f"{early.audience}{':' if early.audience else ''}{early.signal}@{write_span(early.before_ms)}",
)

PATH_TEXT = text("an absolute path", pattern=r"[/~][\s\S]*", hint="begin it with / or ~")
_MOUNT_KEYS = KeyTable(
    "mounts",
    [
        Key("source", PATH_TEXT, "Path on the host.", "/data", required=True),
        Key("target", PATH_TEXT, "Path in the container.", "/mnt/data", required=True),
        Key("read_only", FLAG, "Mount it read-only.", True, default="false"),
    ],
)


def _read_mount(value: Any, path: Path, reading: Reading) -> Mount:
    if type(value) is dict:
        found = _MOUNT_KEYS.read(value, path, reading)
        return Mount(found.get("source", ""), found.get("target", ""), found.get("read_only", False))
    parts = value.split(":") if type(value) is str else []
    if len(parts) not in (1, 2, 3) or (len(parts) == 3 and parts[2] not in ("ro", "rw")):
        raise Wrong("bad_mount", f"{show(value)} is not a mount", "write /from:/to, /from:/to:ro or {source, target}")
    source, target = parts[0], parts[1] if len(parts) > 1 else parts[0]
    return Mount(PATH_TEXT.read(source, path, reading), PATH_TEXT.read(target, path, reading), parts[2:] == ["ro"])


def _write_mount(mount: Mount) -> Any:
    written = {"source": mount.source, "target": mount.target}
    return written | {"read_only": True} if mount.read_only else written


MOUNT = ValueKind(
    _read_mount,
    {"anyOf": [{"type": "string", "minLength": 1}, _MOUNT_KEYS.schema]},
    "/from:/to, /from:/to:ro or {source, target, read_only}",
    _write_mount,
)
