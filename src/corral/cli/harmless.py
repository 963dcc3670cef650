"""Text of others on a terminal: what could move the cursor, hide or reorder what is shown, or command the terminal is
shown as an escape instead of being carried out.

Knows characters. Names, commands, labels, reasons and messages of servers all come from others, so ``render`` passes
everything through here. What tasks write is shown as they wrote it, with colours and progress bars; nothing else of it
commands a terminal. Where no terminal looks, logs are bytes and are left alone.
"""

from __future__ import annotations

import re

#: Control characters but line feed and tab, and what reorders text or ends lines in ways that are not seen.
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
    rb"|[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]"  # single ones, but back space, tab, line feed and carriage return
    rb"|\xc2[\x80-\x9f]"  # the same once more, in UTF-8
)
_BEGUN = re.compile(rb"(?:\x1b(?:\[[0-?]{0,64}[ -/]{0,8}|[\]PX^_][^\x07\x1b]{0,4096}\x1b?|[ -/]{0,8})?|\xc2)\Z")


def harmless(text: str) -> str:
    """The text as it may be shown over several lines."""
    return _HARMFUL.sub(_shown, text)


def one_line(text: str) -> str:
    """The text where it may not end its line: in a cell, behind a title."""
    for harmful, shown in _LINE_ENDS.items():
        text = text.replace(harmful, shown)
    return harmless(text)


def _shown(found: re.Match[str]) -> str:
    character = found[0]
    code = ord(character)
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


class LogText:
    """What a task writes, for a terminal, part by part. A sequence that is cut between two parts waits for its rest."""

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
