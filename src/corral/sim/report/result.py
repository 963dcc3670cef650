"""One run as a report shows it: policy, workload, history and measures."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from corral.sim.history import History
from corral.sim.report.measures import Measures, Power, measure
from corral.sim.report.series import Series, series
from corral.sim.traces.trace import Trace


class Result(Struct):
    """A run with everything that a report needs. Reports show several side by side."""

    policy: str
    workload: str
    measures: Measures
    history: History
    over_time: Series
    cut_ms: int | None = None  # simulated time after which the run was interrupted; None: it was not


def evaluate(
    policy: str,
    history: History,
    trace: Trace | None = None,
    *,
    weights: Mapping[str, int] | None = None,
    power: Power | None = None,
) -> Result:
    """Measure one run and keep what its report needs."""
    over_time = series(history)
    measures = measure(history, trace, weights=weights, power=power, over_time=over_time)
    return Result(policy, "" if trace is None else trace.name, measures, history, over_time)
