"""What is wrong with what was typed: what, why, and what to do. Never a traceback.

Knows how a complaint reads and which exit code it has; knows no command.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from rich_click import ClickException

FAULT = 1  # something went wrong that is not the user's doing
BAD_INPUT = 2
UNREACHABLE = 3
REFUSED = 4
NOT_FOUND = 5
WOULD_WAIT = 6  # a dry run: it is accepted, and cannot start now
UNHEALTHY = 7  # a check found something
TIMED_OUT = 124  # as timeout(1) says it
INTERRUPTED = 130  # as a shell says it of a program that SIGINT ended
CANCELLED = 143  # of a job: as a shell says it of a program that SIGTERM ended

#: What each exit code means; the reference page shows it.
EXIT_CODES = {
    0: "done; of `run` and `wait`: the job succeeded",
    FAULT: "something went wrong that is not your doing; of `run` and `wait`: the job failed without an exit code",
    BAD_INPUT: "what was typed, or a job file, is wrong",
    UNREACHABLE: "no server answers, or there are no credentials",
    REFUSED: "the server said no; the message says why",
    NOT_FOUND: "there is no such thing, or none that you may see",
    WOULD_WAIT: "`submit --dry-run`: the job would be accepted, and would have to wait",
    UNHEALTHY: "`doctor`, `db verify`, `config check`: something was found",
    TIMED_OUT: "`wait --timeout`, `up --detach`: it took too long",
    INTERRUPTED: "interrupted; of `run`: detached, and the job goes on",
    CANCELLED: "`run` and `wait`: the job was cancelled",
}


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
