"""What an administrator may choose about many machines. Knows defaults, and what they must be to one another."""

from __future__ import annotations

from msgspec import Struct


class FleetSettings(Struct, frozen=True, kw_only=True):
    """``lease_ms``: so long after its last answered report the tasks of a node go on. ``margin_ms``: so much longer the
    server waits before it gives the GPUs to others; it covers how long a supervisor takes to end a task.
    ``stall_ms``: when the server itself has not looked for longer than this, it does not blame the nodes."""

    lease_ms: int = 8_000
    heartbeat_ms: int = 2_000
    margin_ms: int = 2_000
    stall_ms: int = 1_000
    poll_ms: int = 20_000
    log_wait_ms: int = 5_000  # for an agent to answer what a log says

    def fault(self) -> str:
        """What is wrong with them; empty: nothing."""
        if self.heartbeat_ms * 3 > self.lease_ms:
            return f"the lease ({self.lease_ms} ms) must outlast three heartbeats ({self.heartbeat_ms} ms each)"
        if self.margin_ms < 500:
            return f"the margin is {self.margin_ms} ms; a supervisor may need up to 500 ms to end a task"
        return ""
