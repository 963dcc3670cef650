"""Command lines of Corral in pages: where they are, and what the real command line says about each.

Knows how pages mark what users type, and parses it with the commands themselves; runs nothing.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

import click
from click.exceptions import Exit, NoArgsIsHelpError

from corral.cli.main import corral

_FENCE = re.compile(r"^(?P<mark>```+)(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=mark)[ \t]*$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_INDENTED = re.compile(r"^    (\S.*)$", re.MULTILINE)
_COMMAND = re.compile(r"(?:^|[\s/(])corral ([a-z][a-z-]*(?=\s|$)[^#|>;()`]*)")
_SHELL = {"", "sh", "bash", "console"}
_NOT_THE_PROGRAM = ("podman build", "useradd")  # there it is a name
#: What a page leaves out: ``corral why``, ``--gpus``, or an argument that is not there.
_SHORTENED = (click.MissingParameter, click.BadOptionUsage, NoArgsIsHelpError)


@dataclass(frozen=True)
class Command:
    """``words``: those after ``corral``. ``is_whole``: it is to be typed as it is, and not just mentioned in a text."""

    words: tuple[str, ...]
    is_whole: bool

    def __str__(self) -> str:
        return " ".join(("corral", *self.words))


def commands_in(page: str) -> list[Command]:
    """Every command line in code of a page. In a usage line, [OPTIONS] is left out."""
    blocks = [found["code"] for found in _FENCE.finditer(page) if found["language"] in _SHELL]
    prose = _FENCE.sub("", page)
    typed = [*blocks, *_INDENTED.findall(prose)]
    found = [Command(words, True) for text in typed for words in _commands(text)]
    return found + [Command(words, False) for text in _SPAN.findall(prose) for words in _commands(text)]


def _commands(text: str) -> list[tuple[str, ...]]:
    lines = text.replace("\\\n", " ").splitlines()
    typed = [line for line in lines if not line.lstrip().startswith(_NOT_THE_PROGRAM)]
    return [_words(command) for line in typed for command in _COMMAND.findall(line)]


def _words(command: str) -> tuple[str, ...]:
    words = shlex.split(command.replace("'", " "))
    return tuple(word for word in words if word not in {"[OPTIONS]", "...", "…"})


def fault_of(command: Command) -> str:
    """What the command line says is wrong with it; empty: nothing."""
    try:
        _parse(list(command.words))
    except _SHORTENED as short:
        return short.format_message() if command.is_whole else ""
    except click.ClickException as wrong:
        return wrong.format_message()
    except Exit:
        return ""  # --help and --version
    return ""


def _parse(words: list[str]) -> None:
    group: click.Command | None = corral
    context = corral.make_context("corral", words)
    while isinstance(group, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, group, rest = group.resolve_command(context, rest)
        if group is not None:
            context = group.make_context(name, rest, parent=context)
