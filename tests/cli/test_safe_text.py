"""Text of other users cannot control the terminal of the reader."""

from __future__ import annotations

import io
import os
import pty

import pytest

from corral.cli import render
from corral.cli.safe_text import LogText, harmless, one_line

TITLE = "\x1b]0;owned\x07"
CLEAR = "\x1b[2J\x1b[H"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, ünïcode 漢字 🎉\n\tand lines", "plain, ünïcode 漢字 🎉\n\tand lines"),
        (TITLE, "\\x1b]0;owned\\x07"),
        (CLEAR, "\\x1b[2J\\x1b[H"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("a\rb\bc\x7f", "a\\rb\\x08c\\x7f"),
        ("\x9b2J", "\\x9b2J"),
        ("abc\u202edef\u2066", "abc\\u202edef\\u2066"),
        ("one\u2028two", "one\\u2028two"),
    ],
)
def test_text_is_shown_and_not_carried_out(text: str, shown: str):
    assert harmless(text) == shown


def test_a_cell_stays_on_its_line():
    assert one_line("a\nroot  forged\tb") == "a\\nroot  forged\\tb"
    lines = render.table(("NAME", "QUEUE"), [(f"x\n{CLEAR}", "team")])
    assert len(lines) == 2
    assert "\x1b" not in "".join(lines)


@pytest.fixture
def coloured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")


@pytest.mark.usefixtures("coloured")
@pytest.mark.parametrize("say", [render.print_line, render.print_note], ids=["print_line", "print_note"])
def test_own_colours_are_kept_and_those_of_others_are_not(say, capfd: pytest.CaptureFixture[str]):
    say(f"{render.style('title', fg='red')} {TITLE}\x1b[31m{render.state_text('running')} \x1b[8mhidden")
    out = "".join(capfd.readouterr())
    assert "\x1b[31mtitle\x1b[0m" in out
    assert "\x1b[32mrunning\x1b[0m" in out
    assert "\\x1b[31m" in out
    assert "\\x1b]0;owned" in out
    assert "\x1b[8m" not in out
    assert "\x07" not in out


@pytest.mark.usefixtures("coloured")
def test_widths_do_not_count_colours(capfd: pytest.CaptureFixture[str]):
    assert render.width(render.style("four", fg="red")) == 4
    assert render.plain(render.style("four", fg="red")) == "four"
    for line in render.table(("A", "B"), [(render.style("xx", fg="red"), "1"), ("yyyy", "2")]):
        render.print_line(line)
    out = capfd.readouterr().out.splitlines()
    assert out[1] == "\x1b[31mxx\x1b[0m    1"


def test_json_has_no_control_characters_either(capfd: pytest.CaptureFixture[str]):
    render.write_json({"name": "a\x1b]0;x\x07\x9b2J\x7f\u202e"})
    out = capfd.readouterr().out
    assert '"a\\u001b]0;x\\u0007\\u009b2J\\u007f\\u202e"' in out


# ---- logs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"\x1b[1;32mok\x1b[0m\r 50%\x1b[K\n", b"\x1b[1;32mok\x1b[0m\r 50%\x1b[K\n"),
        (b"a\x1b]0;owned\x07b", b"ab"),
        (b"a\x1b]52;c;cm0gLXJm\x1b\\b", b"ab"),
        (b"a\x1b[2Jb\x1b[10;10Hc\x1b[6nd", b"abcd"),
        (b"a\x1bcb\x07c\x00", b"abc"),
        (b"a\x1bP1$r q\x1b\\b", b"ab"),
        ("ü\x9b2Jx".encode(), "ü2Jx".encode()),
        (b"\xff\xfe raw bytes", b"\xff\xfe raw bytes"),
    ],
)
def test_logs_keep_colours_and_nothing_else(written: bytes, shown: bytes):
    assert LogText().take(written) == shown
    bit_by_bit = LogText()
    assert b"".join(bit_by_bit.take(written[n : n + 1]) for n in range(len(written))) == shown


def test_a_sequence_that_never_ends_keeps_nothing_back_for_ever():
    text = LogText()
    for _ in range(100):
        text.take(b"\x1b]" + b"x" * 1_000)
    assert len(text._begun) < 10_000


def test_logs_are_filtered_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch):
    from corral.cli.jobs import logs

    main, other = pty.openpty()
    with os.fdopen(main, "rb", buffering=0) as seen, os.fdopen(other, "w") as terminal:
        monkeypatch.setattr("sys.stdout", terminal)
        logs.LogPrinter().write(b"a\x1b]0;owned\x07b\n")
        assert seen.read(100) == b"ab\r\n"
    pipe = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr("sys.stdout", pipe)
    logs.LogPrinter().write(b"a\x1b]0;owned\x07b\n")
    assert pipe.buffer.getvalue() == b"a\x1b]0;owned\x07b\n"
