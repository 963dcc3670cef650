"""The ranks that save together: what one tells the others, over process groups that training does not use.

Imports torch. Saving over the group of the training loop would mix its collectives with those of the loop, and both
would wait for ever; so there are two groups of gloo, one for the thread of the loop and one for the thread that writes.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist


class RankGroup:
    """One channel between the ranks. Alone, if torch.distributed is not initialised."""

    def __init__(self, timeout_s: float) -> None:
        self._group: Any = None
        if dist.is_available() and dist.is_initialized():
            self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout_s))

    @property
    def rank(self) -> int:
        return dist.get_rank(self._group) if self._group is not None else 0

    @property
    def world(self) -> int:
        return dist.get_world_size(self._group) if self._group is not None else 1

    def gather(self, value: Any) -> list[Any]:
        """In rank 0 the values of all ranks; in others an empty list."""
        if self._group is None:
            return [value]
        found: list[Any] | None = [None] * self.world if self.rank == 0 else None
        dist.gather_object(value, found, dst=0, group=self._group)
        return found or []

    def scatter(self, values: list[Any]) -> Any:
        """The value that rank 0 has for this rank."""
        if self._group is None:
            return values[0]
        found: list[Any] = [None]
        dist.scatter_object_list(found, values if self.rank == 0 else None, src=0, group=self._group)
        return found[0]

    def share(self, value: Any) -> Any:
        """The value of rank 0."""
        if self._group is None:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=0, group=self._group)
        return found[0]

    def first_problem(self, problem: str) -> str:
        """The first problem that any rank has; empty: none has one. All ranks get the same answer."""
        problems = self.gather(problem)
        return str(self.share(next((f"rank {at}: {text}" for at, text in enumerate(problems) if text), "")))

    def close(self) -> None:
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
            self._group = None
