"""Settings of cluster mode. Knows the defaults, and how the values depend on each other."""

from __future__ import annotations

from msgspec import Struct

LEASE_MS = 8_000
#: With several servers a lease must outlast a failover: up to 7 s, plus a heartbeat (3.75 s) before it and some seconds
#: after it until every agent has found the new leader. A gang is still restarted within 20 s.
SHARED_LEASE_MS = 15_000
_MARGIN_MS_MAX = 2_000
FAREWELL_MS = 60_000


class RemoteSettings(Struct, frozen=True, kw_only=True):
    """``lease_ms``: how long the tasks of a node keep running after its last answered renewal. ``margin_ms``: how much
    longer the server waits before it gives the GPUs to other tasks; it covers the time that a supervisor needs to end a
    task. ``stall_ms``: after a longer stall of the gateway itself, nodes get a new lease instead of being lost."""

    lease_ms: int = LEASE_MS
    heartbeat_ms: int = 2_000
    margin_ms: int = 2_000
    stall_ms: int = 1_000
    farewell_ms: int = FAREWELL_MS  # the lease that a server grants last when it is stopped
    poll_ms: int = 20_000
    log_wait_ms: int = 5_000  # for an agent to answer a request for a log

    @property
    def loss_known_ms(self) -> int:
        """The longest time after a node was cut off until it is known to be lost."""
        return self.lease_ms + self.margin_ms + self.stall_ms

    def fault(self) -> str:
        """What is wrong with the settings. Empty: nothing."""
        if self.heartbeat_ms * 3 > self.lease_ms:
            return f"the lease ({self.lease_ms} ms) must be at least three heartbeats ({self.heartbeat_ms} ms each)"
        if self.margin_ms < 500:
            return f"the margin is {self.margin_ms} ms; a supervisor may need up to 500 ms to end a task"
        return ""


def settings_for_lease(lease_ms: int, farewell_ms: int = FAREWELL_MS) -> RemoteSettings:
    """Settings for a given lease: four heartbeats, of which three may be lost. The margin depends on how long it takes
    to end a task, not on the length of the lease."""
    margin_ms = min(max(lease_ms // 4, 500), _MARGIN_MS_MAX)
    return RemoteSettings(
        lease_ms=lease_ms,
        heartbeat_ms=max(lease_ms // 4, 50),
        margin_ms=margin_ms,
        farewell_ms=max(farewell_ms, lease_ms),
    )
