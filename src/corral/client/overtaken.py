"""When to leave a server that has said nothing for a while, where there are others: once another one leads.

Knows what servers tell of their health. Knows nothing of sockets. A server that is busy still tells how it is doing;
one that is frozen, or cut off, does not, and the others know who leads in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.wire.api.record import HealthView

#: After so long without a word the servers are asked how they are doing, and again as often.
LOOK_AFTER_S, LOOK_AGAIN_S = 2.0, 1.0
#: For so long each of them may take to connect, and to answer.
HEALTH_S = 1.0
HEALTH_PATH = "/v1/health"


class Overtaken(OSError):
    """The server that was asked is silent, and another one leads."""


def overtaken_by(current: str, own: HealthView | None, others: Mapping[str, HealthView]) -> str:
    """Where to ask instead; "" to go on waiting. ``own``: what the silent server itself tells, if anything."""
    if own is not None and own.status != "failed":
        return ""
    for url, health in others.items():
        if health.role == "leader" and health.status == "ok":
            return url
    named = (health.leader.rstrip("/") for health in others.values() if health.following)
    return next((leader for leader in named if leader and leader != current), "")
