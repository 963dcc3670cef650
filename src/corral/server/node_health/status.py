"""The health of a node: what its agent reports, or what the comparison with other nodes shows, whichever is worse.

Knows both and which one counts. The result is given as a report, as if the node had sent it.
"""

from __future__ import annotations

from collections.abc import Iterator

from corral.core import events as e
from corral.core import facts as f
from corral.core.model import Health
from corral.runtime.base import HealthReport
from corral.server.node_health.end_history import EndHistory
from corral.server.node_health.stragglers import Stragglers
from corral.wire.codec import AnyEvent
from corral.wire.health import HealthSettings

_CHANGE_PERCENT = 10  # a smaller change of a pace is not reported again
_SEVERITY = {health: n for n, health in enumerate(Health)}  # as they are listed: healthy first


class NodeStatuses:
    """``take`` gets every durable event, ``take_report`` every health report."""

    def __init__(self, history: EndHistory, settings: HealthSettings | None = None) -> None:
        self.history, self.settings = history, settings or HealthSettings()
        self.paces = Stragglers()
        self._own: dict[str, HealthReport] = {}
        self._lemons: dict[str, str] = {}
        self._why: dict[str, str] = {}  # by node: the result of the comparison
        self._slowed: dict[str, tuple[int, str, int]] = {}  # gang -> as it was last reported

    def take(self, event: AnyEvent) -> None:
        self.history.take(event)
        if isinstance(event, e.NodeRemoved):
            self._own.pop(event.node, None)
            self._why.pop(event.node, None)
        elif isinstance(event, e.GangStopped):
            self.paces.forget(event.gang)
            self._slowed.pop(event.gang, None)

    def take_report(self, report: HealthReport) -> HealthReport:
        """The report that counts, after a node has sent this one. For single GPUs the node's own report counts."""
        if report.gpu is not None:
            return report
        self._own[report.node] = report
        return self._said(report.node)

    def judge(self, now_ms: int) -> Iterator[HealthReport]:
        """Reports for nodes whose health has changed by events since the last call."""
        before, self._why = self._why, {}
        if self.settings.is_on:
            self._lemons = self.history.lemons(now_ms, self.settings, self._lemons)
            self._why = self.paces.stragglers(now_ms, self.settings, self.history.user_of) | self._lemons
        for node in sorted(before.keys() | self._why.keys()):
            if before.get(node) != self._why.get(node) and (node in self._why or node in self._own):
                yield self._said(node)

    def slowed(self) -> Iterator[f.Slowed]:
        """Gangs that have begun or ceased to wait for a slow rank since the last call, or wait clearly longer or
        shorter."""
        now = self.paces.slowed(self.settings) if self.settings.is_on else {}
        for gang in sorted(now.keys() | self._slowed.keys()):
            known, found = self._slowed.get(gang), now.get(gang)
            if found is None:
                attempt, node, _ = self._slowed.pop(gang)
                yield f.Slowed(gang, attempt, node, 100)
            elif known is None or known[:2] != found[:2] or abs(known[2] - found[2]) >= _CHANGE_PERCENT:
                self._slowed[gang] = found
                yield f.Slowed(gang, *found)

    def slow_ranks(self, gang: str) -> list[str]:
        """The ranks for which the others of a gang wait now."""
        return self.paces.slow_ranks(gang, self.settings)

    def _said(self, node: str) -> HealthReport:
        own = self._own.get(node) or HealthReport(node, None, Health.HEALTHY)
        why = self._why.get(node)
        if why is None or _SEVERITY[own.health] >= _SEVERITY[Health.SUSPECT]:
            return own
        return HealthReport(node, None, Health.SUSPECT, why)
