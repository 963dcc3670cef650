"""Untrusted text on a terminal: characters that could move the cursor, hide or reorder text, or control the terminal
are shown as escapes.

Knows characters. Names, commands, labels, reasons and messages of servers are written by others, so ``render`` passes
everything through here. Output of tasks keeps its colours and progress bars; other control sequences are removed.
Logs that do not go to a terminal are not changed.
"""

from __future__ import annotations

import re

#: Control characters except line feed and tab, and characters that reorder text or end lines invisibly.
_HARMFUL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufff9-\ufffb]"
)
_LINE_ENDS = {"\n": "\\n", "\t": "\\t"}
_NAMED = {"\r": "\\r"}

#: In logs: colours and "erase the rest of the line", as progress bars use it.
_KEPT = re.compile(rb"\x1b\[[0-9;:]{0,40}[mK]")
_SEQUENCE = re.compile(
    rb"\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]"  # control sequences
    rb"|\x1b[\]PX^_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)"  # titles, clipboards, links and other strings
    rb"|\x1b[ -/]{0,8}[0-~]"  # two characters
    rb"|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]"  # single characters, except backspace, tab, line feed and carriage return
    rb"|\xc2[\x80-\x9f]"  # the same, in UTF-8
)
_BEGUN = re.compile(rb"(?:\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]PX^_][^\x07\x1b]{0,4096}\x1b?|[ -/]{0,8})?|\xc2)\Z")


def harmless(text: str) -> str:
    """The text, safe to show on several lines."""
    return _HARMFUL.sub(_shown, text)


def one_line(text: str) -> str:
    """The text on one line: for a cell of a table, or after a title."""
    for harmful, shown in _LINE_ENDS.items():
        text = text.replace(harmful, shown)
    return harmless(text)


def _shown(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


class LogText:
    """Output of a task for a terminal, part by part. A sequence cut between two parts is completed by the next."""

    def __init__(self) -> None:
        self._begun = b""

    def take(self, data: bytes) -> bytes:
        data = self._begun + data
        begun = _BEGUN.search(data)
        cut = len(data) if begun is None else begun.start()
        self._begun = data[cut:]
        return _SEQUENCE.sub(_kept, data[:cut])


def _kept(found: re.Match[bytes]) -> bytes:
    return found[0] if _KEPT.fullmatch(found[0]) else b""
