"""Why something that was asked for is not done: a value with a stable code, never an exception from the depths."""

from __future__ import annotations

from msgspec import Struct


class Refusal(Struct, frozen=True, gc=False):
    """``code`` is stable and for programs, ``why`` and ``hint`` are for people, ``field`` says where the fault lies."""

    code: str
    why: str
    hint: str = ""
    field: str = ""

    def __str__(self) -> str:
        return f"{self.why}. {self.hint}" if self.hint else self.why
