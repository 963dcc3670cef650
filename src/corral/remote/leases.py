"""The table of leases: which nodes may still be running something, by one clock of the server's machine, passed in.

It is the only place that extends leases and the only one that lets them expire, so the two cannot contradict each
other. A node counts its lease from when it *sent* the renewal, this table from when it *answers*, which is later, plus
a margin. So a node has stopped its tasks before it is declared lost. The table extends leases only while the leader
has delegated that to it (`delegate`). Knows names and times.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from corral.remote.messages import LeaseAnswer, Renewal
from corral.remote.settings import RemoteSettings


class LeaseStatus(Struct, frozen=True, gc=False, array_like=True):
    """How the leader sees a node. ``term`` counts how often it was lost, ``is_gone`` says whether it is lost now."""

    term: int = 0
    is_gone: bool = False


class _Node(Struct):
    """``until_ms``: when lease and margin expire. None: it has no lease, and only the leader can give it one."""

    status: LeaseStatus
    until_ms: int | None = None
    heard: tuple[int, int] = (-1, -1)  # the highest epoch and term that its agent has named


class Leases:
    """``sweep`` must be called regularly: a gap between two calls shows that this process was stalled. Until `begin`
    the state is not loaded: no node is declared lost, and only leases that have not expired are extended."""

    def __init__(self, settings: RemoteSettings, epoch: int, gone: frozenset[str] = frozenset()) -> None:
        self._settings, self._epoch = settings, epoch
        self._nodes: dict[str, _Node] = {name: _Node(LeaseStatus(0, True)) for name in gone}
        self._authority_ms = 0
        self._swept_ms: int | None = None
        self._is_idle = False  # at the last check: without the delegation to extend leases
        self.is_early = True
        self.lease_ms = settings.lease_ms

    def __contains__(self, node: str) -> bool:
        """Whether it has a lease."""
        return node in self._nodes and self._nodes[node].until_ms is not None

    # --- called by the leader -----------------------------------------------------------------------------------------

    def delegate(self, until_ms: int) -> None:
        """Allow to extend leases until this time. An earlier time than before withdraws the rest."""
        self._authority_ms = until_ms

    def begin(self, lease_statuses: Mapping[str, LeaseStatus], now_ms: int, farewell_ms: int = 0) -> None:
        """The state is loaded, and these are the nodes. Each that is not lost has a whole lease from now. One that has
        not renewed yet may still have the farewell lease of an earlier server."""
        known = self._nodes
        self._nodes = {}
        self.is_early = False
        for name, status in lease_statuses.items():
            node = self._nodes[name] = known.get(name) or _Node(status)
            node.status = status
            if status.is_gone:
                node.until_ms = None
            else:
                lease_ms = self.lease_ms if node.until_ms is not None else max(self.lease_ms, farewell_ms)
                self._extend(node, lease_ms, now_ms)

    def admit(self, name: str, status: LeaseStatus, now_ms: int) -> None:
        """The node is new, was declared lost, or is back."""
        node = self._nodes.setdefault(name, _Node(status))
        node.status = status
        if status.is_gone:
            node.until_ms = None
        else:
            self._extend(node, self.lease_ms, now_ms)

    def drop(self, node: str) -> None:
        self._nodes.pop(node, None)

    def say_farewell(self, lease_ms: int) -> None:
        """The server stops: leases extended from now on last until the next server is running."""
        self.lease_ms = max(lease_ms, self.lease_ms)

    # --- called for agents --------------------------------------------------------------------------------------------

    def renew(self, name: str, asked: Renewal, now_ms: int) -> LeaseAnswer:
        """Answer a renewal. A lease of 0 means only that none is granted now: the node may ask again."""
        self._notice_stall(now_ms)
        node = self._nodes.get(name)
        if self.is_early and node is None:
            node = self._nodes[name] = _Node(LeaseStatus())
        is_ours = node is not None and self._may_extend(node, asked, now_ms)
        if node is not None and not node.status.is_gone:
            self._believe(node, asked, now_ms)
            if is_ours:
                self._extend(node, self.lease_ms, now_ms)
        status = LeaseStatus() if node is None else node.status
        return LeaseAnswer(
            seq=asked.seq,
            epoch=self._epoch,
            term=status.term,
            lease_ms=self.lease_ms if is_ours else 0,
            heartbeat_ms=self._settings.heartbeat_ms,
            is_gone=status.is_gone and not self.is_early,
        )

    def _believe(self, node: _Node, asked: Renewal, now_ms: int) -> None:
        """Trust what the agent says is left of its lease, up to the longest that is ever granted: an agent never
        shortens a lease, so the table must not count less than the node does."""
        left_ms = min(asked.left_ms, max(self._settings.farewell_ms, self.lease_ms))
        if left_ms > 0 and (self.is_early or node.until_ms is not None):
            self._extend(node, left_ms, now_ms)

    def _may_extend(self, node: _Node, asked: Renewal, now_ms: int) -> bool:
        if node.status.is_gone or now_ms >= self._authority_ms or asked.epoch > self._epoch:
            return False
        if self.is_early:
            if asked.left_ms <= 0:
                return False
        elif node.until_ms is None or now_ms > node.until_ms:
            return False
        heard = (asked.epoch, asked.term)
        if heard < node.heard:  # another agent, or one that has lost its files: first it has to catch up
            return False
        node.heard = heard
        return True

    def _extend(self, node: _Node, lease_ms: int, now_ms: int) -> None:
        node.until_ms = max(node.until_ms or 0, now_ms + lease_ms + self._settings.margin_ms)

    # --- time ---------------------------------------------------------------------------------------------------------

    def sweep(self, now_ms: int) -> list[tuple[str, int]]:
        """Nodes whose lease has expired, each returned once, with their term.

        A node is not blamed for a time in which it could not get an answer. After a stall, and when leases may be
        extended again, every node has a whole lease from now, as with a new server: its renewals may still be in our
        own buffers.
        """
        self._notice_stall(now_ms)
        self._swept_ms = now_ms
        if self._is_idle:
            return []
        over = [
            (name, node) for name, node in self._nodes.items() if node.until_ms is not None and now_ms > node.until_ms
        ]
        for _, node in over:
            node.until_ms = None
        return [(name, node.status.term) for name, node in over]

    def _notice_stall(self, now_ms: int) -> None:
        was_idle, self._is_idle = self._is_idle, self.is_early or now_ms >= self._authority_ms
        slept = self._swept_ms is not None and now_ms - self._swept_ms > self._settings.stall_ms
        if slept or (was_idle and not self._is_idle):
            self._swept_ms = now_ms
            for node in self._nodes.values():
                if node.until_ms is not None:
                    self._extend(node, self.lease_ms, now_ms)
