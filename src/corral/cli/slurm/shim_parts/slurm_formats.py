"""Columns as the commands of Slurm print them: ``-o "%.18i %j"``, ``-O JobID:10,Name`` and ``--format=JobID%20,State``.

Pure: from a format and values to lines. Knows widths, sides and separators, not what a field means.
"""

from __future__ import annotations

import re

from corral.cli.slurm.shim_parts.arguments import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_LETTER = re.compile(r"%(\.?)(\d*)([A-Za-z]|#[A-Za-z])")
_LONG = re.compile(r"([A-Za-z][\w/]*)(?::(\.?)(\d*)(.*))?")
_ACCOUNT = re.compile(r"([A-Za-z][\w/]*)(?:%(-?)(\d+))?")
LONG_WIDTH = 20
WIDTH_MAX = 4096


class SlurmColumn:
    """``text`` stands before it: what the format has between fields."""

    def __init__(self, field: str, width: int = 0, is_right: bool = False, text: str = "", after: str = "") -> None:
        self.field, self.is_right = field, is_right
        self.width = min(width, WIDTH_MAX)
        self.text, self.after = text, after

    def cell(self, value: str) -> str:
        if self.width:
            cut = value[: self.width]
            value = cut.rjust(self.width) if self.is_right else cut.ljust(self.width)
        return self.text + value + self.after


def letter_columns(text: str, known: Mapping[str, str]) -> list[SlurmColumn]:
    """``%[.][width]letter``. ``known``: from the letter to the field."""
    found, at = [], 0
    for match in _LETTER.finditer(text):
        field = known.get(match[3])
        if field is None:
            raise UsageError(f"error: Invalid job format specification: {match[3]}")
        found.append(SlurmColumn(field, int(match[2] or 0), bool(match[1]), text[at : match.start()]))
        at = match.end()
    if found and at < len(text):
        found[-1].after = text[at:]
    if not found:
        raise UsageError(f'error: "{text}" is not a format: write it like "%i %j %T"')
    return found


def long_columns(text: str, known: Iterable[str]) -> list[SlurmColumn]:
    """``Name[:[.][width][suffix]],...``; without a width 20, cut to it. ``known``: the fields by their own names."""
    by_name = {name.lower(): name for name in known}
    found = []
    for part in text.split(","):
        match = _LONG.fullmatch(part.strip())
        field = by_name.get(match[1].lower()) if match else None
        if match is None or field is None:
            raise UsageError(f"error: Invalid job format specification: {part}")
        suffix = match[4] or ""
        width = int(match[3]) if match[3] else 0 if suffix else LONG_WIDTH
        found.append(SlurmColumn(field, width, bool(match[2]), after=suffix))
    return found


def account_columns(text: str, known: Mapping[str, str], error: str) -> list[SlurmColumn]:
    """``Name[%[-]width],...`` of sacct and sacctmgr: right unless the width is negative. ``known``: from the name in
    small letters to the title and usual width, as ``JobID:12``."""
    found = []
    for part in text.split(","):
        if not part.strip():
            continue
        match = _ACCOUNT.fullmatch(part.strip())
        name = "" if match is None else match[1].lower()
        full = name if name in known else next((each for each in known if name and each.startswith(name)), "")
        if match is None or not full:
            raise UsageError(error.format(part.strip()))
        title, _, width = known[full].partition(":")
        found.append(SlurmColumn(title, int(match[3] or width or 10), not match[2]))
    return found


def print_rows(
    columns: list[SlurmColumn],
    rows: Iterable[Callable[[str], str]],
    titles: Mapping[str, str] | None,
    say: Callable[[str], None] = print,
) -> None:
    """``titles``: None: no header. Each row answers with the value of a field."""
    if titles is not None:
        say("".join(column.cell(titles.get(column.field, column.field)) for column in columns))
    for row in rows:
        say("".join(column.cell(row(column.field)) for column in columns))


def print_account_rows(
    columns: list[SlurmColumn],
    rows: Iterable[Callable[[str], str]],
    *,
    has_header: bool,
    parsable: str,
    delimiter: str = "|",
) -> None:
    """``parsable``: "": a table; "p": fields with the delimiter after each; "P": between them."""
    if parsable:
        end = delimiter if parsable == "p" else ""
        if has_header:
            print(delimiter.join(column.field for column in columns) + end)
        for row in rows:
            print(delimiter.join(row(column.field) for column in columns) + end)
        return
    if has_header:
        print(" ".join(column.cell(column.field) for column in columns) + " ")
        print(" ".join("-" * column.width for column in columns) + " ")
    for row in rows:
        print(" ".join(column.cell(_marked(row(column.field), column.width)) for column in columns) + " ")


def _marked(value: str, width: int) -> str:
    """sacct marks what it cuts."""
    return value if len(value) <= width else value[: max(0, width - 1)] + "+"


def clock(seconds: float) -> str:
    """A duration as squeue shows it: 1:02, 1:02:03, 2-03:04:05."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{left:02}"
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def long_clock(seconds: float) -> str:
    """As sacct and scontrol show it: 00:01:02, 2-03:04:05."""
    whole = max(0, int(seconds))
    days, rest = divmod(whole, 86400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def moment(ms: int | None, none: str = "Unknown") -> str:
    """In the time zone of this machine, as Slurm shows it."""
    if not ms:
        return none
    import time

    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(ms / 1000))
