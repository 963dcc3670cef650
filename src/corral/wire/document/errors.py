"""Errors in a document: each with its path, a stable code, the reason and what to do.

Reading does not stop at the first error. It stops at a maximum number of them (``Reading.most``), so that a hostile
document costs little.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from corral.core.intake.refusal import Refusal

Path = tuple[str | int, ...]

FAULTS_MAX = 50
_SHOWN_CHARS = 40
_SHOWN_INTEGER = 10**18


class Fault(Struct, frozen=True):
    """``path`` leads to the value; ``code`` is stable and for programs; ``why`` and ``hint`` are for people."""

    path: Path
    code: str
    why: str
    hint: str = ""

    @property
    def field(self) -> str:
        return path_text(self.path)

    def __str__(self) -> str:
        where = f"{self.field}: " if self.path else ""
        return f"{where}{self.why}. {self.hint}" if self.hint else f"{where}{self.why}"


class Wrong(Exception):
    """One value is invalid. Becomes a fault at the path of the value."""

    def __init__(self, code: str, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.hint = hint

    @classmethod
    def of(cls, refusal: Refusal) -> Wrong:
        return cls(refusal.code, refusal.why, refusal.hint)


class Enough(Exception):
    """The maximum number of errors is reached."""


class Reading:
    """One document being read: the limits, the time that relative times count from, and the errors so far."""

    def __init__(self, limits: Any = None, now_ms: int = 0, most: int = FAULTS_MAX) -> None:
        self.limits = limits
        self.now_ms = now_ms
        self.most = most
        self.faults: list[Fault] = []

    def fault(self, path: Path, code: str, why: str, hint: str = "") -> None:
        self.faults.append(Fault(path, code, why, hint))
        if len(self.faults) >= self.most:
            raise Enough

    def wrong(self, path: Path, wrong: Wrong) -> None:
        self.fault(path, wrong.code, wrong.why, wrong.hint)


def path_text(path: Path) -> str:
    """``gangs[1].gpu.vram``"""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step[:_SHOWN_CHARS]}" if text else step[:_SHOWN_CHARS]
    return text


def show(value: object) -> str:
    """A value in a message: short, on one line, and cheap for any value."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if abs(value) < _SHOWN_INTEGER else "a number with too many digits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return ascii(value) if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]!a}..."
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list | tuple) else f"a {type(value).__name__}"


def nearest(word: object, known: list[str]) -> str:
    """The known name that was probably meant, or nothing."""
    import difflib  # only if there is an error

    if not isinstance(word, str) or len(word) > _SHOWN_CHARS:
        return ""
    begun = [name for name in known if len(word) > 2 and name.lower().startswith(word.lower())]
    found = begun or difflib.get_close_matches(word.lower().replace("-", "_"), known, n=1, cutoff=0.6)
    return found[0] if found else ""
