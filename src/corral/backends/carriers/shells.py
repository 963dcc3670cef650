"""The seam below hosts: what a host is, how something is done there, and the two ways in which it can fail.

Knows neither pilots nor how a host is reached; that is the business of those who keep to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from corral.backends.carriers.wheels import Agent


class HostAway(Exception):
    """Nobody knows whether it was done. Why, and what to do where something can be done."""


class HostUnfit(Exception):
    """The host has answered, and nothing can be done there. Why, and what to do."""


class Host(Protocol):
    """A machine. ``key`` stays the same for as long as it is this one; ``str`` says it in words. ``path``: where it
    stands, a name for each level of the topology."""

    @property
    def key(self) -> str: ...
    @property
    def python(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def fake_gpus(self) -> str: ...


class Shell(Protocol):
    """How ``onsite`` is run on a host. Several hosts are asked at the same time, each for one thing. All but `hosts`
    raise `HostAway` and `HostUnfit`."""

    #: whether it sees to it itself that a keeper runs
    is_keeping: bool

    def hosts(self) -> Sequence[Host]:
        """Those that there are. Raises `CarrierAway`."""
        ...

    def ask(self, host: Any, act: str, **request: Any) -> dict[str, Any]:
        """A look without ``is_met`` at a host where nothing of ours is may be answered without asking it: its
        interpreter and the like are not told then. ``caveat`` in an answer: what people should know of the host."""
        ...

    def install(self, host: Any, agent: Agent) -> dict[str, Any]: ...

    def close(self) -> None: ...
