"""Output: aligned tables, durations, amounts, JSON, and colour on a terminal.

Knows texts and widths. Knows no command and no server. All output goes through here, so that text of others is made
``harmless`` in one place. Does not use rich, whose import alone would take half of the time that ``corral ps`` may
take.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import rich_click as click

from corral.cli.errors import Complaint, nearest
from corral.cli.safe_text import harmless, one_line
from corral.duration_text import span

T = TypeVar("T")

STATE_COLOURS = {
    "waiting": "yellow", "starting": "cyan", "running": "green", "broken": "red", "stopping": "magenta",
    "succeeded": "bright_black", "failed": "red", "cancelled": "bright_black", "healthy": "green",
    "suspect": "yellow", "draining": "yellow", "drained": "yellow", "cordoned": "yellow",
}  # fmt: skip
#: Stands for the escape of our own colours until they are written. It is random, so text of others cannot contain it.
_ESCAPE = "\x1b["
_MARK = f"\ue000{os.urandom(6).hex()}["
_COLOURS = re.compile(re.escape(_MARK) + r"[0-9;]*m")
_UNSEEN = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


# ---- lists ---------------------------------------------------------------------------------------------


class Field(Generic[T]):
    """A column: the text for an item. ``value``: the JSON value, if it is not the attribute of the same name.

    ``hidden``: the name of an earlier version, accepted and not listed.
    """

    def __init__(
        self,
        show: Callable[[T], str],
        title: str = "",
        *,
        right: bool = False,
        shrinks: bool = False,
        value: Callable[[T], Any] | None = None,
        hidden: bool = False,
    ) -> None:
        self.show = show
        self.title = title
        self.hidden = hidden
        self.right = right
        self.shrinks = shrinks
        self.value = value


def hours_field(gpu_ms: Callable[[T], int], title: str) -> Field[T]:
    """A column of GPU-hours."""
    return Field(
        lambda item: gpu_hours(gpu_ms(item)),
        title=title,
        right=True,
        value=lambda item: round(gpu_ms(item) / 3_600_000, 3),
    )


class Listing(Generic[T]):
    """A list, printed as a table or as JSON; ``--fields`` picks columns of both."""

    def __init__(self, fields: Mapping[str, Field[T]], usual: Sequence[str]) -> None:
        self.fields, self.usual = dict(fields), tuple(usual)
        self.listed = [name for name, field in self.fields.items() if not field.hidden]

    def options(self, function: Callable[..., Any]) -> Callable[..., Any]:
        names = ", ".join(self.listed)
        pick = click.option("--fields", metavar="A,B", help=f"Columns to show, of: {names}.", panel="Output")
        function = pick(function)
        return click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")(function)

    def picked(self, fields: str | None, usual: Sequence[str] = ()) -> tuple[str, ...]:
        if fields is None:
            return tuple(usual) or self.usual
        names = tuple(name.strip() for name in fields.split(",") if name.strip())
        for name in names:
            if name not in self.fields:
                raise Complaint(f"there is no field {name!r}", nearest(name, self.listed))
        if not names:
            raise Complaint("--fields names no field", f"there are: {', '.join(self.listed)}")
        return names

    def write(
        self, items: Sequence[T], fields: str | None, as_json: bool, *, usual: Sequence[str] = (), empty: str = ""
    ) -> None:
        names = self.picked(fields, usual)
        if as_json:
            write_json([self._pick(item, names) for item in items] if fields is not None else items)
        elif items:
            shown = self._that_fit(items, names) if fields is None else names
            for line in self.table(items, shown):
                print_line(line)
            if left_out := [name for name in names if name not in shown]:
                print_note(f"not shown, for lack of room: {', '.join(left_out)}; --fields picks columns", dim=True)
        elif empty:
            print_note(empty)

    def _that_fit(self, items: Sequence[T], names: Sequence[str]) -> Sequence[str]:
        """On a terminal, the columns that have room; those at the end are left out first, but not shrinking ones."""
        if not sys.stdout.isatty():
            return names
        kept = list(names)
        while len(kept) > 2 and any(width(line) > terminal_columns(sys.stdout) for line in self.table(items, kept)):
            firm = [name for name in kept[1:] if not self.fields[name].shrinks]
            kept.remove((firm or kept)[-1])
        return kept

    def table(self, items: Sequence[T], names: Sequence[str]) -> list[str]:
        columns = [self.fields[name] for name in names]
        titles = [column.title or name.upper() for name, column in zip(names, columns, strict=True)]
        return table(titles, [[column.show(item) for column in columns] for item in items], columns)

    def _pick(self, item: T, names: Sequence[str]) -> dict[str, Any]:
        return {name: self._value(item, name) for name in names}

    def _value(self, item: T, name: str) -> Any:
        field = self.fields[name]
        if field.value is not None:
            return field.value(item)
        return getattr(item, name) if hasattr(item, name) else plain(field.show(item))


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[Field[Any]] = ()) -> list[str]:
    """Lines of aligned columns. On a terminal, columns that may shrink are cut until a line fits."""
    columns = columns or [Field(str)] * len(titles)
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(title), *(width(row[n]) for row in rows), 0) for n, title in enumerate(titles)]
    if sys.stdout.isatty():
        over = sum(widths) + 2 * (len(widths) - 1) - terminal_columns(sys.stdout)
        for n in sorted((n for n, column in enumerate(columns) if column.shrinks), key=lambda n: -widths[n]):
            give = max(0, min(over, widths[n] - max(12, len(titles[n]))))
            widths[n], over = widths[n] - give, over - give
    head = _line([style(title, dim=True) for title in titles], widths, columns)
    return [head, *(_line(row, widths, columns) for row in rows)]


def terminal_columns(stream: Any) -> int:
    """As shutil.get_terminal_size; importing shutil takes longer than everything here."""
    stated = os.environ.get("COLUMNS", "")
    return int(stated) if stated.isdecimal() and stated != "0" else os.get_terminal_size(stream.fileno()).columns


def _line(cells: Sequence[str], widths: Sequence[int], columns: Sequence[Field[Any]]) -> str:
    shown = []
    for cell, room, column in zip(cells, widths, columns, strict=True):
        cell = cut(cell, room)
        blank = " " * (room - width(cell))
        shown.append(blank + cell if column.right else cell + blank)
    return "  ".join(shown).rstrip()


def plain(text: str) -> str:
    return _COLOURS.sub("", text)


def width(text: str) -> int:
    return len(plain(text))


def cut(text: str, room: int) -> str:
    if width(text) <= room:
        return text
    return plain(text)[: max(0, room - 1)] + "…"


def write_json(value: Any) -> None:
    """Indented; structs as objects."""
    import msgspec

    click.echo(_json(msgspec.json.format(msgspec.json.encode(value), indent=2)))


def write_json_line(value: Any) -> None:
    import msgspec

    click.echo(_json(msgspec.json.encode(value)))


def _json(document: bytes) -> str:
    """The same document, with control characters escaped."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode())


# ---- colour ---------------------------------------------------------------------------------------------


def has_colour(stream: Any = None) -> bool:
    """NO_COLOR turns colour off, FORCE_COLOR turns it on; otherwise a terminal has it."""
    if os.environ.get("NO_COLOR"):
        return False
    stream = sys.stdout if stream is None else stream
    return bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")


def style(text: str, *, stream: Any = None, **how: Any) -> str:
    """Text with colour, to be written with ``print_line`` or ``print_note``."""
    if not text or not has_colour(stream):
        return text
    before, _, after = click.style("|", **how).partition("|")
    return f"{before.replace(_ESCAPE, _MARK)}{text}{after.replace(_ESCAPE, _MARK)}"


def state_text(state: str, note: str = "") -> str:
    shown = style(state, fg=STATE_COLOURS.get(state))
    return f"{shown} {note}" if note else shown


def print_note(text: str = "", **how: Any) -> None:
    """Write a message for users to standard error, so that standard output has only results."""
    click.echo(_written(style(text, stream=sys.stderr, **how)), err=True, color=has_colour(sys.stderr) or None)


def write_note(text: str) -> None:
    """As ``print_note``, without an end of the line: it will be written over."""
    click.echo(_written(text), err=True, nl=False, color=has_colour(sys.stderr) or None)


def print_line(text: str = "") -> None:
    click.echo(_written(text), color=has_colour() or None)


def _written(text: str) -> str:
    return harmless(text).replace(_MARK, _ESCAPE)


# ---- times and amounts ---------------------------------------------------------------------------------------------


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def ago(ms: int | None, now: int | None = None) -> str:
    if ms is None:
        return ""
    return span((now_ms() if now is None else now) - ms)


def ahead(ms: int, now: int) -> str:
    """A time in the future: in 2h10m (16:20)."""
    if ms <= now:
        return "now"
    return f"in {span(ms - now)} ({clock(ms, now)})"


def clock(ms: int, now: int | None = None) -> str:
    """Local time; with the day if it is not today."""
    then, today = time.localtime(ms / 1000), time.localtime((now_ms() if now is None else now) / 1000)
    same_day = (then.tm_year, then.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same_day else "%Y-%m-%d %H:%M", then)


def gpu_hours(gpu_ms: int) -> str:
    return f"{gpu_ms / 3_600_000:,.1f}"


def count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def ranges(numbers: Iterable[int]) -> str:
    """0-3,5: consecutive numbers as ranges."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
