"""What part of the time switching takes where time is shared, and whether elastic gangs use what nobody else wants."""

from __future__ import annotations

from corral.core.model import Cause
from tests.judges.runs.lives import lives
from tests.judges.runs.site import HOUR, START_MS, Run


def judge_switching(run: Run, job: str, switch_ms: int, times: int) -> list[str]:
    """A turn lasts at least so many times what a switch costs, so switching takes at most 1/(times+1) of it. Nothing is
    said of a turn in whose grace the gang came to the end of its work."""
    found, life = [], lives(run)[f"{job}/main"]
    for stay in life.stays:
        if stay.ended_ms == life.finished_ms:
            continue
        if stay.evicted is not None and stay.evicted.cause is Cause.TIME_SHARE and stay.ended_ms is not None:
            worked, lasted = stay.ended_ms - stay.placed_ms - switch_ms, stay.ended_ms - stay.placed_ms
            if worked < times * switch_ms:
                found.append(f"{job} worked for {worked / 1000:.0f} s of a turn of {lasted / 1000:.0f} s")
    return found


def judge_turns(run: Run) -> list[str]:
    """Of every gang of a site that shares time; what a switch costs is what starting and saving take there."""
    switch_ms = run.site.costs.restart_ms + run.site.costs.save_ms
    times = {spec.name: spec.time_share for spec in run.site.queues}
    return [
        violation
        for life in lives(run).values()
        for violation in judge_switching(run, life.job, switch_ms, times[life.queue])
    ]


def judge_idle(run: Run) -> list[str]:
    """At the end of the run no elastic gang is smaller than it could be with what lies idle in its pool."""
    known = [life for life in lives(run).values() if life.spec.gangs[0].demand.task.models == ("H100",)]
    holding = [(life, life.stays[-1]) for life in known if life.stays and life.stays[-1].ended_ms is None]
    is_waited_for = any(life.finished_ms is None and (not life.stays or life.stays[-1].ended_ms) for life in known)
    nodes, each = map(int, run.site.nodes.partition(":")[0].split("x"))
    free = {f"n{n}": each for n in range(nodes)}
    for _, stay in holding:
        for seat in stay.seats:
            free[seat.node] -= seat.gpus.bit_count()
    found = []
    for life, stay in [] if is_waited_for else holding:
        demand = life.spec.gangs[0].demand
        room = sum(left // demand.task.gpus for left in free.values())
        if demand.tasks_min and len(stay.seats) < demand.tasks and room:
            found.append(
                f"{life.gang} has {len(stay.seats)} of {demand.tasks} tasks while there is room for {room} more"
            )
    return found


def judge_growth(run: Run, job: str, gpus: int, after_ms: int) -> list[str]:
    """An elastic gang holds so many GPUs from then on."""
    held = [stay.gpus for stay in lives(run)[f"{job}/main"].stays if stay.held_ms(START_MS + after_ms, run.end_ms)]
    if held and min(held) >= gpus:
        return []
    return [f"{job} has {min(held, default=0)} GPUs after {after_ms / HOUR:.1f} h, although {gpus} lie idle for it"]
