"""The messages between the server and ``bootstrap`` on a host: requests, answers, and the record of a pilot.

Values only, as the server sees them; ``bootstrap`` itself may not import this module and uses plain dictionaries with
the same keys. An answer is checked when it is read. Records of earlier versions may still be on hosts, so a new field
of `PilotRecord` or `AgentEnd` needs a default.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
from msgspec import Struct


class BadHostAnswer(ValueError):
    """The host has answered something else than `bootstrap` does."""


# --- what is on the host ----------------------------------------------------------------------------------------------


class PilotRecord(Struct, frozen=True, gc=False, kw_only=True):
    """The pilot of a host, and how to run its agent: the content of ``place.json``.

    ``agent`` is the mark of an `AgentBundle`, ``words`` are further arguments of ``corral pilot``. ``is_kept``: the
    provider itself keeps the agent's supervisor running.
    """

    pilot: str
    cluster: str
    agent: str
    at_ms: int
    is_released: bool = False
    is_kept: bool = False
    token: str = ""  # never part of an answer
    words: tuple[str, ...] = ()
    ca: str = ""
    grace_ms: int = 0

    def __repr__(self) -> str:
        return f"PilotRecord(pilot={self.pilot!r}, cluster={self.cluster!r})"  # the token must not get into a log


class AgentEnd(Struct, frozen=True, gc=False):
    """How the agent ended by itself: the content of ``ended.json``."""

    why: str = ""
    code: int = 0
    at_ms: int = 0


class AgentState(Struct, frozen=True, gc=False):
    """``is_kept``: a supervisor keeps the agent running. ``ended`` None: it has not ended."""

    is_kept: bool = False
    ended: AgentEnd | None = None


class HostDetails(Struct, frozen=True, gc=False, kw_only=True):
    """What decides whether a host can have an agent, and which. ``devices``: NVIDIA GPUs, with or without a driver."""

    python: tuple[int, int, int]
    machine: str
    libc: str
    now_ms: int
    folder: str
    free_mib: int
    can_write: bool
    driver: str
    devices: int


# --- requests ---------------------------------------------------------------------------------------------------------


class LookRequest(Struct, frozen=True, gc=False, tag_field="act", tag="look"):
    """Report the state of the host, and change nothing."""


class InstallRequest(Struct, frozen=True, gc=False, tag_field="act", tag="install"):
    """Unpack the wheels that follow the request. ``wheels``: size and SHA-256 of each."""

    agent: str
    wheels: tuple[tuple[int, str], ...]


class StartRequest(Struct, frozen=True, gc=False, tag_field="act", tag="start"):
    """Start a pilot, if the host is free."""

    order: PilotRecord
    is_kept: bool


class RestartRequest(Struct, frozen=True, gc=False, tag_field="act", tag="begin"):
    """Start the agent of a pilot again whose supervisor is gone."""

    pilot: str
    cluster: str
    is_kept: bool


class UpgradeRequest(Struct, frozen=True, gc=False, tag_field="act", tag="renew"):
    """Restart the agent of a pilot in another version."""

    pilot: str
    cluster: str
    agent: str


class StopRequest(Struct, frozen=True, gc=False, tag_field="act", tag="stop"):
    """End a pilot, and remove everything from the host."""

    pilot: str
    cluster: str


HostRequest = LookRequest | InstallRequest | StartRequest | RestartRequest | UpgradeRequest | StopRequest


def encode(request: HostRequest, folder: str) -> bytes:
    """A line of JSON. ``folder``: of Corral on the host; empty: its default."""
    return json.dumps({**msgspec.to_builtins(request), "folder": folder}).encode()


# --- answers ----------------------------------------------------------------------------------------------------------


class HostAnswer(Struct, frozen=True, gc=False, kw_only=True):
    """The state of a host after a request. ``details`` None: the host itself was not asked, because nothing runs there.

    ``is_taken``: another pilot uses the host. ``is_bare``: the agent is not installed. ``caveat``: a warning about the
    host, for people.
    """

    place: PilotRecord | None = None
    state: AgentState = AgentState()
    agents: tuple[str, ...] = ()
    is_taken: bool = False
    is_bare: bool = False
    caveat: str = ""
    details: HostDetails | None = None


class HostFault(Struct, frozen=True, gc=False):
    """Why a request was not executed."""

    fault: str


def decode(output: bytes) -> HostAnswer | HostFault | None:
    """The answer in the last line of the output: a shell may print a greeting before it. None: there is no answer.

    Raises `BadHostAnswer`.
    """
    lines = output.strip().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else None
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return _converted(found)


def _converted(found: dict[str, Any]) -> HostAnswer | HostFault:
    try:
        if "fault" in found:
            return msgspec.convert(found, HostFault)
        details = msgspec.convert(found, HostDetails)
        return msgspec.structs.replace(msgspec.convert(found, HostAnswer), details=details)
    except msgspec.ValidationError as wrong:
        raise BadHostAnswer(str(wrong)) from None
