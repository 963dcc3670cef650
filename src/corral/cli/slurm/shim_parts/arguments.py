"""Reads a command line as getopt_long does: short options together, long ones abbreviated, values with or without =.

Knows the syntax, not the options. The first word that is no option ends them, as the commands of Slurm want it.
"""

from __future__ import annotations

VALUE = "value"
FLAG = "flag"
MAYBE = "maybe"


class UsageError(Exception):
    """A wrong command line, in the words of Slurm."""


class OptionTable:
    """``options``: words like ``nodes/N``, by whether they take a value."""

    def __init__(self, values: str, flags: str = "", maybes: str = "") -> None:
        self.takes: dict[str, str] = {}
        self._short: dict[str, str] = {}
        for words, takes in ((values, VALUE), (flags, FLAG), (maybes, MAYBE)):
            for word in words.split():
                name, _, short = word.partition("/")
                self.takes[name] = takes
                if short:
                    self._short[short] = name

    def read(self, words: list[str], *, mixed: bool = False) -> tuple[list[tuple[str, str]], list[str]]:
        """The options in their order, and the rest. ``mixed``: options may come after other words."""
        found: list[tuple[str, str]] = []
        rest: list[str] = []
        left = list(words)
        while left:
            word = left.pop(0)
            if word == "--":
                return found, rest + left
            if word.startswith("--"):
                found.append(self._long(word[2:], left))
            elif word.startswith("-") and len(word) > 1:
                found += self._shorts(word[1:], left)
            elif mixed:
                rest.append(word)
            else:
                return found, [word, *left]
        return found, rest

    def _long(self, text: str, left: list[str]) -> tuple[str, str]:
        name, equals, value = text.partition("=")
        full = self.full_name(name)
        takes = self.takes[full]
        if takes == FLAG:
            if equals:
                raise UsageError(f"option '--{full}' doesn't allow an argument")
            return full, ""
        if equals or takes == MAYBE:
            return full, value
        if not left:
            raise UsageError(f"option '--{full}' requires an argument")
        return full, left.pop(0)

    def full_name(self, name: str) -> str:
        if name in self.takes:
            return name
        close = [each for each in self.takes if each.startswith(name)]
        if len(close) == 1:
            return close[0]
        if close:
            listed = " ".join(f"'--{each}'" for each in close)
            raise UsageError(f"option '--{name}' is ambiguous; possibilities: {listed}")
        raise UsageError(f"unrecognized option '--{name}'")

    def _shorts(self, letters: str, left: list[str]) -> list[tuple[str, str]]:
        found = []
        while letters:
            letter, letters = letters[0], letters[1:]
            name = self._short.get(letter)
            if name is None:
                raise UsageError(f"invalid option -- '{letter}'")
            if self.takes[name] == FLAG:
                found.append((name, ""))
                continue
            if self.takes[name] == MAYBE or letters:
                found.append((name, letters))
            elif left:
                found.append((name, left.pop(0)))
            else:
                raise UsageError(f"option requires an argument -- '{letter}'")
            return found
        return found
