"""What a local backend asks about orders with an image, where the machine has a container engine.

Knows only the questions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from corral.backends.base import TaskOrder
from corral.core.work import Work


class Containers(Protocol):
    def open(self, data: str) -> None:
        """Begin, for the installation of this name."""
        ...

    def keep_clean(self, is_live: Callable[[str], bool]) -> None:
        """From now on what it has of tasks that are not live may be removed."""
        ...

    def close(self) -> None: ...

    def refusal(self, order: TaskOrder) -> str:
        """Why it can never run; empty: it can."""
        ...

    def cannot_run(self, work: Work) -> str:
        """The same of work before there is an order for it; also when the engine was looked for in vain. At once."""
        ...

    def unenforced(self, order: TaskOrder) -> list[str]: ...

    def told(self, order: TaskOrder) -> dict[str, Any] | None:
        """What its supervisor is to know, in plain values; None: there is no engine now."""
        ...

    def end(self, name: str) -> None:
        """All that is left of the task of this name, whose supervisor is gone. OSError: it cannot be said now."""
        ...
