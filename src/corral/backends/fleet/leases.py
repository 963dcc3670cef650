"""Which nodes may still be running something: on the server's own clock, which is told in.

A node counts the lease from the moment it *sent* a report, the server from the moment it *answers*, which is later, and
adds a margin. So what the node has stopped by itself is stopped before the server calls it gone. Knows names and times.
"""

from __future__ import annotations

from corral.backends.fleet.settings import FleetSettings


class Leases:
    """``sweep`` must be called regularly; that it was not is how the server notices that it was itself asleep."""

    def __init__(self, settings: FleetSettings) -> None:
        self._lasts_ms = settings.lease_ms + settings.margin_ms
        self._stall_ms = settings.stall_ms
        self._until_ms: dict[str, int] = {}
        self._swept_ms: int | None = None

    def __contains__(self, node: str) -> bool:
        return node in self._until_ms

    def grant(self, node: str, now_ms: int) -> None:
        self._until_ms[node] = max(self._until_ms.get(node, 0), now_ms + self._lasts_ms)

    def drop(self, node: str) -> None:
        self._until_ms.pop(node, None)

    def sweep(self, now_ms: int) -> list[str]:
        """Nodes whose lease is over; each is named once. After a stall everyone has a whole lease from now, as with
        a new server: their reports may be lying in our own buffers."""
        asleep_ms = 0 if self._swept_ms is None else now_ms - self._swept_ms
        self._swept_ms = now_ms
        if asleep_ms > self._stall_ms:
            for node in self._until_ms:
                self.grant(node, now_ms)
        gone = [node for node, until_ms in self._until_ms.items() if now_ms > until_ms]
        for node in gone:
            del self._until_ms[node]
        return gone
