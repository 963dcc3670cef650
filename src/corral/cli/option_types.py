"""Types of option values: a word of a list, a duration, a count by name.

Each parses one text, or raises ``Complaint`` with what to write instead. Light: parsers are imported when used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import rich_click as click

from corral.cli.errors import Complaint, nearest


class Word(click.ParamType[str]):
    """One of a few words; an unknown one gets the nearest as a hint."""

    name = "word"

    def __init__(self, *words: str) -> None:
        self.words: Sequence[str] = words

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        text = str(value)
        if text not in self.words:
            raise Complaint(f"{_option(param)} cannot be {text!r}", nearest(text, self.words))
        return text

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        return "|".join(self.words)


class Words(click.ParamType[tuple[str, ...]]):
    """Some of a few words, with commas between them. ``same``: what people type instead, in any case."""

    name = "words"

    def __init__(self, *words: str, same: Mapping[str, str] | None = None) -> None:
        self.words: Sequence[str] = words
        self._same = same or {}

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,  # noqa: ARG002
    ) -> tuple[str, ...]:
        texts = value if isinstance(value, tuple) else tuple(filter(None, str(value).split(",")))
        texts = tuple(self._same.get(text.lower(), text) for text in texts)
        for text in texts:
            if text not in self.words:
                raise Complaint(f"{_option(param)} cannot be {text!r}", nearest(text, self.words))
        return texts

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        return "A,B"


class Span(click.ParamType[int]):
    """A duration such as 30s, 10m, 2h, 7d or 1d12h, in milliseconds."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ARG002
        return value if isinstance(value, int) else span_ms(str(value), _option(param))


def span_ms(text: str, option: str) -> int:
    from corral.core.intake.refusal import Refusal
    from corral.wire.durations import parse_span

    found = parse_span(text)
    if isinstance(found, Refusal):
        raise Complaint(f"{option}: {found.why}", found.hint)
    return found


class Size(click.ParamType[int]):
    """A size such as 512MiB or 4GiB, in MiB; a number alone is MiB, as in Slurm."""

    name = "size"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ARG002
        from corral.core.intake.refusal import Refusal
        from corral.wire.sizes import parse_size

        text = str(value)
        found = parse_size(f"{text}MiB" if text.isascii() and text.isdecimal() else text)
        if isinstance(found, Refusal):
            raise Complaint(f"{_option(param)}: {found.why}", found.hint)
        if found < 1:
            raise Complaint(f"{_option(param)}: {text!r} is less than 1 MiB", "write it like 512MiB or 4GiB")
        return found


class Counted(click.ParamType[tuple[str, int]]):
    """``name=count``."""

    name = "name=count"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,
        ctx: click.Context | None,  # noqa: ARG002
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, mark, count = str(value).rpartition("=")
        if not mark or not name or not (count.isascii() and count.isdecimal()):
            raise Complaint(f"{_option(param)} cannot be {str(value)!r}", "write it like vision=16")
        return name, int(count)


def _option(param: click.Parameter | None) -> str:
    return max(param.opts, key=len) if param is not None else "the value"
