"""Both output streams of a task, and the record of its end, as lines of the one log that Kubernetes keeps of it.

Lines of stdout are unchanged, so that `kubectl logs` shows them. A control character before a line marks stderr, or a
record; one at its end means that the task wrote no newline there. The decoder returns what the task has written byte
for byte, control characters included. Knows bytes only.
"""

from __future__ import annotations

_PLAIN = b"\x1c"
_RECORD = b"\x1d"
_STDERR = b"\x1e"
_OPEN = b"\x1f"
_MARKS = (_PLAIN, _RECORD, _STDERR)
_LINE_MAX = 8192


class LineEncoder:
    """One stream. A line that is not complete is kept until `flush`."""

    def __init__(self, is_stderr: bool) -> None:
        self._is_stderr = is_stderr
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        *lines, rest = (self._rest + data).split(b"\n")
        out = [self._line(line) for line in lines]
        while len(rest) > _LINE_MAX:
            out.append(self._part(rest[:_LINE_MAX]))
            rest = rest[_LINE_MAX:]
        self._rest = rest
        return b"".join(out)

    def flush(self) -> bytes:
        rest, self._rest = self._rest, b""
        return self._part(rest) if rest else b""

    def _line(self, line: bytes) -> bytes:
        if line.endswith(_OPEN):
            return self._part(line) + self._begin(b"") + b"\n"
        return self._begin(line) + line + b"\n"

    def _part(self, line: bytes) -> bytes:
        return self._begin(line) + line + _OPEN + b"\n"

    def _begin(self, line: bytes) -> bytes:
        if self._is_stderr:
            return _STDERR
        return _PLAIN if line.startswith(_MARKS) else b""


def record_line(record: bytes) -> bytes:
    """A record, which must not contain a newline."""
    return _RECORD + record + b"\n"


class LineDecoder:
    """The log of a container, taken apart again. ``record``: the last one that was read."""

    def __init__(self) -> None:
        self._rest = b""
        self.record = b""

    def feed(self, data: bytes) -> tuple[bytes, bytes]:
        """What is added to stdout and to stderr."""
        out: list[bytes] = []
        err: list[bytes] = []
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(_RECORD):
                self.record = line[1:]
                continue
            is_stderr = line.startswith(_STDERR)
            text = line[1:] if line.startswith(_MARKS) else line
            (err if is_stderr else out).append(text[:-1] if text.endswith(_OPEN) else text + b"\n")
        return b"".join(out), b"".join(err)

    def end(self) -> tuple[bytes, bytes]:
        """The log is over: a last line without a newline was cut off."""
        rest, self._rest = self._rest, b""
        return self.feed(rest + _OPEN + b"\n") if rest and not rest.startswith(_RECORD) else (b"", b"")
