"""What a local backend needs for orders with an image, on a machine with a container runtime.

Defines only the interface.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from corral.core.work import Work
from corral.runtime.base import TaskOrder


class Containers(Protocol):
    def open(self, data: str) -> None:
        """Start, for the installation of this name."""

    def keep_clean(self, is_live: Callable[[str], bool]) -> None:
        """From now on, containers of tasks that are not live may be removed."""

    def close(self) -> None: ...

    def refusal(self, order: TaskOrder) -> str:
        """Why it can never run. Empty: it can."""

    def cannot_run(self, work: Work) -> str:
        """The same for work without an order; also when no container runtime was found. Never waits."""

    def unenforced(self, order: TaskOrder) -> list[str]: ...

    def container_request(self, order: TaskOrder) -> dict[str, Any] | None:
        """The request for its supervisor, in plain values. None: there is no container runtime now."""

    def runtime(self) -> str:
        """The container runtime, such as `podman 5.0.0, rootless`. Empty: none is known. Never waits."""

    def private(self) -> list[str]:
        """Paths that no task with this process' own account may reach: with the socket of the runtime it could run
        anything, and with its files read the containers of others."""

    def end(self, name: str) -> None:
        """Remove all that is left of a task whose supervisor is gone. Raises OSError if that fails now."""
