"""The index of a gang: how much GPU time it takes until a gang like it has ended. Among equals, smaller goes first.

It follows from what is known of run times (``core.prediction``): the Gittins index, which orders gangs best where only
the distribution of their lengths is known. The longer a gang has waited, compared with that time, the smaller it is, so
that none waits without end. Nothing is known until a few gangs have ended; then there is no index, and age decides.
"""

from __future__ import annotations

from corral.core.cluster.resources import least_gpu_milli
from corral.core.model import Gang
from corral.core.prediction import Forecast, kinds_of_gang
from corral.core.snapshot import Snapshot
from corral.core.state import State

AGED_AFTER = 8  # a gang that has waited this many times its expected time has half the index
SHORT_MS = 600_000  # expected times below this count as this much when waits are compared with them


def forecast(state: State, gang: Gang) -> Forecast | None:
    """What is known of the run time of gangs like this one; None: nothing yet."""
    spec, known = state.jobs[gang.job].spec, state.predictions.by_shape
    key = (gang.queue, gang.user, spec.time_limit_ms, gang.profile)
    found = known.get(key)
    if found is None and state.predictions.is_ready:
        found = known[key] = state.predictions.forecast(kinds_of_gang(gang, spec, gang.profile.pattern))
    return found


def index_of(snapshot: Snapshot, gang: Gang) -> int | None:
    """The index of a gang that waits or holds seats; None: nothing is known yet."""
    known = forecast(snapshot.state, gang)
    if known is None:
        return None
    spec, run_ms = snapshot.state.jobs[gang.job].spec, snapshot.run_ms(gang)
    waited = gang.in_line_ms
    left_ms = known.index_ms(gang.done_ms + run_ms)
    if gang.holds_seats:
        size = gang.gpu_milli
    else:
        size = least_gpu_milli(gang.profile.demand)
        waited += max(0, snapshot.now_ms - gang.waiting_since_ms)
        if gang.attempt:
            left_ms += spec.restart_cost_ms
    if spec.time_limit_ms is not None:
        left_ms = min(left_ms, max(1, spec.time_limit_ms - run_ms))
    patient_ms = AGED_AFTER * max(left_ms, SHORT_MS)
    return left_ms * (size or 1000) * patient_ms // (patient_ms + waited)
