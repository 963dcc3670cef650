"""Answers as tables for notebooks. Knows fields and their units, not what they mean. Escaped, and of bounded size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from msgspec import Struct, structs

from corral.duration_text import write_span

ROWS_MAX = 100
_CELL_MAX = 200
_TIMES_FROM_MS = 10**11  # 1973: smaller numbers of milliseconds are durations


def html_of(answer: Struct) -> str:
    """A list of things as one table with a row for each; one thing as a table of its fields."""
    fields = _fields(answer)
    lists = [value for value in fields.values() if _is_rows(value)]
    if len(lists) == 1 and len(fields) <= 2:
        return rows_html(lists[0])
    rows = [
        f"<tr><th>{_title(name)}</th><td>{_cell(name, value)}</td></tr>"
        for name, value in fields.items()
        if _has(value)
    ]
    return f"<table>{''.join(rows)}</table>"


def rows_html(answers: Sequence[Struct], more: str = "") -> str:
    """A table with a row for each. Columns without any value are left out. ``more``: a line below it."""
    shown = [_fields(each) for each in answers[:ROWS_MAX]]
    names = [name for name in (shown[0] if shown else {}) if any(_has(row.get(name)) for row in shown)]
    head = "".join(f"<th>{_title(name)}</th>" for name in names)
    rows = "".join(f"<tr>{''.join(_td(name, row.get(name)) for name in names)}</tr>" for row in shown)
    if len(answers) > ROWS_MAX:
        more = f"{len(answers) - ROWS_MAX} more rows"
    below = f"<p>{escape(more)}</p>" if more else "" if answers else "<p>none</p>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>{below}"


def _td(name: str, value: Any) -> str:
    return f"<td>{_cell(name, value)}</td>"


def _fields(answer: Struct) -> dict[str, Any]:
    return {field.name: getattr(answer, field.name) for field in structs.fields(answer)}


def _is_rows(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(each, Struct) for each in value)


def _has(value: Any) -> bool:
    return value is not None and value not in ("", (), [], {}, False)


def _title(name: str) -> str:
    return escape(name.removesuffix("_ms").replace("_", " "))


def _cell(name: str, value: Any) -> str:
    if isinstance(value, Struct):
        return html_of(value)
    if isinstance(value, tuple | list) and value and _is_rows(value):
        return rows_html(value)
    return escape(_text(name, value))


def _text(name: str, value: Any) -> str:
    if not _has(value):
        return ""
    if name.endswith("_ms") and type(value) is int:
        return _when(value) if value >= _TIMES_FROM_MS else write_span(value)
    if isinstance(value, dict):
        return _joined(f"{key}={each}" for key, each in value.items())
    return _joined(map(str, value)) if isinstance(value, tuple | list) else str(value)[:_CELL_MAX]


def _joined(texts: Iterable[str]) -> str:
    whole = ", ".join(texts)
    return whole if len(whole) <= _CELL_MAX else f"{whole[:_CELL_MAX]}…"


def _when(at_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
