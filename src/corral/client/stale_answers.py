"""When to leave a server that does not answer, if there are several: once another one is the leader.

Knows health reports of servers. Does not know sockets. A busy server still answers health checks; a frozen or
disconnected one does not, and the others know the new leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.wire.api.record import HealthView

#: Without an answer for this time, the health of all servers is checked; again at this interval.
LOOK_AFTER_S, LOOK_AGAIN_S = 2.0, 1.0
#: Time for each of them to connect, and to answer.
HEALTH_S = 1.0
HEALTH_PATH = "/v1/health"


class Overtaken(OSError):
    """The current server does not answer, and another one is the leader."""


def overtaken_by(current: str, own: HealthView | None, others: Mapping[str, HealthView]) -> str:
    """The server to use instead; "": continue to wait. ``own``: health of the current server, if it answered."""
    if own is not None and own.status != "failed":
        return ""
    for url, health in others.items():
        if health.role == "leader" and health.status == "ok":
            return url
    named = (health.leader.rstrip("/") for health in others.values() if health.following)
    return next((leader for leader in named if leader and leader != current), "")
