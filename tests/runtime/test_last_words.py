"""What a failed program said last."""

from __future__ import annotations

import pytest

from corral.runtime.last_words import TEXT_MAX, last_words, plain_text

TRACEBACK = b"""warning: old
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    step()
ValueError: bad batch
 of two lines
"""


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (TRACEBACK, "ValueError: bad batch"),
        (TRACEBACK.replace(b"ValueError: bad batch\n of", b"KeyError: 7\n\nof") + b"cleaning up\n", "KeyError: 7"),
        (b"sh: 1: nosuchprog: not found\n", "nosuchprog: not found"),
        (b"bash: line 1: nosuchprog: command not found\n", "nosuchprog: command not found"),
        (b"cannot open config\n\n", "cannot open config"),
        (b"cannot open config\ncorral: the task has failed; its seat is held\n", "cannot open config"),
        (b"", ""),
    ],
)
def test_the_line_that_says_why(output: bytes, words: str) -> None:
    assert last_words(b"epoch 3\n", output) == (words or "last output: epoch 3")


def test_what_was_printed_is_not_called_an_error() -> None:
    assert last_words(b"epoch 3\n", b"") == "last output: epoch 3"
    assert last_words(TRACEBACK, b"") == "ValueError: bad batch"
    assert last_words(b"", b"") == ""


def test_it_is_bounded_and_controls_nothing() -> None:
    assert plain_text("\x1b[2J\x07 evil\u202e") == "\\x1b[2J\\x07 evil\\u202e"
    assert len(plain_text("\x00" * 10_000)) == TEXT_MAX
    assert "\n" not in last_words(b"", b"Traceback (most recent call last):\nE: a\rb\n")
