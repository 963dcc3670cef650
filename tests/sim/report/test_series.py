"""Step functions against a slow and obvious count at every second."""

from __future__ import annotations

import pytest

from corral.sim.history import History, JobHistory, RunRecord
from corral.sim.report.measures import measure
from corral.sim.report.packing import fragmentation
from corral.sim.report.series import Steps, columns, even_bounds, lesser, series, steps
from corral.sim.report.team_shares import shares
from tests.sim.report.histories import S, history, job, random_history, run

SECONDS = range(100)


# ---- the obvious count: what is true in the second that begins then ------------------------------------------------


def holds(one: RunRecord, second: int) -> bool:
    return one.placed_ms <= second * S and (one.ended_ms is None or second * S < one.ended_ms)


def is_useful(one: RunRecord, second: int, end_ms: int) -> bool:
    until = (end_ms if one.ended_ms is None else one.ended_ms) - one.lost_gpu_ms * 1000 // one.gpu_milli
    return one.started_ms is not None and one.started_ms <= second * S < until


def is_in_backlog(one: JobHistory, second: int) -> bool:
    is_there = one.submitted_ms <= second * S and (one.ended_ms is None or second * S < one.ended_ms)
    return is_there and not any(holds(each, second) for each in one.runs)


def held(of: History, second: int, node: str = "") -> int:
    runs = [each for one in of.jobs.values() for each in one.runs if holds(each, second)]
    if node:
        return sum(each.gpu_milli // len(each.nodes) * each.nodes.count(node) for each in runs)
    return sum(each.gpu_milli for each in runs)


@pytest.mark.parametrize("seed", range(60))
def test_every_second_counts_the_same(seed):
    drawn = random_history(seed)
    found, jobs = series(drawn), drawn.jobs.values()
    for second in SECONDS:
        useful = [each.gpu_milli for one in jobs for each in one.runs if is_useful(each, second, drawn.end_ms)]
        waiting = [one.gpu_milli for one in jobs if is_in_backlog(one, second)]
        assert found.held.at(second * S) == held(drawn, second)
        assert found.useful.at(second * S) == sum(useful)
        assert found.in_line.at(second * S) == sum(waiting)
        assert found.jobs_in_line.at(second * S) == len(waiting)
        assert found.held.at(second * S) == sum(team.held.at(second * S) for team in found.teams.values())


@pytest.mark.parametrize("seed", range(60))
def test_areas_are_sums_over_seconds(seed):
    drawn = random_history(seed)
    found, cluster = series(drawn), measure(drawn).cluster
    assert found.held.integral(0, 100 * S) == S * sum(held(drawn, second) for second in SECONDS)
    waiting = [second for second in SECONDS if any(is_in_backlog(one, second) for one in drawn.jobs.values())]
    free = scattered = 0
    for second in waiting:
        for node in drawn.nodes:
            room = 12_000 - held(drawn, second, node)
            free += room
            scattered += room if room < 12_000 else 0
    assert fragmentation(drawn, found.in_line) == (pytest.approx(scattered / free) if free else None)
    first = min((one.submitted_ms for one in drawn.jobs.values()), default=0) // S
    whole = 36_000 * (100 - first)
    assert cluster.utilisation_in_span == pytest.approx(sum(held(drawn, n) for n in SECONDS[first:]) / whole)


@pytest.mark.parametrize("seed", range(30))
def test_shares_are_what_max_min_gives_in_each_second(seed):
    """With pieces of a second and changes at whole seconds, the division by pieces is the one at every moment."""
    drawn = random_history(seed)
    run_ = series(drawn)
    found = shares(run_, 0, 100 * S, {})  # 500 pieces of a fifth of a second
    owed = 0.0
    for second in SECONDS:
        wants = {
            t: (v.held.at(second * S) + v.in_line.at(second * S), v.held.at(second * S)) for t, v in run_.teams.items()
        }
        level = 36_000.0
        for want, _ in sorted(wants.values()):  # pour in evenly until all is used or all are full
            rest = [min(other, level) for other, _ in wants.values()]
            if sum(rest) <= 36_000 or not want:
                break
            full = [other for other, _ in wants.values() if other < level]
            level = (36_000 - sum(full)) / max(1, len(wants) - len(full))
        owed += sum(max(0.0, min(want, level) - had) for want, had in wants.values())
    assert found.deficit == pytest.approx(owed / 36_000 / 100, abs=1e-9)


# ---- step functions ------------------------------------------------------------------------------------------------


def test_steps_keep_only_the_outcome_of_a_moment():
    assert steps([(5, 2), (3, 1), (5, -1), (9, -2)]) == Steps([3, 5, 9], [1, 2, 0])


def test_a_step_function_is_nothing_before_its_first_step():
    found = Steps([3, 5], [1, 4])
    assert [found.at(time) for time in (2, 3, 4, 5, 99)] == [0, 1, 1, 4, 4]
    assert found.pieces([0, 4, 6]) == [1, 1 + 4]
    assert found.integral(7, 7) == 0


def test_the_lesser_of_two():
    assert lesser(Steps([1, 4], [5, 1]), Steps([0, 3], [2, 9])) == Steps([0, 1, 3, 4], [0, 2, 5, 1])


def test_columns_lose_no_extreme():
    spike = Steps([0, 50_001, 50_002, 70_000], [3, 900, 3, 0])
    found = columns(spike, 0, 100_000, 10)
    assert len(found) == 10
    assert max(column.most for column in found) == 900
    assert min(column.least for column in found) == 0
    assert found[5].mean == pytest.approx((3 * 9_999 + 900) / 10_000)
    assert columns(spike, 5, 5) == []


def test_pieces_are_never_shorter_than_a_millisecond():
    assert even_bounds(10, 13, 500) == [10, 11, 12, 13]
    assert even_bounds(10, 10, 500) == [10]


def test_gangs_of_one_job_wait_each_for_itself():
    """Two gangs of 2 GPUs: one sits from 10 to 30 and is over, the other from 20 to 40."""
    one = job(
        "j",
        0,
        4,
        [run(10, 10, 30, 2, gang="j[0]/main", is_last=True), run(20, 20, 40, 2, gang="j[1]/main", is_last=True)],
        40,
        gangs=2,
    )
    found = series(history(one, end=50))
    assert found.in_line == Steps([0, 10 * S, 20 * S], [4000, 2000, 0])
    assert found.jobs_in_line == Steps([0, 10 * S], [1, 0])
