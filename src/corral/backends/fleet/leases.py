"""Which nodes may still be running something: on one clock of the server's machine, which is told in.

The one place that extends leases and the one that says they are over, so that the two can never contradict each other.
A node counts a lease from the moment it *sent* its renewal, this table from the moment it *answers*, which is later,
and adds a margin. So what the node has stopped by itself is stopped before anybody calls it gone. It grants nothing of
its own right: the leader lends it the right to, for a while (`delegate`). Knows names and times.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from corral.backends.fleet.messages import LeaseAnswer, Renewal
from corral.backends.fleet.settings import FleetSettings


class Standing(Struct, frozen=True, gc=False, array_like=True):
    """How the leader sees a node: how often it was given up, and whether it is at present."""

    term: int = 0
    is_gone: bool = False


class _Node(Struct):
    """``until_ms``: when its lease and the margin are over; None: it has none, and only the leader gives it one."""

    standing: Standing
    until_ms: int | None = None
    heard: tuple[int, int] = (-1, -1)  # the highest epoch and term that its agent has shown to know


class Leases:
    """``sweep`` must be called regularly; that it was not is how the table notices that it was itself asleep. Until
    `begin` the state is not loaded: nobody is given up, and only leases that are still running are extended."""

    def __init__(self, settings: FleetSettings, epoch: int, gone: frozenset[str] = frozenset()) -> None:
        self._settings, self._epoch = settings, epoch
        self._nodes: dict[str, _Node] = {name: _Node(Standing(0, True)) for name in gone}
        self._authority_ms = 0
        self._swept_ms: int | None = None
        self._is_idle = False  # at the last look: without the right to extend leases
        self.is_early = True
        self.lease_ms = settings.lease_ms

    def __contains__(self, node: str) -> bool:
        """Whether it has a lease."""
        return node in self._nodes and self._nodes[node].until_ms is not None

    # --- what the leader says -----------------------------------------------------------------------------------------

    def delegate(self, until_ms: int) -> None:
        """Leases may be extended until then; earlier than before: no longer than that."""
        self._authority_ms = until_ms

    def begin(self, standings: Mapping[str, Standing], now_ms: int, farewell_ms: int = 0) -> None:
        """The state is loaded: these are the nodes. Each that is not gone has a whole lease from now, and one that was
        not heard of yet may still have the farewell lease of an earlier server."""
        known, self._nodes, self.is_early = self._nodes, {}, False
        for name, standing in standings.items():
            node = self._nodes[name] = known.get(name) or _Node(standing)
            node.standing = standing
            if standing.is_gone:
                node.until_ms = None
            else:
                lease_ms = self.lease_ms if node.until_ms is not None else max(self.lease_ms, farewell_ms)
                self._extend(node, lease_ms, now_ms)

    def admit(self, name: str, standing: Standing, now_ms: int) -> None:
        """The node is new, was given up, or is back."""
        node = self._nodes.setdefault(name, _Node(standing))
        node.standing = standing
        if standing.is_gone:
            node.until_ms = None
        else:
            self._extend(node, self.lease_ms, now_ms)

    def drop(self, node: str) -> None:
        self._nodes.pop(node, None)

    def say_farewell(self, lease_ms: int) -> None:
        """The server stops: what is extended from here on lasts until the next one is there."""
        self.lease_ms = max(lease_ms, self.lease_ms)

    # --- what agents ask ----------------------------------------------------------------------------------------------

    def renew(self, name: str, asked: Renewal, now_ms: int) -> LeaseAnswer:
        """A lease of 0 says nothing but that there is none now: the node may ask again."""
        self._notice_stall(now_ms)
        node = self._nodes.get(name)
        if self.is_early and node is None:
            node = self._nodes[name] = _Node(Standing())
        is_ours = node is not None and self._may_extend(node, asked, now_ms)
        if node is not None and not node.standing.is_gone:
            self._believe(node, asked, now_ms)
            if is_ours:
                self._extend(node, self.lease_ms, now_ms)
        standing = Standing() if node is None else node.standing
        return LeaseAnswer(
            seq=asked.seq, epoch=self._epoch, term=standing.term, lease_ms=self.lease_ms if is_ours else 0,
            heartbeat_ms=self._settings.heartbeat_ms, is_gone=standing.is_gone and not self.is_early,
        )  # fmt: skip

    def _believe(self, node: _Node, asked: Renewal, now_ms: int) -> None:
        """An agent never shortens what it was granted, by whomever: the table counts no less than the node does, within
        what there is."""
        left_ms = min(asked.left_ms, max(self._settings.farewell_ms, self.lease_ms))
        if left_ms > 0 and (self.is_early or node.until_ms is not None):
            self._extend(node, left_ms, now_ms)

    def _may_extend(self, node: _Node, asked: Renewal, now_ms: int) -> bool:
        if node.standing.is_gone or now_ms >= self._authority_ms or asked.epoch > self._epoch:
            return False
        if self.is_early:
            if asked.left_ms <= 0:
                return False
        elif node.until_ms is None or now_ms > node.until_ms:
            return False
        heard = (asked.epoch, asked.term)
        if heard < node.heard:  # another agent, or one that has lost its memory: it hears of the present first
            return False
        node.heard = heard
        return True

    def _extend(self, node: _Node, lease_ms: int, now_ms: int) -> None:
        node.until_ms = max(node.until_ms or 0, now_ms + lease_ms + self._settings.margin_ms)

    # --- time ---------------------------------------------------------------------------------------------------------

    def sweep(self, now_ms: int) -> list[tuple[str, int]]:
        """Nodes whose lease is over, each named once, with their term. Nobody is blamed for what happened while nobody
        could be answered: after a stall, and when the right to extend leases is back, everyone has a whole lease from
        now, as with a new server; their renewals may be lying in our own buffers."""
        self._notice_stall(now_ms)
        self._swept_ms = now_ms
        if self._is_idle:
            return []
        over = [
            (name, node) for name, node in self._nodes.items() if node.until_ms is not None and now_ms > node.until_ms
        ]
        for _, node in over:
            node.until_ms = None
        return [(name, node.standing.term) for name, node in over]

    def _notice_stall(self, now_ms: int) -> None:
        was_idle, self._is_idle = self._is_idle, self.is_early or now_ms >= self._authority_ms
        slept = self._swept_ms is not None and now_ms - self._swept_ms > self._settings.stall_ms
        if slept or (was_idle and not self._is_idle):
            self._swept_ms = now_ms
            for node in self._nodes.values():
                if node.until_ms is not None:
                    self._extend(node, self.lease_ms, now_ms)
