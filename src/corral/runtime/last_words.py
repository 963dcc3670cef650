"""The last words of a program that has failed: the line of its output that most likely says why.

For people only. It is text that a job has written, so nothing is judged by it, and it is bounded and escaped.
"""

from __future__ import annotations

TEXT_MAX = 200
_SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE",
    9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", 14: "SIGALRM", 15: "SIGTERM",
    24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip
_TRACEBACK = b"Traceback (most recent call last):"
#: What shells put before the message that a command cannot be executed: "sh: 1: ", "bash: line 1: ".
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh", "/bin/sh", "/bin/bash")


def last_words(out: bytes, err: bytes) -> str:
    """Of a Python traceback the exception; otherwise the last line of standard error. A program that wrote nothing
    there may have said why on standard output, or something else: its last line is called so."""
    return _said(err) or _said(out, prefix="last output: ")


def _said(output: bytes, prefix: str = "") -> str:
    _, found, trace = output.rpartition(_TRACEBACK)
    if found:
        for line in trace.splitlines()[1:]:
            if line.strip() and not line[:1].isspace():
                return plain_text(line.decode("utf-8", "replace"))
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith(b"corral: ")]
    return plain_text(prefix + _without_shell(lines[-1].decode("utf-8", "replace"))) if lines else ""


def _without_shell(line: str) -> str:
    shell, _, rest = line.partition(": ")
    if shell not in _SHELLS or not rest:
        return line
    number, _, message = rest.partition(": ")
    return message if message and number.removeprefix("line ").isdecimal() else rest


def signal_text(number: int) -> str:
    return f"killed by {_SIGNALS.get(number, f'signal {number}')}"


def plain_text(text: str) -> str:
    """One line of limited length; control characters are escaped."""
    text = text.strip()[: TEXT_MAX + 1]
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)
    return shown if len(shown) <= TEXT_MAX else shown[: TEXT_MAX - 1] + "…"
