"""Is a host fit to have an agent: its Python, the driver of its GPUs, its disk, its clock. Pure."""

from __future__ import annotations

from typing import Any, Protocol

PYTHON = (3, 11)
FREE_MIB = 1_024
SKEW_MS = 60_000


class Checked(Protocol):
    """As much of a host as is looked at here."""

    @property
    def python(self) -> str: ...
    @property
    def fake_gpus(self) -> str: ...


def unfit(host: Checked, said: dict[str, Any], asked_ms: int, answered_ms: int) -> str:
    """Why it is not, and what to do about it; empty: it is. ``asked_ms`` and ``answered_ms``: on the server's clock."""
    if said["place"] and not said["state"]["ended"]:
        return ""  # it has an agent, and judges for itself
    version = ".".join(map(str, said["python"]))
    if tuple(said["python"][:2]) < PYTHON:
        return f"{host}: {host.python} is Python {version}; install 3.11 or newer there, and say python: PATH"
    if not said["can_write"]:
        return f"{host}: {said['folder']} cannot be made; choose another user, or say folder: PATH"
    if said["free_mib"] < FREE_MIB:
        return f"{host}: only {said['free_mib']} MiB are free for {said['folder']}; make room, or say folder: PATH"
    if said["devices"] and not said["driver"] and not host.fake_gpus:
        return f"{host}: {said['devices']} NVIDIA GPUs and no driver; install the driver there"
    ahead_ms = max(said["now_ms"] - answered_ms, asked_ms - said["now_ms"], 0)
    if ahead_ms > SKEW_MS:
        return f"{host}: its clock is {ahead_ms // 1000} s off; start chrony, ntpd or systemd-timesyncd there"
    return ""
