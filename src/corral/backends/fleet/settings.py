"""What an administrator may choose about many machines. Knows defaults, and what they must be to one another."""

from __future__ import annotations

from msgspec import Struct

LEASE_MS = 8_000
#: With several servers a lease must outlast that another takes over: up to 7 s, with a heartbeat (3.75 s) before it and
#: some seconds after it until every agent has found the new one. A gang is still repaired within 20 s.
SHARED_LEASE_MS = 15_000
_MARGIN_MS_MAX = 2_000
FAREWELL_MS = 60_000


class FleetSettings(Struct, frozen=True, kw_only=True):
    """``lease_ms``: so long after its last answered renewal the tasks of a node go on. ``margin_ms``: so much longer
    the server waits before it gives the GPUs to others; it covers how long a supervisor takes to end a task.
    ``stall_ms``: when the gateway itself has not looked for longer than this, it does not blame the nodes."""

    lease_ms: int = LEASE_MS
    heartbeat_ms: int = 2_000
    margin_ms: int = 2_000
    stall_ms: int = 1_000
    farewell_ms: int = FAREWELL_MS  # the lease that a server leaves behind when it is stopped
    poll_ms: int = 20_000
    log_wait_ms: int = 5_000  # for an agent to answer what a log says

    @property
    def loss_known_ms(self) -> int:
        """At most this long after a node was cut off it is known to be lost."""
        return self.lease_ms + self.margin_ms + self.stall_ms

    def fault(self) -> str:
        """What is wrong with them; empty: nothing."""
        if self.heartbeat_ms * 3 > self.lease_ms:
            return f"the lease ({self.lease_ms} ms) must outlast three heartbeats ({self.heartbeat_ms} ms each)"
        if self.margin_ms < 500:
            return f"the margin is {self.margin_ms} ms; a supervisor may need up to 500 ms to end a task"
        return ""


def fleet_settings(lease_ms: int, farewell_ms: int = FAREWELL_MS) -> FleetSettings:
    """The rest follows from the lease: four heartbeats, of which three may be lost; and a margin that has nothing to do
    with its length, but with how long it takes to end a task."""
    margin_ms = min(max(lease_ms // 4, 500), _MARGIN_MS_MAX)
    return FleetSettings(
        lease_ms=lease_ms, heartbeat_ms=max(lease_ms // 4, 50), margin_ms=margin_ms,
        farewell_ms=max(farewell_ms, lease_ms),
    )  # fmt: skip
