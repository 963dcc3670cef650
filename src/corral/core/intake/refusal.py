"""Refusals: why a command is not executed, as a value with a stable code, not an exception."""

from __future__ import annotations

from msgspec import Struct


class Refusal(Struct, frozen=True, gc=False):
    """``code`` is stable and for programs, ``why`` and ``hint`` are for people, ``field`` names the wrong field."""

    code: str
    why: str
    hint: str = ""
    field: str = ""

    def __str__(self) -> str:
        return f"{self.why}. {self.hint}" if self.hint else self.why
