"""What is wrong with what was typed: what, why, and what to do. Never a traceback.

Knows how a complaint reads and which exit code it has; knows no command.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from rich_click import ClickException

BAD_INPUT = 2
INTERRUPTED = 130  # as a shell says it of a program that SIGINT ended


class Complaint(ClickException):
    """Ends the program. ``hint`` says what to do about it."""

    def __init__(self, what: str, hint: str = "", exit_code: int = BAD_INPUT) -> None:
        super().__init__(what)
        self.hint, self.code = hint, exit_code


def unknown(kind: str, word: str, known: Iterable[str]) -> Complaint:
    """There is no such word; the nearest that there is, or all of them."""
    return Complaint(f"there is no {kind} {word!r}", nearest(word, known))


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that was probably meant, or all of them, as a hint."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(names)}"
