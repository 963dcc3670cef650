"""Tables of keys of a mapping. Reader, hints, JSON Schema and reference page all come from them.

A table knows names and kinds; the module that defines the table knows what the values mean together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from corral.wire.document.errors import Path, Reading, Wrong, nearest, show
from corral.wire.document.kinds import Schema, ValueKind

_LISTED = 12  # most keys that a message lists


class Key(Struct, frozen=True):
    """One key of a document. ``into`` is the field of the struct that gets the value, if no more is needed.

    ``default`` is the default as the reference page shows it; ``example`` is a value of JSON.
    """

    name: str
    kind: ValueKind
    help: str
    example: Any
    default: str = ""
    into: str = ""
    required: bool = False


class KeyTable:
    """Keys in the order of the reference. ``elsewhere``: keys of other tools, with a hint for each.

    ``page`` is the page of the documentation that has them all.
    """

    def __init__(
        self, name: str, keys: Iterable[Key], elsewhere: Mapping[str, str] | None = None, page: str = ""
    ) -> None:
        self.name = name
        self.page = page
        self.keys = tuple(keys)
        self.by_name = {key.name: key for key in self.keys}
        self.required = tuple(key for key in self.keys if key.required)
        self.readers = {key.name: key.kind.read for key in self.keys}
        self.elsewhere = elsewhere or {}

    def fields(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """The values that were read, by the field of the struct that gets each."""
        return {key.into: found[key.name] for key in self.keys if key.into and key.name in found}

    def read(self, document: Any, path: Path, reading: Reading) -> dict[str, Any]:
        """The values by key, as far as they are valid; everything else became a fault."""
        if type(document) is not dict:
            known = [key.name for key in self.keys]
            keys = ", ".join(known[:4] if "command" not in known else ["command", "gpus", "time_limit"])
            raise Wrong("wrong_type", f"this must be a mapping, not {show(document)}", f"with keys such as {keys}")
        readers, found = self.readers, {}
        for name, value in document.items():
            reader = readers.get(name)
            if reader is None:
                self._unknown(name, path, reading)
                continue
            try:
                found[name] = reader(value, (*path, name), reading)
            except Wrong as wrong:
                self._wrong((*path, name), value, wrong, reading)
        for key in self.required:
            if key.name not in document:
                reading.fault((*path, key.name), "missing", f"{key.name} is missing", key.help)
        return found

    def _wrong(self, path: Path, value: Any, wrong: Wrong, reading: Reading) -> None:
        if value is None:
            reading.fault(path, "empty", "there is no value", "give a value or remove the key")
        else:
            reading.wrong(path, wrong)

    def _unknown(self, name: object, path: Path, reading: Reading) -> None:
        word = name if isinstance(name, str) else show(name)
        known = [key.name for key in self.keys]
        lower = word[:60].lower().replace("-", "_")
        if lower in self.elsewhere:
            hint = self.elsewhere[lower]
        elif found := nearest(word, known):
            hint = f"did you mean {found}?"
        elif len(known) > _LISTED and self.page:
            hint = f"{self.page} lists the keys"
        else:
            hint = f"known keys: {', '.join(known)}"
        reading.fault((*path, word), "unknown_key", f"there is no key {show(name)} here", hint)

    @property
    def schema(self) -> Schema:
        """The JSON Schema (2020-12) of a mapping with these keys."""
        schema: Schema = {
            "type": "object",
            "properties": {key.name: _property(key) for key in self.keys},
            "additionalProperties": False,
        }
        if required := [key.name for key in self.required]:
            schema["required"] = required
        return schema


def _property(key: Key) -> Schema:
    return {**key.kind.schema, "description": key.help, "examples": [key.example]}


def table_kind(table: KeyTable, says: str, shape: Any = None, write: Any = None) -> ValueKind:
    """A nested mapping with its own table of keys; ``shape`` makes the struct from the values."""

    def read(value: Any, path: Path, reading: Reading) -> Any:
        before = len(reading.faults)
        found = table.read(value, path, reading)
        if shape is None or len(reading.faults) > before:
            return found
        return shape(found)

    return ValueKind(read, table.schema, says, write) if write else ValueKind(read, table.schema, says)


def struct_kind(table: KeyTable, says: str, struct: type[Struct]) -> ValueKind:
    """A nested mapping whose values are fields of a struct."""
    return table_kind(table, says, lambda found: struct(**table.fields(found)))
