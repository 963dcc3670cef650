"""Whether nobody waited longer than was stated, from the journal."""

from __future__ import annotations

from corral.core import events as e
from tests.judges.runs.lives import lives
from tests.judges.runs.site import DAY, HOUR, MINUTE, Run, since

#: Jobs of sites with a flood that cannot start: they wait on a limit for ever, or for nodes that are drained.
_CANNOT = ("stuck", "drained")


def judge_wait(run: Run, job: str, bound_ms: int) -> list[str]:
    """A job must have its seats within so long of waiting, each time it waits."""
    waited = lives(run)[f"{job}/main"].longest_wait_ms(run.end_ms)
    return (
        [f"{job} waited {waited / HOUR:.1f} h and more instead of {bound_ms / HOUR:.1f} h"] if waited > bound_ms else []
    )


def judge_large(run: Run) -> list[str]:
    """The job named ``large``: patience, then the longest run of the others but for those of days, and a grace; where
    it waits for a limit first, one more such run. Where somebody who could start has waited even longer than patience,
    nothing is said about it."""
    known = lives(run)
    large = known["large/main"]
    patience = run.site.patience_ms or 0
    for life in known.values():
        if (
            life.job not in _CANNOT
            and life.submitted_ms < large.submitted_ms
            and life.longest_wait_ms(run.end_ms) > patience
        ):
            return []
    longest = max(each.work_ms for each in run.site.jobs if each.id != "large" and each.work_ms < DAY)
    grace = max(each.spec.grace_ms for each in run.site.jobs)
    own = next(spec for spec in run.site.queues if spec.name == large.queue)
    runs = 2 if own.limit or own.user_limit else 1
    return judge_wait(run, "large", patience + runs * longest + grace)


def judge_pauses(run: Run) -> list[str]:
    """After a gang that went before its turn, no other of its priority does for 100 times its part of the cluster times
    its run time, as documented. For sites of one pool."""
    known, found, rests = lives(run), list[str](), dict[int, int]()  # priority -> until when
    for event in run.events:
        if not isinstance(event, e.GangPlaced | e.GangClaimed) or not event.out_of_turn_until_ms:
            continue
        life = known[event.gang]
        if event.at_ms < rests.get(life.spec.priority, 0):
            found.append(f"{life.gang} went before its turn at {since(event.at_ms) / MINUTE:.1f} min, in a pause")
        stay = next((each for each in life.stays if each.placed_ms >= event.at_ms), None)
        if stay is not None:
            ran_ms = (run.end_ms if stay.ended_ms is None else stay.ended_ms) - stay.placed_ms
            rests[life.spec.priority] = event.at_ms + 100 * stay.gpus * ran_ms // run.site.gpus
    return found
