"""The tree of queues: bounds, lending, borrowing, scheduled changes and budgets."""

import pytest

from corral.core.cluster.resources import GPU_MILLI, amounts
from corral.core.model import NEVER_MS, Budget, QueueSpec, QuotaChange
from corral.core.queues.budget import Run
from corral.core.queues.quota import QueueTree
from corral.core.queues.terms import contested
from tests.world import gpu_amounts

HOUR_MS = 3_600_000


def tree(*specs: QueueSpec, gpus: int = 16) -> QueueTree:
    made = QueueTree(HOUR_MS, 0)
    made.total = {GPU_MILLI: gpus * 1000}
    for spec in specs:
        made.put(spec)
    return made


def queue(name: str, **terms) -> QueueSpec:
    for field in ("guarantee", "limit", "lend", "user_limit"):
        if isinstance(terms.get(field), int):
            terms[field] = gpu_amounts(terms[field])
    return QueueSpec(name=name, **terms)


def uses(made: QueueTree, name: str, gpus: int, user: str = "ann") -> QueueTree:
    made.charge(name, user, gpu_amounts(gpus), 1)
    return made


def kinds(made: QueueTree, name: str, gpus: int, gpu_ms: int = 0, now_ms: int = 0, user: str = "ann") -> list[str]:
    charge = dict(gpu_amounts(gpus))
    return [f"{s.kind} {s.queue}" for s in made.shortfalls(name, user, charge, gpu_ms, now_ms)]


# ---- the most -----------------------------------------------------------------------------------------


def test_what_is_not_stated_is_not_bounded():
    assert kinds(tree(queue("a")), "a", 1_000_000) == []


def test_a_limit_holds_up_to_its_last_gpu():
    made = uses(tree(queue("a", limit=4)), "a", 3)
    assert kinds(made, "a", 1) == []
    assert kinds(made, "a", 2) == ["limit a"]


def test_a_parents_limit_binds_its_children_together():
    made = tree(queue("org", limit=4), queue("org/a"), queue("org/b"))
    uses(uses(made, "org/a", 2), "org/b", 1)
    assert kinds(made, "org/a", 1) == []
    assert kinds(made, "org/b", 2) == ["limit org"]


def test_a_shortfall_carries_its_numbers():
    made = uses(tree(queue("a", limit=4)), "a", 3)
    found = next(iter(made.shortfalls("a", "ann", dict(gpu_amounts(2)), 0, 0)))
    assert (found.name, found.used, found.bound, found.asked) == (GPU_MILLI, 3000, 4000, 2000)


def test_a_users_limit_counts_that_user_alone():
    made = uses(tree(queue("a", user_limit=2)), "a", 2, "ann")
    assert kinds(made, "a", 1, user="ann") == ["user_limit a"]
    assert kinds(made, "a", 1, user="bob") == []


def test_every_broken_bound_is_reported_and_not_only_the_first():
    made = tree(queue("org", limit=1), queue("org/a", limit=1, user_limit=1, budget=Budget(1, 1)))
    assert kinds(made, "org/a", 2, gpu_ms=2) == [
        "user_limit org/a", "limit org", "limit org/a", "budget org/a",
    ]  # fmt: skip


# ---- lending ------------------------------------------------------------------------------------------


def test_a_queue_that_lends_nothing_keeps_its_idle_guarantee():
    made = tree(queue("owner", guarantee=10, lend=0), queue("other"))
    assert made.room("other", GPU_MILLI, 0) == 6_000
    assert kinds(made, "other", 6) == []
    assert kinds(made, "other", 7) == ["not_lent other"]


def test_a_queue_that_does_not_speak_of_lending_lends_everything():
    assert kinds(tree(queue("owner", guarantee=10), queue("other")), "other", 16) == []


def test_what_the_owner_uses_itself_is_not_kept_twice():
    made = uses(tree(queue("owner", guarantee=10, lend=4), queue("other")), "owner", 5)
    assert made.room("other", GPU_MILLI, 0) == 16_000 - 5_000 - 1_000


def test_the_owner_itself_is_not_bound_by_what_it_keeps():
    made = tree(queue("owner", guarantee=10, lend=0), queue("other"))
    assert kinds(made, "owner", 16) == []


def test_keeping_binds_cousins_through_their_parents():
    made = tree(queue("x", guarantee=10, lend=0), queue("y"), queue("y/z"))
    assert kinds(made, "y/z", 7) == ["not_lent y/z"]


# ---- guarantees and borrowing -------------------------------------------------------------------------


def test_a_queue_that_states_no_guarantee_has_what_its_children_are_promised_together():
    made = tree(queue("org"), queue("org/a", guarantee=3), queue("org/b", guarantee=4), queue("org/c"))
    assert made.guarantee("org", GPU_MILLI, 0) == 7_000
    assert made.guarantee("org/c", GPU_MILLI, 0) is None


def test_a_stated_guarantee_is_not_replaced_by_the_sum_of_its_children():
    made = tree(queue("org", guarantee=9), queue("org/a", guarantee=3))
    assert made.guarantee("org", GPU_MILLI, 0) == 9_000


ENTITLED = {
    "up to the last GPU of the guarantee": (2, 2, True),
    "not one GPU further": (2, 3, False),
}


@pytest.mark.parametrize(("used", "asked", "expected"), ENTITLED.values(), ids=ENTITLED.keys())
def test_entitled(used, asked, expected):
    made = uses(tree(queue("a", guarantee=4), queue("b")), "a", used)
    assert made.is_entitled("a", "b", dict(gpu_amounts(asked)), 0) is expected


def test_without_a_guarantee_no_one_is_entitled():
    assert not tree(queue("a"), queue("b")).is_entitled("a", "b", dict(gpu_amounts(1)), 0)


def test_an_entitlement_must_hold_at_every_level_where_the_paths_differ():
    made = tree(queue("x", guarantee=2), queue("x/a", guarantee=2), queue("x/b"), queue("y"))
    uses(made, "x/b", 2)
    assert made.is_entitled("x/a", "x/b", dict(gpu_amounts(2)), 0)
    assert not made.is_entitled("x/a", "y", dict(gpu_amounts(2)), 0), "x as a whole has its share"


def test_guarantees_of_gpu_work_are_argued_over_gpus_alone():
    assert contested({GPU_MILLI: 1000, "cpu_milli": 5}) == (GPU_MILLI,)
    assert contested({"cpu_milli": 5, "licence": 1}) == ("cpu_milli",)


# ---- time ---------------------------------------------------------------------------------------------

WEEKEND = QuotaChange(100, 200, guarantee=gpu_amounts(6), limit=gpu_amounts(6))
CHANGES = {
    "before it begins": (99, 2_000, 4_000),
    "from its first moment": (100, 8_000, 10_000),
    "to its last": (199, 8_000, 10_000),
    "and no longer": (200, 2_000, 4_000),
}


@pytest.mark.parametrize(("now_ms", "guarantee", "limit"), CHANGES.values(), ids=CHANGES.keys())
def test_a_scheduled_change_holds(now_ms, guarantee, limit):
    made = tree(queue("a", guarantee=2, limit=4, changes=(WEEKEND,)))
    assert made.guarantee("a", GPU_MILLI, now_ms) == guarantee
    assert made.limit("a", GPU_MILLI, now_ms) == limit


def test_a_change_of_a_limit_that_is_not_stated_does_not_make_one():
    assert tree(queue("a", changes=(WEEKEND,))).limit("a", GPU_MILLI, 150) is None


def test_overlapping_changes_add_up():
    more = QuotaChange(150, 300, limit=gpu_amounts(1))
    assert tree(queue("a", limit=4, changes=(WEEKEND, more))).limit("a", GPU_MILLI, 160) == 11_000


def test_the_next_change_is_the_nearest_begin_end_or_new_window():
    assert tree().next_change_ms(0) == NEVER_MS
    made = tree(queue("a", changes=(WEEKEND,)), queue("b", budget=Budget(1, 90, 30)))
    assert [made.next_change_ms(now) for now in (0, 30, 119, 150, 200, 210)] == [30, 100, 120, 200, 210, 300]


def run(gpus: int, begin_ms: int, end_ms: int) -> Run:
    return Run(begin_ms, end_ms, gpus * 1000)


def test_a_budget_counts_what_was_spent_and_what_is_under_way():
    made = tree(queue("a", budget=Budget(gpu_ms=100, window_ms=HOUR_MS)))
    made.spend("a", run(1, 0, 60), by_window=True)
    made.set_run("a", "under way", run(1, 60, 90))
    assert kinds(made, "a", 1, gpu_ms=10, now_ms=60) == []
    assert kinds(made, "a", 1, gpu_ms=11, now_ms=60) == ["budget a"]
    made.set_run("a", "under way", None)
    assert kinds(made, "a", 1, gpu_ms=40, now_ms=60) == []


def test_a_new_window_begins_with_nothing_spent():
    made = tree(queue("a", budget=Budget(100, HOUR_MS, anchor_ms=500)))
    made.spend("a", run(1, 500, 600), by_window=True)
    assert kinds(made, "a", 1, gpu_ms=1, now_ms=HOUR_MS + 499) == ["budget a"]
    assert kinds(made, "a", 1, gpu_ms=100, now_ms=HOUR_MS + 500) == []


def test_a_parents_budget_binds_its_children():
    made = tree(queue("org", budget=Budget(100, HOUR_MS)), queue("org/a"), queue("org/b"))
    made.spend("org/a", run(1, 0, 100), by_window=True)
    assert kinds(made, "org/b", 1, gpu_ms=1, now_ms=100) == ["budget org"]


@pytest.mark.parametrize(("by_window", "spent"), [(True, 20), (False, 120)])
def test_a_run_across_two_windows_is_charged_to_each_for_its_part(by_window, spent):
    """As older journals have it, all of it is charged to the last."""
    made = tree(queue("a", budget=Budget(100, 200)))
    made.spend("a", run(1, 100, 220), by_window)
    assert made.spent_gpu_ms("a", 220) == spent
    assert made.queues["a"].used_gpu_ms == made.queues[""].used_gpu_ms == 120


def test_each_window_that_a_run_touches_must_have_enough_left_for_its_part():
    made = tree(queue("a", budget=Budget(100, 200)))
    made.set_run("a", "later", run(1, 210, 250))
    assert kinds(made, "a", 1, gpu_ms=160, now_ms=100) == []  # 100 in the first, 60 in the second
    assert kinds(made, "a", 1, gpu_ms=161, now_ms=100) == ["budget a"]
    assert kinds(made, "a", 1, gpu_ms=102, now_ms=99) == ["budget a"]


def test_giving_a_queue_a_budget_does_not_forget_what_it_spent_in_the_present_window():
    made = tree(queue("a", budget=Budget(100, HOUR_MS)))
    made.spend("a", run(1, 5 * HOUR_MS, 5 * HOUR_MS + 80), by_window=True)
    made.put(queue("a", budget=Budget(90, HOUR_MS), weight=2))
    assert made.spent_gpu_ms("a", 5 * HOUR_MS + 80) == 80


# ---- bookkeeping --------------------------------------------------------------------------------------


def test_a_charge_counts_on_the_whole_path_and_its_inverse_leaves_nothing():
    made = uses(tree(queue("org"), queue("org/a")), "org/a", 3)
    assert [made.queues[name].used[GPU_MILLI] for name in ("", "org", "org/a")] == [3000] * 3
    made.charge("org/a", "ann", gpu_amounts(3), -1)
    assert [made.queues[name].used[GPU_MILLI] for name in ("", "org", "org/a")] == [0] * 3


def test_a_copy_is_charged_without_anyone_noticing():
    made = tree(queue("a"))
    uses(made.copy(), "a", 3)
    assert made.queues["a"].used == {}


def test_a_run_that_is_counted_in_a_copy_is_not_counted():
    made = tree(queue("a", budget=Budget(100, HOUR_MS)))
    made.copy().set_run("a", "x", run(1, 0, 5))
    assert not made.runs


def test_a_dropped_queue_is_gone_from_its_parent():
    made = tree(queue("org"), queue("org/a"))
    made.drop("org/a")
    assert "org/a" not in made.queues
    assert made.queues["org"].children == []


def test_metering_measures_shares_and_leaves_other_resources_alone():
    made = tree(queue("a"))
    made.meter("a", "ann", amounts({GPU_MILLI: 1000, "licence": 1}), 1, 0)
    assert made.queues["a"].usage.rates == made.queues["a"].user_usage["ann"].rates == (1000, 0, 0)
    made.meter("a", "bob", amounts({"licence": 1}), 1, 0)
    assert "bob" not in made.queues["a"].user_usage
