"""The interface to hosts: what a host is, how requests are run there, and the two ways in which they can fail.

Knows neither pilots nor how a host is reached; the implementations know that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from corral.providers.bootstrap.bundle import AgentBundle
from corral.providers.bootstrap.host_messages import BadHostAnswer, HostAnswer, HostFault, HostRequest, decode


class HostAway(Exception):
    """It is unknown whether the request was executed. Says why, and what to do if something can be done."""


class HostUnfit(Exception):
    """The host has answered, but cannot be used. Says why, and what to do."""


class Host(Protocol):
    """A machine. ``key`` identifies it; ``str`` names it for people. ``path``: its place in the topology, a name for
    each level."""

    @property
    def key(self) -> str: ...
    @property
    def python(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def fake_gpus(self) -> str: ...


class RemoteExec(Protocol):
    """Runs ``bootstrap`` on hosts. Several hosts are called at the same time, each with one request. All methods except
    `hosts` raise `HostAway` and `HostUnfit`."""

    #: Whether the provider itself keeps the agent's supervisor running.
    is_keeping: bool

    def hosts(self) -> Sequence[Host]:
        """The hosts that exist now. Raises `ProviderUnavailable`."""

    def ask(self, host: Any, request: HostRequest, is_met: bool = True) -> HostAnswer:
        """Run a request. Without ``is_met``, a look at a host without a pilot may be answered without asking the host;
        then the answer has no details."""

    def install(self, host: Any, agent: AgentBundle) -> HostAnswer: ...

    def close(self) -> None: ...


def checked_answer(host: Host, output: bytes) -> HostAnswer | None:
    """The answer in the output of `bootstrap`. None: there is none. Raises `HostUnfit` if it is invalid or a fault."""
    try:
        answer = decode(output)
    except BadHostAnswer as wrong:
        raise HostUnfit(f"{host}: cannot read the answer: {wrong}") from None
    if isinstance(answer, HostFault):
        raise HostUnfit(f"{host}: {answer.fault}")
    return answer
