"""What is said of a machine's health: what its own watch says, or what comparing it with others says, if that is worse.

Knows both words and which of them counts. What follows from it is told as reports, as if the machine had said so.
"""

from __future__ import annotations

from collections.abc import Iterator

from corral.backends.base import HealthReport
from corral.core import events as e
from corral.core.fleets.fleets import FleetEvent
from corral.core.model import Health
from corral.core.people.accounts import AccountEvent
from corral.server.watch.history import EndHistory
from corral.server.watch.paces import Paces
from corral.wire.health import HealthSettings

_SEVERITY = {health: n for n, health in enumerate(Health)}  # as they are listed: healthy first


class FleetWatch:
    """``take`` is given every durable event, ``heard`` every report about a machine as a whole."""

    def __init__(self, history: EndHistory, settings: HealthSettings | None = None) -> None:
        self.history, self.settings = history, settings or HealthSettings()
        self.paces = Paces()
        self._own: dict[str, HealthReport] = {}
        self._lemons: dict[str, str] = {}
        self._why: dict[str, str] = {}  # by node: what comparing says

    def take(self, event: e.Event | AccountEvent | FleetEvent) -> None:
        self.history.take(event)
        if isinstance(event, e.NodeRemoved):
            self._own.pop(event.node, None)
            self._why.pop(event.node, None)
        elif isinstance(event, e.GangStopped):
            self.paces.forget(event.gang)

    def heard(self, report: HealthReport) -> HealthReport:
        """What counts, now that a machine has said this of itself. Of single GPUs it knows best."""
        if report.gpu is not None:
            return report
        self._own[report.node] = report
        return self._said(report.node)

    def judge(self, now_ms: int) -> Iterator[HealthReport]:
        """What has changed by what was folded meanwhile."""
        before, self._why = self._why, {}
        if self.settings.is_on:
            self._lemons = self.history.lemons(now_ms, self.settings, self._lemons)
            self._why = self.paces.stragglers(now_ms, self.settings, self.history.user_of) | self._lemons
        for node in sorted(before.keys() | self._why.keys()):
            if before.get(node) != self._why.get(node) and (node in self._why or node in self._own):
                yield self._said(node)

    def _said(self, node: str) -> HealthReport:
        own = self._own.get(node) or HealthReport(node, None, Health.HEALTHY)
        why = self._why.get(node)
        if why is None or _SEVERITY[own.health] >= _SEVERITY[Health.SUSPECT]:
            return own
        return HealthReport(node, None, Health.SUSPECT, why)
