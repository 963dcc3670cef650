"""Estimates of run times, as the engine learns them from ended jobs: no oracle, only what a site would know then."""

from __future__ import annotations

from msgspec.structs import replace

from corral.core.cluster.resources import least_gpu_milli
from corral.core.model import JobSpec
from corral.core.prediction import kinds_of, pattern_of
from corral.core.state import State
from corral.sim.run import Arrival

PERCENT = 80  # fraction of similar jobs that ended within the estimate: too short is worse than too long


class Learner:
    """Estimates the run time of new jobs by the predictions of a state."""

    def __init__(self, state: State) -> None:
        self._predictions = state.predictions

    def admit(self, arrival: Arrival) -> JobSpec:
        """The job to submit, with an estimate if there is one."""
        spec = arrival.spec
        size = least_gpu_milli(spec.gangs[0].demand)
        kinds = kinds_of(spec.queue, arrival.user, size, spec.time_limit_ms, pattern_of(spec.name))
        forecast = self._predictions.forecast(kinds)
        return spec if forecast is None else replace(spec, estimate_ms=_rounded(forecast.quantile_ms(PERCENT)))


def _rounded(length_ms: int) -> int:
    """Rounded up to two significant binary digits, so that jobs of similar length have one shape."""
    step = 1 << max(0, length_ms.bit_length() - 3)
    return max(1, -(-length_ms // step) * step)
