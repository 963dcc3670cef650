"""How often to save: the interval at which saving and lost work together cost least (Young 1974, Daly 2006).

Pure. With a mean time M between failures of the whole gang, a save that stalls training for d and is durable w later,
and a restart that costs R, an interval t loses about d/(t+d) to saving and (t/2 + w + R)/M to failures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: Failures of a node per 1,000 node-days, as published for large clusters; used until there are measurements.
FAILURES_PER_1000_NODE_DAYS = 6.5
_DAY_S = 86_400
SHORTEST_S = 5.0


@dataclass(frozen=True)
class IntervalAdvice:
    """``interval_s`` and the parts of the time that are lost with it: to saving, to work that is repeated after a
    failure, and to restarts."""

    interval_s: float
    saving: float
    repeated: float
    restarting: float

    @property
    def loss(self) -> float:
        return self.saving + self.repeated + self.restarting


def advise(stall_s: float, write_s: float, mtbf_s: float, restart_s: float) -> IntervalAdvice:
    """The best interval for these costs, and what it loses."""
    return expect(best_interval_s(stall_s, write_s, mtbf_s), stall_s, write_s, mtbf_s, restart_s)


def best_interval_s(stall_s: float, write_s: float, mtbf_s: float) -> float:
    """Daly's optimum. Not shorter than a save takes: the next would wait for it."""
    stall_s = max(stall_s, 0.001)
    if stall_s >= 2 * mtbf_s:
        optimum = mtbf_s
    else:
        ratio = stall_s / (2 * mtbf_s)
        optimum = math.sqrt(2 * stall_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - stall_s
    return max(optimum, write_s, SHORTEST_S)


def expect(interval_s: float, stall_s: float, write_s: float, mtbf_s: float, restart_s: float) -> IntervalAdvice:
    """What any interval loses. A part of the time, so at most 1."""
    return IntervalAdvice(
        interval_s,
        saving=min(stall_s / (interval_s + stall_s), 1.0),
        repeated=min((interval_s / 2 + write_s) / mtbf_s, 1.0),
        restarting=min(restart_s / mtbf_s, 1.0),
    )


def mtbf_of_nodes_s(nodes: int, failures: int = 0, node_s: float = 0.0) -> float:
    """The mean time between failures of a gang on this many nodes, from ``failures`` in ``node_s`` node-seconds.

    The published rate counts as one observed failure, so that a short time without failures is not taken for none.
    """
    prior_node_s = 1000 * _DAY_S / FAILURES_PER_1000_NODE_DAYS
    return (prior_node_s + node_s) / (1 + failures) / max(nodes, 1)
