"""A YAML mapping in which every value has its line number, for error messages.

Knows types of values (numbers, durations, weights), not what they describe. An unknown key is an error that names
the nearest known one: a misspelt key would otherwise silently mean its default.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from corral.core.intake.refusal import Refusal
from corral.sim.traces.text_rows import TraceError, nearest, opened
from corral.wire.durations import parse_span

_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")


class Section:
    """One mapping of the file. Each method reads one key or raises TraceError."""

    def __init__(self, file: str, name: str, node: Node, known: Sequence[str] = ()) -> None:
        """``known``: the allowed keys; empty: any."""
        self._file = file
        self._name = name
        self._line = node.start_mark.line + 1
        if not isinstance(node, MappingNode):
            raise TraceError(file, self._line, name, "must be a mapping: keys with values.")
        self._keys: dict[str, Node] = {}
        self._values: dict[str, Node] = {}
        for key, value in node.value:
            self._add(key, value, known)

    def _add(self, key: Node, value: Node, known: Sequence[str]) -> None:
        line = key.start_mark.line + 1
        if not isinstance(key, ScalarNode):
            raise TraceError(self._file, line, self._name, "has a key that is not a word or a number.")
        if known and key.value not in known:
            why = f"there is no such key.{nearest(key.value, known)}"
            raise TraceError(self._file, line, self._path(key.value), why)
        if key.value in self._keys:
            raise TraceError(self._file, line, self._path(key.value), "is given twice. Remove one.")
        self._keys[key.value] = key
        self._values[key.value] = value

    def __contains__(self, key: str) -> bool:
        return key in self._values

    @property
    def keys(self) -> list[str]:
        return list(self._values)

    def wrong(self, key: str, why: str) -> TraceError:
        line = self._keys[key].start_mark.line + 1 if key in self._keys else self._line
        return TraceError(self._file, line, self._path(key), why)

    def text(self, key: str) -> str:
        node = self._node(key)
        if not isinstance(node, ScalarNode) or not node.value:
            raise self.wrong(key, "must be a word or a text.")
        return str(node.value)

    def number(self, key: str, least: float = 0.0, most: float | None = None) -> float:
        return self._number(key, self._node(key), least, most)

    def whole(self, key: str, least: int = 0) -> int:
        found = self.number(key, least)
        if found != int(found):
            raise self.wrong(key, f"is {found}, but must be a whole number.")
        return int(found)

    def span_ms(self, key: str) -> int:
        node = self._node(key)
        text = node.value if isinstance(node, ScalarNode) else ""
        found = parse_span(text)
        if isinstance(found, Refusal):
            raise self.wrong(key, f"is {text!r}, but must be a duration such as 90s, 45m, 6h, 1d12h or 2w.")
        return found

    def section(self, key: str, known: Sequence[str] = ()) -> Section:
        return Section(self._file, self._path(key), self._node(key), known)

    def sections(self, key: str, known: Sequence[str]) -> list[Section]:
        name = self._path(key)
        return [Section(self._file, f"{name}[{n}]", node, known) for n, node in enumerate(self._list(key))]

    def numbers(self, key: str, count: int, least: float = 0.0, most: float | None = None) -> tuple[float, ...]:
        nodes = self._list(key)
        if len(nodes) != count:
            raise self.wrong(key, f"has {len(nodes)} numbers, but must have {count}.")
        return tuple(self._number(key, node, least, most) for node in nodes)

    def bounds(self, key: str, least: float = 0.0, most: float | None = None) -> tuple[float, float]:
        """One number, or two between which one is drawn."""
        if isinstance(self._node(key), ScalarNode):
            both = self.number(key, least, most)
            return both, both
        low, high = self.numbers(key, 2, least, most)
        if low > high:
            raise self.wrong(key, f"goes from {low} to {high}. Write the smaller number first.")
        return low, high

    def weights(self, key: str) -> tuple[tuple[str, float], ...]:
        """Values by weight; the weights need not add up to anything."""
        within = self.section(key)
        found = tuple((value, within.number(value)) for value in within.keys)
        if not sum(weight for _, weight in found) > 0:
            raise self.wrong(key, "needs at least one weight above 0.")
        return found

    def counted_weights(self, key: str) -> tuple[tuple[int, float], ...]:
        """The same for values that are whole numbers."""
        within = self.section(key)
        for value in within.keys:
            if not value.isdecimal():
                raise within.wrong(value, "must be a whole number, with its weight after the colon.")
        return tuple((int(value), weight) for value, weight in self.weights(key))

    def _number(self, key: str, node: Node, least: float, most: float | None) -> float:
        if not isinstance(node, ScalarNode) or node.tag not in _NUMBERS:
            raise self.wrong(key, "must be a number.")
        try:
            found = float(node.value.replace("_", ""))
        except ValueError:
            raise self.wrong(key, f"is {node.value}, but must be an ordinary number.") from None
        if not least <= found <= (float("inf") if most is None else most) or found == float("inf"):
            upper = "" if most is None else f" and at most {most}"
            raise self.wrong(key, f"is {node.value}, but must be at least {least}{upper}.")
        return found

    def _list(self, key: str) -> list[Node]:
        node = self._node(key)
        if not isinstance(node, SequenceNode):
            raise self.wrong(key, "must be a list.")
        return list(node.value)

    def _node(self, key: str) -> Node:
        if key not in self._values:
            raise self.wrong(key, "is missing.")
        return self._values[key]

    def _path(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key


def read_section(path: Path, known: Sequence[str]) -> Section:
    """The mapping in a YAML file."""
    with opened(path) as text:
        content = text.read()
    try:
        node = YAML(typ="safe", pure=True).compose(content)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise TraceError(str(path), line, "", f"is not YAML: {error.problem or error.context}.") from None
    except YAMLError as error:
        raise TraceError(str(path), 0, "", f"is not YAML: {error}.") from None
    if node is None:
        raise TraceError(str(path), 0, "", "is empty. It must describe a workload: see docs/traces.md.")
    return Section(str(path), "", node, known)
