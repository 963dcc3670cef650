"""Checks whether a host can have an agent: its Python, GPU driver, disk and clock. Pure."""

from __future__ import annotations

from typing import Protocol

from corral.amount_text import size
from corral.providers.bootstrap.host_messages import HostAnswer

PYTHON = (3, 11)
FREE_MIB = 1_024
SKEW_MS = 60_000


class HostFacts(Protocol):
    """The part of a host that is checked here."""

    @property
    def python(self) -> str: ...
    @property
    def fake_gpus(self) -> str: ...


def unfit(host: HostFacts, answer: HostAnswer, asked_ms: int, answered_ms: int) -> str:
    """Why it cannot, and what to do. Empty: it can. ``asked_ms`` and ``answered_ms``: on the server's clock."""
    details = answer.details
    if details is None or (answer.place is not None and answer.state.ended is None):
        return ""  # nothing is known of it, or it has an agent, which checks the host itself
    version = ".".join(map(str, details.python))
    if details.python[:2] < PYTHON:
        return f"{host}: {host.python} is Python {version}; install 3.11 or newer there, and set python: PATH"
    if not details.can_write:
        return f"{host}: cannot create {details.folder}; choose another user, or set folder: PATH"
    if details.free_mib < FREE_MIB:
        return f"{host}: only {size(details.free_mib)} are free for {details.folder}; free space, or set folder: PATH"
    if details.devices and not details.driver and not host.fake_gpus:
        return f"{host}: {details.devices} NVIDIA GPUs, but no driver; install the driver there"
    ahead_ms = max(details.now_ms - answered_ms, asked_ms - details.now_ms, 0)
    if ahead_ms > SKEW_MS:
        return f"{host}: its clock is {ahead_ms // 1000} s off; start chrony, ntpd or systemd-timesyncd there"
    return ""
