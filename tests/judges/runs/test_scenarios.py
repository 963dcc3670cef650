"""The smallest runs in which a promise of the documents was broken, one by one. Each judge says nothing: all is kept.

A scenario that is still broken is expected to fail, under the number of its finding.
"""

from __future__ import annotations

from typing import Any

import pytest

from corral.core import facts as f
from corral.core.model import Budget, Health
from corral.sim.run import Arrival
from corral.sim.world import Costs
from tests.judges.runs.advice import judge_advice
from tests.judges.runs.budgets import judge_budgets
from tests.judges.runs.compare import judge_easy
from tests.judges.runs.lives import lives
from tests.judges.runs.peace import at_one_moment, judge_peace
from tests.judges.runs.reserved_starts import judge_moved_starts, judge_reserved_start
from tests.judges.runs.search import judged
from tests.judges.runs.shares import judge_shares
from tests.judges.runs.sharing import judge_growth, judge_switching
from tests.judges.runs.site import DAY, HOUR, MINUTE, SECOND, START_MS, Site, job, live, queue, since
from tests.judges.runs.waits import judge_wait

PATIENCE = 2 * HOUR
SHORT = 30 * MINUTE  # how long everything small runs
GRACE = 30 * SECOND


def broken(finding: int) -> pytest.MarkDecorator:
    return pytest.mark.xfail(reason=f"finding {finding}", strict=True)


def stream(name: str, queue: str, every_ms: int, until_ms: int = 3 * DAY, **terms: Any) -> list[Arrival]:
    """Small jobs that never end: one GPU for half an hour."""
    count = until_ms // every_ms
    return [job(f"{name}{i}", i * every_ms, SHORT, queue, **terms) for i in range(count)]


# ---- shares ------------------------------------------------------------------------------------------------------


def test_queues_of_different_depth_have_equal_shares():
    jobs = [job(f"c{i}", 0, HOUR, "c") for i in range(30)] + [job(f"b{i}", 0, HOUR, "org/b") for i in range(30)]
    run = live(Site("1x1", (queue("c"), queue("org"), queue("org/b")), tuple(jobs)))
    assert not judge_shares(run)


def test_the_tree_of_the_configuration_page_is_served_as_it_says():
    queues = (queue("lab", guarantee=16, limit=32), queue("lab/vision", guarantee=8, weight=2),
              queue("lab/language", guarantee=8, user_limit=4), queue("default"))  # fmt: skip
    users = ("ann", "bob", "eve", "joe", "kim", "lea", "max", "pia")
    jobs = [
        job(f"{name}{i}", 0, HOUR, name, user=users[i % 8])
        for name in ("lab/vision", "lab/language", "default")
        for i in range(40 * 24)
    ]
    run = live(Site("5x8", queues, tuple(jobs)))
    assert not judge_shares(run)


def test_large_gangs_of_a_nested_queue_have_their_share():
    """While GPUs are kept for the large one, its sibling may not use up what their queue is owed."""
    jobs = [job(f"s{i}", 0, 30 * MINUTE + i % 7 * MINUTE, "a/small") for i in range(500)]
    jobs += [job(f"b{i}", 0, 30 * MINUTE + i % 5 * MINUTE, "b") for i in range(500)]
    jobs += [job(f"l{i}", 0, 30 * MINUTE, "a/large", 8) for i in range(60)]
    run = live(Site("1x8", (queue("a"), queue("a/small"), queue("a/large"), queue("b")), tuple(jobs)))
    assert not judge_shares(run)


@pytest.mark.parametrize("top", ["b", "b/lab"])
def test_small_gangs_do_not_use_up_what_large_siblings_are_behind(top):
    """They fit more often; then other queues go first, as if the large ones had started."""
    queues = (queue("a"), queue("b", weight=2), *([queue(top)] if top != "b" else []),
              queue(f"{top}/large", weight=4), queue(f"{top}/small", weight=3))  # fmt: skip
    jobs = [job(f"l{i}", 0, 10 * MINUTE, f"{top}/large", 4) for i in range(120)]
    jobs += [
        job(f"{name[:1]}{i}", 0, (10, 20, 45, 30)[i % 4] * MINUTE, name)
        for name in ("a", f"{top}/small")
        for i in range(200)
    ]
    run = live(Site("1x4", queues, tuple(jobs), until_ms=28 * HOUR))
    assert not judge_shares(run, 4 * HOUR, 28 * HOUR)


@pytest.mark.parametrize("weight", [1, 9])
def test_shares_hold_when_the_backlog_is_older_than_patience(weight):
    steady = [job(f"b{i}", i * 20 * MINUTE, HOUR, "b", 8) for i in range(9 * 24)]
    jobs = [job(f"a{i}", 0, HOUR, "a", 8) for i in range(600)] + steady
    run = live(Site("1x8", (queue("a"), queue("b", weight=weight)), tuple(jobs), until_ms=3 * DAY))
    for day in range(3):
        assert not judge_shares(run, day * DAY, (day + 1) * DAY)


# ---- waiting -----------------------------------------------------------------------------------------------------

BOUND = PATIENCE + SHORT + GRACE


def waiting_for_its_share(*others: Arrival) -> tuple[Arrival, ...]:
    """A gang of a queue that has had more than its share, behind endless small work: only patience helps it."""
    past = job("past", 0, HOUR, "spent", 4)
    return (past, job("large", HOUR + MINUTE, HOUR, "spent", 4), *stream("s", "small", 7 * MINUTE), *others)


def test_an_overdue_gang_stuck_on_the_limit_of_its_queue_does_not_take_patience_from_the_others():
    stuck = job("hog", 0, 10 * DAY, "capped", 4), job("stuck", MINUTE, HOUR, "capped", 4)
    queues = queue("capped", limit=4), queue("small", weight=9), queue("spent")
    run = live(Site("1x8", queues, waiting_for_its_share(*stuck), until_ms=3 * DAY, patience_ms=PATIENCE))
    assert not judge_wait(run, "large", BOUND)


def test_without_it_the_gang_starts_in_time():
    hog = job("hog", 0, 10 * DAY, "capped", 4)
    queues = queue("capped", limit=4), queue("small", weight=9), queue("spent")
    run = live(Site("1x8", queues, waiting_for_its_share(hog), until_ms=3 * DAY, patience_ms=PATIENCE))
    assert not judge_wait(run, "large", BOUND)


def test_sixteen_preempted_gangs_do_not_hide_the_one_that_waits_longest():
    old: dict[str, Any] = dict(models=("A100",))
    new: dict[str, Any] = dict(models=("H100",))
    night = [job(f"n{i}", 0, 10 * DAY, "night", **old) for i in range(16)]
    owner = job("owner", 3 * HOUR - 10 * MINUTE, 2 * DAY, "own", 8, 2, **old)
    large = job("past", 0, HOUR, "spent", 8, **new), job("large", HOUR + MINUTE, HOUR, "spent", 8, **new)
    queues = queue("night"), queue("own", guarantee=16), queue("small", weight=9), queue("spent")
    jobs = (*night, *large, *stream("s", "small", 3 * MINUTE, **new), owner)
    run = live(Site("2x8:A100+1x8:H100", queues, jobs, until_ms=2 * DAY, patience_ms=PATIENCE))
    assert not judge_wait(run, "large", BOUND)


@pytest.mark.parametrize("bound", ["limit", "user_limit"])
def test_a_large_gang_within_a_limit_is_not_starved_by_small_ones_within_it(bound):
    jobs = [*stream("s", "q", 6 * MINUTE), job("large", HOUR + MINUTE, HOUR, "q", 4)]
    run = live(Site("1x8", (queue("q", **{bound: 4}),), tuple(jobs), until_ms=3 * DAY, patience_ms=PATIENCE))
    assert not judge_wait(run, "large", BOUND)


def test_a_gang_that_cannot_start_while_a_node_is_drained_does_not_keep_the_next_one_from_a_reservation():
    jobs = [*stream("s", "small", 3 * MINUTE), job("two", HOUR, HOUR, "big", 8, 2)]
    jobs.append(job("large", HOUR + MINUTE, HOUR, "big", 8))
    drained = (30 * MINUTE, f.NodeObserved("n1", Health.DRAINING))
    site = Site(
        "2x8", (queue("big"), queue("small")), tuple(jobs), until_ms=3 * DAY, patience_ms=PATIENCE, mishaps=(drained,)
    )
    assert not judge_wait(live(site), "large", BOUND)


def test_a_large_gang_within_its_guarantee_is_not_starved_by_small_ones_of_its_own_queue():
    jobs = [*stream("s", "a", 6 * MINUTE), *stream("b", "b", 6 * MINUTE), job("large", HOUR + MINUTE, HOUR, "a", 4)]
    run = live(Site("1x8", (queue("a", guarantee=4), queue("b")), tuple(jobs), until_ms=3 * DAY))
    assert not judge_wait(run, "large", SHORT + GRACE)


# ---- promised starts ---------------------------------------------------------------------------------------------


def test_preemption_to_stay_within_a_limit_does_not_take_what_was_promised_to_somebody_before_it():
    jobs = (
        job("first", 0, 10 * MINUTE, "c", 7, preemptible=False),
        job("low", 0, 30 * DAY, "q"),
        job("promised", MINUTE, HOUR, "r", 11, priority=9),
        job("high", 2 * MINUTE, DAY, "q", 4, priority=5, preemptible=False),
    )
    run = live(Site("1x12", (queue("q", limit=4), queue("c"), queue("r")), jobs, until_ms=3 * DAY))
    assert not judge_reserved_start(run, "promised")


def test_a_reserved_start_is_for_a_time_at_which_nobody_takes_back_what_it_does_not_lend():
    """When the job of c ends, its GPU is free, but not for others."""
    queues = queue("a"), queue("b"), queue("c", guarantee=1, lend=0)
    jobs = (
        job("owner", 0, 10 * MINUTE, "c"),
        job("large", MINUTE, 2 * HOUR, "b", 6),
        job("short", 2 * MINUTE, 10 * MINUTE, "b"),
        job("promised", 7 * MINUTE, 2 * HOUR, "a"),
    )
    assert not judge_reserved_start(live(Site("1x8", queues, jobs)), "promised")


def test_two_reserved_starts_do_not_count_on_the_same_limit():
    queues = queue("a", limit=1), queue("a/a"), queue("a/b"), queue("b")
    jobs = (
        job("first", 0, 5 * HOUR, "a/a"),
        job("both", MINUTE, 2 * HOUR, "b", 2),
        job("second", 10 * MINUTE, 2 * HOUR, "a/a"),
        job("third", 4 * HOUR, 5 * HOUR, "a/b"),
    )
    run = live(Site("1x2", queues, jobs, until_ms=2 * DAY, depth=4))
    assert not judge_reserved_start(run, "second")
    assert not judge_reserved_start(run, "third")


def test_a_gang_that_is_over_its_limit_for_a_while_keeps_its_reserved_start():
    """Small ones of its queue are gone when it is to start; meanwhile nobody else has what is kept for it."""
    queues = queue("a"), queue("b", limit=15), queue("b/large"), queue("b/small")
    jobs = (
        job("node", 0, 2 * HOUR, "a", 2),
        job("other", 2 * MINUTE, 5 * HOUR, "a", 2),
        job("last", 10 * MINUTE, 5 * HOUR, "a"),
        job("promised", 17 * MINUTE, 10 * MINUTE, "b/large", 4, 3),
        job("two", 86 * MINUTE, 10 * MINUTE, "a", 4, 2),
        job("s1", 122 * MINUTE, 30 * MINUTE, "b/small", 2),
        job("s2", 124 * MINUTE, HOUR, "b/small", 2),
        job("s3", 133 * MINUTE, 2 * HOUR, "b/small"),
    )
    assert not judge_reserved_start(live(Site("3x4", queues, jobs)), "promised")


def test_a_start_on_seats_that_an_owner_takes_is_reserved_for_when_they_are_free_again():
    """`first` has its turn before `b2`, which is within its guarantee and takes two of the GPUs for five hours."""
    queues = queue("a", guarantee=3), queue("b", guarantee=5), queue("c")
    jobs = (
        job("other", 19 * MINUTE, 2 * HOUR, "c"),
        job("large", 27 * MINUTE, HOUR, "b", 4, 2),
        job("b1", 97 * MINUTE, 2 * HOUR, "b"),
        job("first", 105 * MINUTE, HOUR, "a", 4, 2, priority=9),
        job("a2", 131 * MINUTE, 5 * HOUR, "a", 2),
        job("b2", 150 * MINUTE, 5 * HOUR, "b", 2),
    )
    run = live(Site("2x4:H100", queues, jobs, depth=4))
    (plan,) = [plan for plan in run.plans if any(each.gang == "b2/main" for each in plan.decisions)]
    assert since(plan.at_ms) == 150 * MINUTE
    assert [since(each.at_ms) for each in plan.reservations if each.gang == "first/main"] == [450 * MINUTE]
    assert not judge_moved_starts(run)


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        *[("promised", seed) for seed in (31398, 31437, 31525, 40018, 40020, 40094, 40108)],
        *[("busy", seed) for seed in (2010, 2043, 2239)],
        ("endless", 2063),
        ("flood", 31026),
    ],
)
def test_sites_that_once_broke_a_promise_keep_it(kind, seed):
    """No smaller ones were found."""
    assert not judged(kind, seed).violations


# ---- growth and time sharing -------------------------------------------------------------------------------------


def test_an_elastic_gang_grows_while_somebody_waits_for_other_hardware():
    jobs = (
        job("hold", 0, 4 * DAY, "q", 4, models=("A100",)),
        job("blocked", MINUTE, HOUR, "q", 4, models=("A100",)),
        job("other", 0, HOUR, "q", 4, models=("H100",)),
        job("elastic", 1, 4 * DAY, "q", 1, 8, tasks_min=2, models=("H100",), restart_cost_ms=SECOND),
    )
    run = live(Site("1x8:H100+1x4:A100", (queue("q"),), jobs, until_ms=3 * DAY))
    assert not judge_growth(run, "elastic", 8, 2 * HOUR)


def test_an_elastic_gang_grows_on_what_it_can_give_back_before_the_promised_start():
    """Eight GPUs are idle for a day: the one that waits wants sixteen, of which eight are in use until then."""
    jobs = (
        job("hold", 0, DAY, "q", 8),
        job("other", 0, HOUR, "q", 4),
        job("elastic", 1, 12 * HOUR, "q", 1, 8, tasks_min=4, restart_cost_ms=SECOND),
        job("blocked", 2, HOUR, "q", 8, 2),
    )
    run = live(Site("2x8", (queue("q"),), jobs, until_ms=12 * HOUR))
    assert not judge_growth(run, "elastic", 8, 2 * HOUR)


def test_a_turn_is_as_many_times_a_switch_as_the_queue_says_with_the_grace():
    terms: dict[str, Any] = dict(checkpoints=True, restart_cost_ms=MINUTE, grace_ms=5 * MINUTE)
    jobs = [job(f"e{i}", i, 2 * DAY, "q", 8, **terms) for i in range(2)]
    costs = Costs(start_ms=MINUTE, restart_ms=MINUTE, save_ms=4 * MINUTE + 50 * SECOND)
    run = live(Site("1x8", (queue("q", time_share=10),), tuple(jobs), costs=costs))
    for each in ("e0", "e1"):
        assert not judge_switching(run, each, MINUTE + costs.save_ms, 10)


# ---- making others leave -----------------------------------------------------------------------------------------


def test_who_is_overdue_is_not_placed_where_somebody_more_important_takes_the_seats_at_once():
    jobs = (
        job("first", 0, 2 * HOUR, "a"),
        job("low", 10 * MINUTE, HOUR, "b"),
        job("elastic", 20 * MINUTE, 5 * HOUR, "a", 1, 3, tasks_min=1, priority=9),
        job("high", 140 * MINUTE, 5 * HOUR, "b", priority=9),
        job("owner", 5 * HOUR, HOUR, "a"),
    )
    run = live(Site("1x2", (queue("a", guarantee=1), queue("b")), jobs, until_ms=2 * DAY, patience_ms=PATIENCE))
    assert not at_one_moment(lives(run))


def test_who_is_behind_is_not_placed_under_a_limit_that_somebody_before_it_is_about_to_use():
    jobs = (
        job("running", 125 * MINUTE, 5 * HOUR, "a/c", 2, priority=5),
        job("before", 160 * MINUTE, 30 * MINUTE, "a/a", priority=5),
        job("behind", 176 * MINUTE, 2 * HOUR, "a/a"),
        job("high", 295 * MINUTE, HOUR, "a/b", priority=9),
    )
    queues = queue("a", limit=2), queue("a/a"), queue("a/b"), queue("a/c")
    run = live(Site("2x4", queues, jobs, until_ms=2 * DAY, patience_ms=PATIENCE))
    assert not at_one_moment(lives(run))


def test_two_gangs_do_not_take_turns_at_every_start_and_end_of_a_third():
    """While the third runs elsewhere, the queue of the first has more than its guarantee; when it has ended, not."""
    jobs = [
        job("first", 0, 10 * DAY, "a", models=("H100",), checkpoints=True),
        job("second", MINUTE, 10 * DAY, "b", models=("H100",), checkpoints=True, priority=5),
        *(job(f"third{i}", (i + 1) * HOUR, 30 * MINUTE, "a", 2, models=("A100",)) for i in range(20)),
        *(job(f"other{i}", i * 10 * MINUTE, MINUTE, "c", models=("A100",)) for i in range(130)),
    ]
    queues = queue("a", guarantee=2), queue("b"), queue("c")
    run = live(Site("1x1:H100+1x3:A100", queues, tuple(jobs)))
    assert not judge_peace(run)


def test_who_loses_its_claim_to_a_drain_is_still_before_those_behind_it():
    jobs = (
        job("dear", 0, 12 * MINUTE, "b", restart_cost_ms=HOUR),
        job("cheap", 0, DAY, "b", grace_ms=5 * MINUTE),
        job("owner", 10 * MINUTE, HOUR, "a"),
        job("behind", 11 * MINUTE, HOUR, "a"),
    )
    drained = (12 * MINUTE, f.NodeObserved("n1", Health.DRAINING))
    queues = queue("a", guarantee=1), queue("b")
    run = live(Site("2x1", queues, jobs, costs=Costs(save_ms=4 * MINUTE), mishaps=(drained,)))
    assert not judge_peace(run)


def test_who_wants_more_than_anybody_may_ever_lend_it_is_refused():
    run = live(Site("1x8", (queue("a"), queue("b", guarantee=4, lend=0)), (job("large", 0, HOUR, "a", 8),)))
    assert "large" in run.refused


# ---- budgets -----------------------------------------------------------------------------------------------------


def test_several_reclaims_of_one_plan_stay_within_the_budget():
    a_day = Budget(gpu_ms=9 * HOUR, window_ms=DAY, anchor_ms=START_MS)
    borrowers = [job(f"b{i}", 0, 2 * DAY, "b") for i in range(8)]
    owners = [job(f"a{i}", HOUR, 4 * HOUR, "a", 2) for i in range(4)]
    run = live(Site("1x8", (queue("a", guarantee=8, budget=a_day), queue("b")), (*borrowers, *owners)))
    assert not judge_budgets(run)


def test_a_run_across_two_windows_is_charged_to_each_for_its_part():
    """Half of the first run is in the first window, half in the second, where half is left for the next one."""
    four_hours = Budget(gpu_ms=8 * HOUR, window_ms=4 * HOUR, anchor_ms=START_MS)
    jobs = job("across", 2 * HOUR, 4 * HOUR, "a", 2), job("next", 6 * HOUR + MINUTE, HOUR, "a", 2)
    run = live(Site("1x8", (queue("a", budget=four_hours),), jobs))
    assert not judge_wait(run, "next", 0)


# ---- backfill ----------------------------------------------------------------------------------------------------


def test_a_job_that_ends_exactly_when_the_promised_start_comes_is_backfilled():
    """Also behind one that wants the same for longer and was refused."""
    jobs = (
        job("now", 0, HOUR, "q", 4),
        job("head", 1, HOUR, "q", 8),
        job("long", 2, 2 * HOUR, "q", 4),
        job("exact", 3, HOUR - 3, "q", 4),
    )
    run = live(Site("1x8", (queue("q"),), jobs))
    assert lives(run)["exact/main"].first_ms == START_MS + 3
    assert since(lives(run)["head/main"].first_ms or 0) == HOUR


def test_easy_counts_gpus_and_names_none():
    """The fourth takes the one GPU that is not promised, although a promised one would do; so the sixth is refused."""
    sizes = (4, 20), (2, 10), (3, 60), (1, 10), (4, 10), (1, 20)
    jobs = [job(f"j{i}", i * MINUTE, m * MINUTE, "q", gpus) for i, (gpus, m) in enumerate(sizes)]
    assert not judge_easy(live(Site("1x4", (queue("q"),), tuple(jobs), policy="easy")))


# ---- advice ------------------------------------------------------------------------------------------------------


def test_advice_that_is_followed_works_from_the_end_of_the_line():
    jobs = (
        job("now", 66 * MINUTE, 2 * HOUR, "c", 6),
        job("advised", 75 * MINUTE, 10 * MINUTE, "a/a", 8, 2, user="bob"),
        job("before", 92 * MINUTE, 5 * HOUR, "a/a", 2, user="bob"),
        job("other", 111 * MINUTE, 5 * HOUR, "a/b"),
    )
    queues = queue("a"), queue("a/a"), queue("a/b"), queue("c")
    assert not judge_advice(live(Site("2x8", queues, jobs)))
