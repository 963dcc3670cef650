"""YAML 1.2 as plain values of JSON, with the line and column of every key and value.

Only the types of JSON: no dates, no octal numbers, no yes and no; a number is written as in JSON, otherwise it is text
(``007``, ``1_000``, ``12:30``). Equal keys, tags and endless aliases are errors. Anchors and ``<<`` work; their
expansion is limited. The YAML library is imported when a text is read.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from msgspec import Struct

from corral.wire.document.errors import Fault, Path, show

DEPTH_MAX = 40
VALUES_MAX = 200_000

_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_CONSTANTS: dict[str, Any] = {"": None, "~": None, "null": None, "Null": None, "NULL": None} | {
    text: value for value, word in ((True, "true"), (False, "false")) for text in (word, word.title(), word.upper())
}
_CORE = "tag:yaml.org,2002:"
_PLAIN = {f"{_CORE}{name}" for name in ("null", "bool", "int", "float", "timestamp", "merge", "value")}


class TextPlace(Struct, frozen=True):
    """A position in a text; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class PlacedFault(Struct, frozen=True):
    """A fault with its position in a file."""

    place: TextPlace
    fault: Fault

    def __str__(self) -> str:
        return f"{self.place}: {self.fault}"


class Marked(Struct):
    """One document: its value, and the positions of its keys and values."""

    file: str
    value: Any = None
    keys: dict[Path, tuple[int, int]] = {}
    values: dict[Path, tuple[int, int]] = {}
    faults: list[PlacedFault] = []

    def place(self, path: Path, *, of_key: bool = False) -> TextPlace:
        """The position of the value (or the key); of a missing one, where it would belong."""
        if of_key and path in self.keys:
            return TextPlace(self.file, *self.keys[path])
        while path and path not in self.values:
            path = path[:-1]
        return TextPlace(self.file, *self.values.get(path, (1, 1)))

    def placed(self, fault: Fault) -> PlacedFault:
        return PlacedFault(self.place(fault.path, of_key=fault.code in ("unknown_key", "missing", "conflict")), fault)


def read_yaml(text: str, file: str, bytes_max: int, documents_max: int = 1) -> list[Marked]:
    """Every document of the text, each with its faults. Parsing ends with the first that is not YAML."""
    if len(text) > bytes_max or len(text.encode(errors="replace")) > bytes_max:
        return [_unreadable(file, "too_long", f"the file has more than {bytes_max} bytes")]
    from ruamel.yaml import YAML  # only when a text is read
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    loader = YAML(typ="safe", pure=True)
    loader.max_depth = DEPTH_MAX
    loader.composer.warn_double_anchors = False
    found: list[Marked] = []
    try:
        for root in loader.compose_all(text):
            if len(found) >= documents_max:
                found.append(_unreadable(file, "too_many", f"more than {documents_max} documents in one file"))
                break
            found.append(_Unfolding(file).marked(root))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = " ".join(str(error.problem or error.context or "this is not YAML").split())[:200]
        found.append(_unreadable(file, "bad_yaml", _in_words(why), _place(mark)))
    except YAMLError as error:
        found.append(_unreadable(file, "bad_yaml", _in_words(" ".join(str(error).split())[:200])))
    except RecursionError:
        found.append(_unreadable(file, "too_deep", "the document is nested too deeply"))
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        found.append(_unreadable(file, "bad_yaml", f"this is not YAML ({type(error).__name__})"))
    return found


_NO_TEXT = "this is not a text file"
#: What the parser says, and what it means for people who do not know its terms.
_MEANT = {
    "cannot start any token": "a tab or another character that YAML does not allow here: indent with spaces",
    "'<stream end>'": "the file ends in the middle of a value, for example of a list or a quoted text",
    "special characters are not allowed": _NO_TEXT,
    "mapping values are not allowed here": "a colon is not allowed here: put the text in quotes",
    "could not find expected ':'": "a key without a colon",
}


def _in_words(why: str) -> str:
    return next((words for phrase, words in _MEANT.items() if phrase in why), why)


def _unreadable(file: str, code: str, why: str, place: tuple[int, int] = (1, 1)) -> Marked:
    hint = "check indentation, quotes and colons here" if code == "bad_yaml" else ""
    if why == _NO_TEXT:
        hint = "name a job file or a script; to run a program write -- before it"
    fault = Fault((), code, why, hint)
    return Marked(file, None, {}, {(): place}, [PlacedFault(TextPlace(file, *place), fault)])


def _place(mark: Any) -> tuple[int, int]:
    return (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)


class _Ended(Exception):
    """The rest of this document cannot be read."""


class _Unfolding:
    """Turns nodes into values, and records their positions. Aliases are expanded each time they are used."""

    def __init__(self, file: str) -> None:
        self.marked_so_far = Marked(file, None, {}, {}, [])
        self.left = VALUES_MAX
        self.inside: list[int] = []  # the nodes around the current one
        self.borrowed = 0  # how many `<<` are around it: what they bring in has no position of its own

    def marked(self, root: Any) -> Marked:
        with suppress(_Ended):
            self.marked_so_far.value = self.value(root, ())
        return self.marked_so_far

    def fault(self, node: Any, path: Path, code: str, why: str, hint: str = "") -> None:
        place = TextPlace(self.marked_so_far.file, *_place(node.start_mark))
        self.marked_so_far.faults.append(PlacedFault(place, Fault(path, code, why, hint)))
        if len(self.marked_so_far.faults) >= 50:
            raise _Ended

    def value(self, node: Any, path: Path) -> Any:
        self.left -= 1
        if self.left < 0:
            self.fault(node, path, "too_long", f"aliases expand to more than {VALUES_MAX} values")
            raise _Ended
        if id(node) in self.inside:
            self.fault(node, path, "endless_alias", "an alias is inside its own anchor")
            raise _Ended
        if len(self.inside) > DEPTH_MAX:
            self.fault(node, path, "too_deep", "the document is nested too deeply")
            raise _Ended
        if not self.borrowed:
            self.marked_so_far.values[path] = _place(node.start_mark)
        self.inside.append(id(node))
        try:
            if isinstance(node.value, str):
                return self.scalar(node, path)
            tag = str(node.tag)
            if tag not in (f"{_CORE}map", f"{_CORE}seq"):
                self.fault(node, path, "tagged", f"the tag {show(tag)} is not supported", "remove it")
            if tag != f"{_CORE}seq" and (not node.value or isinstance(node.value[0], tuple)):
                return self.mapping(node, path)
            return [self.value(each, (*path, n)) for n, each in enumerate(node.value)]
        finally:
            self.inside.pop()

    def scalar(self, node: Any, path: Path) -> Any:
        text, tag = node.value, str(node.tag)
        if tag == f"{_CORE}str" or (node.style and tag in _PLAIN):
            return text
        if tag not in _PLAIN:
            self.fault(node, path, "tagged", f"the tag {show(tag)} is not supported", "remove it")
            return text
        return _plain(text)

    def mapping(self, node: Any, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        lines: dict[str, int] = {}
        merged: list[Any] = []
        for key, each in node.value:
            if not isinstance(key.value, str):
                self.fault(key, path, "bad_key", "a key must be a single word", "write it as key: value")
                continue
            name = key.value
            if str(key.tag) == f"{_CORE}merge":
                merged.append(each)
                continue
            here = (*path, name)
            if name in lines:
                why = f"the key {show(name)} occurs twice; first on line {lines[name]}"
                self.fault(key, here, "duplicate_key", why, "keep one of them")
                continue
            lines[name] = key.start_mark.line + 1
            if not self.borrowed:
                self.marked_so_far.keys[here] = _place(key.start_mark)
            found[name] = self.value(each, here)
        for each in merged:
            found = self.merge(each, path) | found
        return found

    def merge(self, node: Any, path: Path) -> dict[str, Any]:
        """What ``<<`` brings in; earlier mappings of a list take precedence."""
        self.borrowed += 1
        try:
            value = self.value(node, path)
        finally:
            self.borrowed -= 1
        several = value if isinstance(value, list) else [value]
        if not all(isinstance(each, dict) for each in several):
            self.fault(node, path, "bad_merge", "<< must have a mapping or a list of mappings")
            return {}
        found: dict[str, Any] = {}
        for each in several:
            found = each | found
        return found


def _plain(text: str) -> Any:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    match = _NUMBER.fullmatch(text)
    if match is None or len(text) > 300:
        return text
    return float(text) if match[1] or match[2] else int(text)
