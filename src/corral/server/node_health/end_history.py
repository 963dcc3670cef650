"""The history of how gangs ended on each node, folded from events, and which nodes are lemons by it.

Pure. The agent of a node knows only its own failures; whether they are many shows only in comparison, and repeated
losses of a node are visible only to the server. A failure counts for the node that the event names, or for the only
node of the gang. Failures that cannot be attributed to a node are left out.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping

from corral.core import events as e
from corral.core.cluster.resources import Seat
from corral.core.gang_id import job_of
from corral.core.model import FailureClass, Gang
from corral.health.lemons import MACHINE, End, Tally, lemon
from corral.wire.codec import AnyEvent
from corral.wire.health import HealthSettings

_ENDS_MAX = 100_000  # three days of 1,000 nodes with 30 jobs a day each
_NEWS_SHARE = 20  # once there is one new end among this many, all nodes are judged again
_TOGETHER_MS = 60_000  # nodes lost within this time of each other lost something shared: a switch, power


class EndHistory:
    """``take`` gets every durable event. ``holding``: gangs that hold seats at the start."""

    def __init__(self, holding: Iterable[Gang] = ()) -> None:
        holding = list(holding)
        self._where = {gang.id: _nodes(gang.seats) for gang in holding}
        self._users = {gang.job: gang.user for gang in holding}
        self._judged: set[str] = set()  # gangs whose end does not count: they were stopped by the server
        self._ends: deque[End] = deque()
        self._by_node: dict[str, deque[End]] = {}
        self._faults = Counter[str]()  # by node
        self._tally = Tally()
        self._met_faults: set[str] = set()  # nodes with a new failure since they were judged
        self._new_ends = 0  # since all nodes were judged
        self._losses: deque[tuple[int, str]] = deque(maxlen=_ENDS_MAX)
        self._pardoned_ms: dict[str, int] = {}

    def take(self, event: AnyEvent) -> None:
        match event:
            case e.GangPlaced() | e.GangRepaired():
                self._where[event.gang] = _nodes(event.seats)
                self._judged.discard(event.gang)
            case e.TasksLost():
                self._judged.add(event.gang)
                if event.failure is not FailureClass.NODE_LOST:  # the loss itself is counted, once
                    self._note(event, (event.node,), event.failure)
            case e.GangEvicted():
                if event.failure is not None and event.node and event.gang not in self._judged:
                    self._note(event, (event.node,), event.failure)
                self._judged.add(event.gang)
            case e.GangStopped():
                self._stopped(event)
            case e.NodeLost():
                self._losses.append((event.at_ms, event.node))
            case e.JobSubmitted():
                self._users[event.job] = event.user
            case e.JobForgotten():
                self._users.pop(event.job, None)
            case e.NodeUndrained():
                self._pardoned_ms[event.node] = event.at_ms
            case e.NodeRemoved():
                self._pardoned_ms.pop(event.node, None)
            case _:
                pass

    def _stopped(self, event: e.GangStopped) -> None:
        nodes = self._where.pop(event.gang, ())
        if event.gang in self._judged:
            self._judged.discard(event.gang)
        elif event.failure is None or len(nodes) == 1:
            self._note(event, nodes, event.failure)

    def _note(self, event: e.GangEvent, nodes: tuple[str, ...], failure: FailureClass | None) -> None:
        end = End(event.at_ms, event.gang, nodes, failure, self.user_of(event.gang))
        if end.counts:
            self._ends.append(end)
            self._tally.add(end)
            self._new_ends += 1
            for node in nodes:
                self._by_node.setdefault(node, deque()).append(end)
                self._faults[node] += end.is_fault
            if end.is_fault:
                self._met_faults.update(nodes)
        if len(self._ends) > _ENDS_MAX:
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = self._ends.popleft()
        self._tally.remove(oldest)
        for node in oldest.units:
            self._by_node[node].popleft()
            self._faults[node] -= oldest.is_fault
            if not self._by_node[node]:
                del self._by_node[node], self._faults[node]

    def user_of(self, gang: str) -> str:
        """The user of a gang; empty if unknown."""
        return self._users.get(job_of(gang), "")

    def lemons(self, now_ms: int, settings: HealthSettings, before: Mapping[str, str]) -> dict[str, str]:
        """The reason for each lemon, by node. A lemon (``before``) stays one until too few of its failures are left in
        the window, or an operator undrains it: no job runs there meanwhile that could show that it works."""
        since_ms = now_ms - settings.lemon_window_ms
        while self._ends and self._ends[0].at_ms < since_ms:
            self._forget_oldest()
        losses = self._lost_alone(since_ms)
        found = {}
        for node in self._to_judge() | losses.keys() | before.keys():
            alone = losses.get(node, [])
            if self._faults[node] + len(alone) < max(settings.lemon_failures, 1):
                continue  # equivalent to calling `lemon`, but cheaper
            ends = [*self._by_node.get(node, ()), *alone]
            pardoned_ms = self._pardoned_ms.get(node, 0)
            symptom = lemon(node, ends, max(since_ms, pardoned_ms), settings, self._tally)
            if symptom is not None:
                found[node] = before.get(node) or f"lemon: {symptom.why}"
            elif node in before and pardoned_ms <= since_ms:
                found[node] = before[node]
        return found

    def _to_judge(self) -> set[str]:
        """Nodes with a new failure since they were judged; all nodes once there are enough new ends to change the
        comparison: a job that failed here may have succeeded elsewhere."""
        nodes, self._met_faults = self._met_faults, set()
        if self._new_ends * _NEWS_SHARE >= len(self._ends):
            nodes, self._new_ends = set(self._by_node), 0
        return nodes

    def _lost_alone(self, since_ms: int) -> dict[str, list[End]]:
        """Losses of single nodes; each counts like the failure of a separate gang."""
        losses = sorted(loss for loss in self._losses if loss[0] >= since_ms)
        shared = _near_another(losses) | _near_another(losses[::-1])
        found: dict[str, list[End]] = {}
        for at_ms, node in losses:
            if (at_ms, node) not in shared:
                end = End(at_ms, f"loss at {at_ms}", (node,), FailureClass.NODE_LOST, MACHINE)
                found.setdefault(node, []).append(end)
        return found


def _near_another(losses: Iterable[tuple[int, str]]) -> set[tuple[int, str]]:
    """The losses that followed the loss of another node within ``_TOGETHER_MS``, in this order."""
    found = set()
    last: tuple[int, str] | None = None
    other: tuple[int, str] | None = None  # the last loss of a different node than `last`
    for loss in losses:
        if last is not None and last[1] != loss[1]:
            other = last
        if other is not None and abs(loss[0] - other[0]) <= _TOGETHER_MS:
            found.add(loss)
        last = loss
    return found


def _nodes(seats: Iterable[Seat]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(seat.node for seat in seats))
