"""The starts of a run beside those of an independent program that counts GPUs and names none."""

from __future__ import annotations

from tests.judges.runs.conservative import conservative
from tests.judges.runs.easy import Asked, easy
from tests.judges.runs.lives import lives
from tests.judges.runs.site import MINUTE, START_MS, Run, since


def judge_easy(run: Run) -> list[str]:
    """Where a run in order of arrival with EASY backfill starts jobs at other times. For sites where GPUs are
    interchangeable: all in one node, or tasks of one GPU each."""
    return _compare(run, easy(asked(run), run.site.gpus))


def judge_conservative(run: Run) -> list[str]:
    """The same with conservative backfill."""
    return _compare(run, conservative(asked(run), run.site.gpus))


def _compare(run: Run, expected: dict[str, int]) -> list[str]:
    started = {life.job: life.first_ms for life in lives(run).values()}
    return [
        f"{name} should start at {at_ms / MINUTE:.1f} min and started at {since(started[name] or 0) / MINUTE:.1f} min"
        for name, at_ms in expected.items()
        if started[name] is None or since(started[name] or 0) != at_ms
    ]


def asked(run: Run) -> list[Asked]:
    found = []
    for each in run.site.jobs:
        demand = each.spec.gangs[0].demand
        told_ms = each.spec.expected_ms or each.work_ms
        found.append(Asked(each.id, each.at_ms - START_MS, demand.task.gpus * demand.tasks, each.work_ms, told_ms))
    return found
