"""Whether the order of submission among equal jobs, and their names, decide nothing: the same site with equal jobs
exchanged has the same starts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from msgspec import structs

from corral.sim.run import Arrival
from tests.judges.runs.lives import lives
from tests.judges.runs.site import Run, live, since


def judge_equals(run: Run) -> list[str]:
    """Live through the site once more with other names, equal jobs in the opposite order."""
    first, second = _starts(run), _starts(live(replace(run.site, jobs=_exchanged(run.site.jobs))))
    return [
        f"{count} jobs like {shape} started at {at} ms, and with equal jobs exchanged {second[shape, at]}"
        for (shape, at), count in first.items()
        if second[shape, at] != count
    ]


def _shape(job: Arrival) -> tuple[object, ...]:
    return (job.at_ms, job.spec, job.user, job.work_ms, job.exit_code)


def _exchanged(jobs: tuple[Arrival, ...]) -> tuple[Arrival, ...]:
    """Where one of several equal jobs was, is the last that has no place yet; all have new names, in another order."""
    left: dict[tuple[object, ...], list[Arrival]] = {}
    for job in jobs:
        left.setdefault(_shape(job), []).append(job)
    return tuple(
        structs.replace(job, id=f"n{len(jobs) - at}-{left[_shape(job)].pop().id}") for at, job in enumerate(jobs)
    )


def _starts(run: Run) -> Counter[tuple[object, int]]:
    found = Counter[tuple[object, int]]()
    for life in lives(run).values():
        for stay in life.stays:
            found[(life.submitted_ms, life.spec, life.user), since(stay.placed_ms)] += 1
    return found
