"""Kinds of values: how each is read, written, described and put into a JSON Schema. One kind serves many keys.

A reader takes a value of JSON and returns the internal value, or raises ``Wrong``; a writer is its inverse.
Limits are given by name and looked up in the reading, so that a server can have its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from corral.core.intake.refusal import Refusal
from corral.duration_text import write_span
from corral.wire.document.errors import Path, Reading, Wrong, nearest, show
from corral.wire.durations import parse_span
from corral.wire.sizes import parse_size, write_size

Read = Callable[[Any, Path, Reading], Any]
Schema = dict[str, Any]

NUMBER_MAX = 1 << 53  # exact in every JSON library
SPAN_PATTERN = r"^\s*(0|(\d+(\.\d+)?\s*(ms|[wdhmsWDHMS])\s*)+)$"
SIZE_PATTERN = r"^\s*(0|\d+(\.\d+)?\s*([KMGTkmgt]i?[Bb]|[KMGTkmgt]i|[Bb]))\s*$"


def _same(value: Any) -> Any:
    return value


class ValueKind(Struct, frozen=True):
    """``says`` completes "must be": a duration such as 45m."""

    read: Read
    schema: Schema
    says: str
    write: Callable[[Any], Any] = _same


def text(
    says: str,
    *,
    most: str = "text_chars",
    pattern: str = "",
    hint: str = "",
    words: Sequence[str] = (),
    empty: bool = False,
) -> ValueKind:
    """Text without NUL that is valid Unicode; ``most`` names the limit of its length."""
    wanted = re.compile(pattern) if pattern else None

    def read(value: Any, _path: Path, reading: Reading) -> str:
        if type(value) is not str:
            raise Wrong("wrong_type", f"this must be {says}, not {show(value)}", _quoted(value))
        if not value and not empty:
            raise Wrong("empty", f"this must be {says}; it is empty", "give a value or remove the key")
        if len(value) > getattr(reading.limits, most):
            raise Wrong("too_long", f"{len(value)} characters, at most {getattr(reading.limits, most)} are allowed")
        if wanted is not None and wanted.fullmatch(value) is None:
            raise Wrong("bad_text", f"{show(value)} is not {says}", hint)
        if not value.isascii() or "\0" in value:
            check_characters(value)
        return value

    schema: Schema = {"type": "string"}
    if not empty:
        schema["minLength"] = 1
    if pattern:
        schema["pattern"] = f"^(?:{pattern})$"
    if words:
        schema["examples"] = list(words)
    return ValueKind(read, schema, says)


def _quoted(value: object) -> str:
    return f'put it in quotes: "{value}"' if isinstance(value, int | float) and abs(value) < NUMBER_MAX else ""


def check_characters(value: str) -> None:
    if "\0" in value:
        raise Wrong("bad_text", "it contains a NUL character", "it cannot be passed to a program")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Wrong("bad_text", "it contains half of a surrogate pair, which is not a character") from None


def number(says: str, least: int, most: int | str = NUMBER_MAX) -> ValueKind:
    """A whole number from ``least`` to ``most`` (a number, or the name of a limit)."""

    def read(value: Any, _path: Path, reading: Reading) -> int:
        if type(value) is not int:
            value = _whole(value, says)
        highest = most if isinstance(most, int) else getattr(reading.limits, most)
        if not least <= value <= highest:
            raise Wrong("out_of_range", f"{show(value)} is not between {least} and {highest}", f"give {says}")
        return int(value)

    schema: Schema = {"type": "integer", "minimum": least}
    if isinstance(most, int):
        schema["maximum"] = most
    return ValueKind(read, schema, says)


def _whole(value: object, says: str) -> int:
    if type(value) is float and value.is_integer() and abs(value) <= NUMBER_MAX:
        return int(value)
    hint = f"remove the quotes: {value}" if isinstance(value, str) and re.fullmatch(r"-?\d{1,15}", value) else ""
    raise Wrong("wrong_type", f"this must be {says}, not {show(value)}", hint)


def _read_flag(value: Any, _path: Path, _reading: Reading) -> bool:
    if type(value) is not bool:
        hint = "YAML 1.2 has no yes, no, on and off: write true or false" if isinstance(value, str) else ""
        raise Wrong("wrong_type", f"this must be true or false, not {show(value)}", hint)
    return value


FLAG = ValueKind(_read_flag, {"type": "boolean"}, "true or false")


def choice(words: Sequence[str], says: str = "") -> ValueKind:
    known = list(words)
    says = says or f"one of {', '.join(known)}"

    def read(value: Any, _path: Path, _reading: Reading) -> str:
        if value.__class__ is not str or value not in known:
            raise Wrong("bad_choice", f"{show(value)} is not {says}", meant(value, known))
        return str(value)

    return ValueKind(read, {"enum": known}, says)


def meant(word: object, known: list[str]) -> str:
    found = nearest(word, known)
    return f"did you mean {found}?" if found else f"allowed: {', '.join(known)}"


def spelled(
    says: str,
    parse: Callable[[str], int | Refusal],
    write: Callable[[int], str],
    pattern: str,
    least: int = 0,
) -> ValueKind:
    """An amount that is written with a unit. Numbers without one are refused by the grammar, with its hint."""
    known = lru_cache(maxsize=1024)(parse)  # users write the same few values repeatedly

    def read(value: Any, _path: Path, _reading: Reading) -> int:
        if type(value) is not str:
            if type(value) not in (int, float) or not 0 <= value < NUMBER_MAX:
                raise Wrong("wrong_type", f"this must be {says}, not {show(value)}")
            value = repr(value)
        elif len(value) > 60:
            raise Wrong("too_long", f"{show(value)} is not {says}")
        found = known(value)
        if isinstance(found, Refusal):
            raise Wrong.of(found)
        if found < least:
            raise Wrong("out_of_range", f"{show(value)} is too small", f"give {says}, more than 0")
        return found

    return ValueKind(read, {"type": "string", "pattern": pattern}, says, write)


SPAN = spelled("a duration such as 90s, 45m or 1d12h", parse_span, write_span, SPAN_PATTERN)
SPAN_OVER_ZERO = spelled("a duration such as 90s, 45m or 1d12h", parse_span, write_span, SPAN_PATTERN, 1)
SIZE = spelled("a size such as 512MiB, 64GiB or 40GB", parse_size, write_size, SIZE_PATTERN)
SIZE_OVER_ZERO = spelled("a size such as 512MiB, 64GiB or 40GB", parse_size, write_size, SIZE_PATTERN, 1)


def listing(of: ValueKind, says: str, most: str, *, lone: bool = False, least: int = 0) -> ValueKind:
    """A list as a tuple. ``lone``: one value may be given without brackets."""

    def read(value: Any, path: Path, reading: Reading) -> tuple[Any, ...]:
        if type(value) is not list:
            if not lone or value is None:
                raise Wrong("wrong_type", f"this must be {says}, not {show(value)}", "write it as [a, b]")
            return (of.read(value, path, reading),)
        bounded(value, getattr(reading.limits, most), least)
        found = []
        for n, each in enumerate(value):
            try:
                found.append(of.read(each, (*path, n), reading))
            except Wrong as wrong:
                reading.wrong((*path, n), wrong)
        return tuple(found)

    schema: Schema = {"type": "array", "items": of.schema}
    if least:
        schema["minItems"] = least
    if lone:
        schema = {"anyOf": [of.schema, schema]}
    return ValueKind(read, schema, says, lambda values: [of.write(each) for each in values])


def pairs(key: ValueKind, of: ValueKind, says: str, most: str, bytes_most: str = "") -> ValueKind:
    """A mapping with names that the user chooses, as a tuple of pairs in the order they were written."""

    def read(value: Any, path: Path, reading: Reading) -> tuple[tuple[str, Any], ...]:
        if type(value) is not dict:
            raise Wrong("wrong_type", f"this must be {says}, not {show(value)}")
        bounded(value, getattr(reading.limits, most))
        found = []
        for name, each in value.items():
            here = (*path, str(name) if isinstance(name, str) else show(name))
            try:
                found.append((key.read(name, here, reading), of.read(each, here, reading)))
            except Wrong as wrong:
                reading.wrong(here, wrong)
        if bytes_most:
            _weigh(found, getattr(reading.limits, bytes_most))
        return tuple(found)

    schema: Schema = {"type": "object", "additionalProperties": of.schema}
    if "pattern" in key.schema:
        schema["propertyNames"] = {"pattern": key.schema["pattern"]}
    return ValueKind(read, schema, says, lambda stated: {name: of.write(each) for name, each in stated})


def bounded(value: Mapping[Any, Any] | Sequence[Any], most: int, least: int = 0) -> None:
    if len(value) > most:
        raise Wrong("too_many", f"{len(value)} entries, at most {most} are allowed")
    if len(value) < least:
        raise Wrong("too_few", f"{len(value)} entries, at least {least} are required")


def _weigh(found: Sequence[tuple[str, Any]], most: int) -> None:
    weight = sum(len(name) + len(each.encode()) + 2 for name, each in found)
    if weight > most:
        raise Wrong("too_long", f"{weight} bytes together, at most {most} are allowed", "put them into a file")
