"""What a job takes along from where it is submitted: the working directory and variables of the environment.

Knows documents as mappings, not whether their values are valid. Pure: directory and environment are arguments. Light to
import, because every client needs it. Everything in a job is stored in the journal, so by default only variables are
exported that never contain a secret; ``export`` of the document says otherwise, as ``--export`` of sbatch does.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from corral.wire.environment.variables import NAMES

ALL, NOTHING = "ALL", ("NONE", "NIL")
#: Exported by default: where the programs of the caller are, and which Python environment is active.
USUAL = ("PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV")
#: Directories that every PATH ends with, because nodes may differ from the machine of the caller.
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")
ACTIVE = "active"  # as the value of ``venv``: the one that is active where the job is submitted

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|COOKIE|API_?KEY|(ACCESS|PRIVATE|_)_?KEY(_ID)?$|_AUTH$|_PAT$"
)
#: Of a login, a terminal or a session: without a meaning in a job.
_SESSION = frozenset((
    "_", "PWD", "OLDPWD", "SHLVL", "TMP", "TEMP", "TERM", "TERMINFO", "COLORTERM", "COLUMNS", "LINES", "LS_COLORS",
    "PS1", "PS2", "PROMPT_COMMAND", "HISTFILE", "HISTSIZE", "MAIL", "HOSTNAME", "DISPLAY", "WAYLAND_DISPLAY",
    "XAUTHORITY", "SESSION_MANAGER", "WINDOWID", "STY", "TMUX", "TMUX_PANE",
))  # fmt: skip
_OF_SESSIONS = ("SSH_", "GPG_", "DBUS_", "XDG_", "SLURM_", "CORRAL_", "VSCODE_", "BASH_FUNC_")
#: Paths of this machine, which an image has its own of.
_NOT_IN_IMAGES = frozenset((*USUAL, "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONHOME", "MANPATH", "CPATH", "LIBRARY_PATH"))


def with_directory(document: Mapping[str, Any], here: str) -> dict[str, Any]:
    """A job runs in the directory of its submission; a relative directory is relative to that."""
    directory = document.get("directory", here)
    if isinstance(directory, str) and directory and directory[0] not in "/~":
        directory = posixpath.normpath(posixpath.join(here, directory))
    return {**document, "directory": directory}


def with_environment(
    document: Mapping[str, Any], environ: Mapping[str, str], python: Mapping[str, str] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The document with the variables that ``export`` selects, below its own ``env``, and without ``export``; and what
    the user should know. ``python``: the Python environment to use, by the variable that names its directory."""
    words, own = _words(document.get("export")), document.get("env", {})
    if words is None or not isinstance(own, dict):
        return dict(document), []  # the parser says what is wrong with it
    notes: list[str] = []
    found = dict(_selected(words, environ, "image" in document, notes)) | own
    for name, folder in (python or {}).items():
        others = str(found.get("PATH", "")).split(":")
        found |= {name: folder, "PATH": _search_path([f"{folder}/bin", *others])}
    made = {key: value for key, value in document.items() if key != "export"}
    return made | ({"env": found} if found else {}), notes


def _words(stated: object) -> list[str] | None:
    """The parts of ``ALL,NAME,OTHER=value``, or of a list. A value that contains a comma needs the list."""
    if stated is None:
        return []
    words = stated.split(",") if isinstance(stated, str) else stated
    if not isinstance(words, list | tuple) or not words:
        return None
    texts = [each.strip() for each in words if isinstance(each, str)]
    if len(texts) != len(words):
        return None
    is_named = all(_NAME.fullmatch(each.partition("=")[0]) for each in texts)
    return texts if is_named else None


def _selected(
    words: list[str], environ: Mapping[str, str], has_image: bool, notes: list[str]
) -> Iterator[tuple[str, str]]:
    if not words and not has_image:
        yield from ((name, _value(name, environ)) for name in USUAL if environ.get(name) and _is_text(environ[name]))
    withheld = []
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            yield name, value
        elif name == ALL:
            for each in environ:
                if not _is_exported(each, environ[each], has_image):
                    continue
                if _SECRET.search(each.upper()) and each not in words:
                    withheld.append(each)
                else:
                    yield each, _value(each, environ)
        elif name not in NOTHING:
            if name in environ:
                yield name, _value(name, environ)
            else:
                notes.append(f"{name} is not set in your environment")
    if withheld:
        why = "they may be secrets, and a job is stored with its variables"
        how = "name them in export, or better: corral secret set"
        notes.append(f"not exported: {', '.join(sorted(withheld))}: {why} ({how})")


def _is_exported(name: str, value: str, has_image: bool) -> bool:
    is_ours = name in NAMES and name not in ("PATH", "PYTHONPATH", "OMP_NUM_THREADS")
    if is_ours or name in _SESSION or name.startswith(_OF_SESSIONS) or not _NAME.fullmatch(name):
        return False
    return _is_text(value) and not (has_image and name in _NOT_IN_IMAGES)


def _is_text(value: str) -> bool:
    return "\0" not in value and not any("\ud800" <= sign <= "\udfff" for sign in value)


def _value(name: str, environ: Mapping[str, str]) -> str:
    value = environ[name]
    return _search_path(value.split(":")) if name == "PATH" else value


def _search_path(folders: list[str]) -> str:
    """Absolute directories only: the job may run elsewhere."""
    return ":".join(dict.fromkeys([*(each for each in folders if each.startswith("/")), *SYSTEM_PATH]))


# --- Python environments ---------------------------------------------------------------------------------------------


def active_environment(environ: Mapping[str, str]) -> str:
    """The directory of the active virtual environment, or of the conda environment; empty: there is none."""
    return environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX") or ""
