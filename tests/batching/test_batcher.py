"""Cases of the batcher that a reader can follow, each with the law it shows."""

from __future__ import annotations

import pytest

from corral.batching.batcher import Batcher
from corral.batching.items import (
    BatchItem,
    BatchQueueSpec,
    BatchWorker,
    DropItem,
    DropReason,
    Late,
    RunBatch,
    Trigger,
)

WAIT_US = 10_000


def batcher(*workers_mib: int, **rules: object) -> Batcher:
    """Two queues, a and b, with the same rules."""
    found = Batcher()
    for name in "ab":
        found.set_queue(BatchQueueSpec(name=name, **({"max_batch_size": 4, "max_batch_wait_us": WAIT_US} | rules)))  # type: ignore[arg-type]
    for number, vram_mib in enumerate(workers_mib):
        found.add_worker(BatchWorker(f"w{number}", vram_mib))
    return found


def submit(to: Batcher, numbers: range, queue: str = "a", now_us: int = 0, **more: int) -> None:
    for number in numbers:
        assert to.submit(BatchItem(number, queue, now_us, **more), now_us) is None  # type: ignore[arg-type]


def batches(to: Batcher, now_us: int) -> list[RunBatch]:
    return [each for each in to.decide(now_us) if isinstance(each, RunBatch)]


def test_a_full_batch_leaves_at_once_and_a_partial_one_when_its_oldest_item_has_waited():
    one = batcher(100, 100)
    submit(one, range(6))
    (full,) = batches(one, 0)
    assert ([item.number for item in full.items], full.trigger) == ([0, 1, 2, 3], Trigger.FULL)
    assert one.wake_us() == WAIT_US
    assert batches(one, WAIT_US - 1) == []
    (partial,) = batches(one, WAIT_US)
    assert ([item.number for item in partial.items], partial.trigger) == ([4, 5], Trigger.WAIT)


def test_a_flush_dispatches_what_waits_now_and_nothing_that_comes_later():
    one = batcher(100, 100)
    submit(one, range(2))
    one.flush("a", 0)
    assert [each.trigger for each in batches(one, 0)] == [Trigger.FLUSH]
    submit(one, range(2, 3))
    assert batches(one, 1) == []


def test_queues_take_turns_and_never_mix():
    one = batcher(100)
    submit(one, range(8), "a")
    submit(one, range(8, 16), "b")
    seen = []
    for _ in range(4):
        (batch,) = batches(one, 0)
        assert {item.queue for item in batch.items} == {batch.queue}
        seen.append(batch.queue)
        one.finish(batch.worker, 0, 100)
    assert seen == ["a", "b", "a", "b"]


def test_a_heavier_queue_gets_more_turns():
    one = batcher(100, max_batch_size=1)
    one.set_queue(BatchQueueSpec(name="a", max_batch_size=1, weight=3))
    submit(one, range(40), "a")
    submit(one, range(40, 80), "b")
    seen = []
    for _ in range(16):
        (batch,) = batches(one, 0)
        seen.append(batch.queue)
        one.finish(batch.worker, 0, 100)
    assert seen.count("a") == 12


def test_users_take_turns_where_the_queue_says_so():
    one = batcher(100, by_user=True)
    for number, user in enumerate(["ann"] * 6 + ["bob"] * 2):
        one.submit(BatchItem(number, "a", 0, user=user), 0)
    (batch,) = batches(one, 0)
    assert [item.user for item in batch.items] == ["ann", "bob", "ann", "bob"]


def test_a_batch_that_does_not_fit_is_cut_and_the_rest_goes_on_waiting():
    one = batcher(1_000, model_mib=400, item_mib=200)
    submit(one, range(4), size_mib=200)
    (batch,) = batches(one, 0)
    assert (len(batch.items), batch.size_mib) == (3, 600)
    one.finish(batch.worker, 1, 100)
    assert [len(each.items) for each in batches(one, WAIT_US)] == [1]


def test_what_no_worker_can_hold_is_refused_and_says_what_there_is():
    refusal = batcher(1_000, model_mib=400).submit(BatchItem(1, "a", 0, 601), 0)
    assert refusal is not None
    assert refusal.reason == "oversized"
    assert "need 1001 MiB; the largest worker has 1000 MiB" in refusal.text


def test_a_full_line_refuses_with_a_time_to_try_again():
    one = batcher(max_waiting=2)
    one.set_ceiling("", 100)
    submit(one, range(2))
    refusal = one.submit(BatchItem(2, "a", 0), 0)
    assert refusal is not None
    assert (refusal.reason, refusal.retry_us >= WAIT_US) == ("full", True)


def test_the_smallest_worker_that_holds_the_batch_is_taken():
    one = batcher(80, 24, 40)
    submit(one, range(4), size_mib=5)
    assert [each.worker for each in batches(one, 0)] == ["w1"]


def test_a_larger_worker_is_left_to_the_queue_that_needs_it():
    one = batcher(24, 80, max_batch_size=1)
    submit(one, range(1), "a", size_mib=10)
    submit(one, range(1, 2), "b", size_mib=60)
    assert {each.queue: each.worker for each in batches(one, 0)} == {"a": "w0", "b": "w1"}
    one.finish("w1", 1, 100)
    submit(one, range(2, 3), "a", size_mib=10)  # its turn, and only the large worker is idle
    submit(one, range(3, 4), "b", size_mib=60)
    assert [(each.queue, each.worker) for each in batches(one, 1)] == [("b", "w1")]
    one.finish("w0", 2, 100)
    assert [(each.queue, each.worker) for each in batches(one, 2)] == [("a", "w0")]


def test_a_loaded_model_is_preferred_and_others_are_unloaded_only_for_room():
    one = batcher(100, 100, model_mib=40, max_batch_size=1)
    submit(one, range(1), "a", size_mib=10)
    (first,) = batches(one, 0)
    assert (first.load, first.unload) == (True, ())
    one.finish(first.worker, 1, 100, load_us=5_000)
    submit(one, range(1, 2), "a", size_mib=10)
    (second,) = batches(one, 1)
    assert (second.worker, second.load) == (first.worker, False)


def test_items_of_a_worker_that_left_return_to_the_head_of_their_line():
    one = batcher(100, max_batch_size=2)
    submit(one, range(4))
    (batch,) = batches(one, 0)
    assert one.remove_worker(batch.worker, 1, was_killed=False) == []
    one.add_worker(BatchWorker("new", 100))
    assert [[item.number for item in each.items] for each in batches(one, 1)] == [[0, 1]]


def test_the_item_that_kills_its_workers_is_found_by_halving():
    one = batcher(100)
    submit(one, range(4))
    dropped: list[DropItem] = []
    done: list[int] = []
    for number in range(20):
        for batch in batches(one, number * WAIT_US):
            if any(item.number == 2 for item in batch.items):
                dropped += one.remove_worker(batch.worker, number * WAIT_US, was_killed=True)
                one.add_worker(BatchWorker(f"n{number}", 100))
            else:
                one.finish(batch.worker, number * WAIT_US, 100)
                done += [item.number for item in batch.items]
    assert [(drop.item.number, drop.reason) for drop in dropped] == [(2, DropReason.POISON)]
    assert sorted(done) == [0, 1, 3]


def test_out_of_memory_makes_items_count_as_larger():
    one = batcher(1_000)
    submit(one, range(4), size_mib=200)
    (batch,) = batches(one, 0)
    assert one.out_of_memory(batch.worker, 1) == []
    sizes = []
    for number in range(1, 4):
        for again in batches(one, number):
            sizes.append(len(again.items))
            one.finish(again.worker, number, 100)
    assert sizes == [2, 2]
    assert one.queues["a"].scaled(200) == 250


@pytest.mark.parametrize(("late", "is_dropped"), [(Late.DROP, True), (Late.RUN, False)])
def test_what_cannot_be_finished_in_time_is_dropped_or_run_as_the_queue_says(late: Late, is_dropped: bool):
    one = batcher(late=late)
    one.set_ceiling("", 100)
    submit(one, range(1), deadline_us=500)
    assert one.decide(400) == []
    assert [isinstance(each, DropItem) for each in one.decide(501)] == ([True] if is_dropped else [])


def test_withdrawn_items_do_not_run():
    one = batcher(100)
    items = [BatchItem(number, "a", 0) for number in range(2)]
    for item in items:
        one.submit(item, 0)
    assert one.withdraw(items[0], 0)
    assert [[item.number for item in each.items] for each in batches(one, WAIT_US)] == [[1]]
    assert not one.withdraw(items[1], WAIT_US)


def test_a_worker_that_is_retired_gets_no_more_batches():
    one = batcher(100)
    one.retire_worker("w0")
    submit(one, range(4))
    assert batches(one, WAIT_US) == []


def test_removing_a_queue_reports_every_item_that_waits():
    one = batcher(100)
    submit(one, range(3))
    assert [drop.reason for drop in one.remove_queue("a")] == [DropReason.REMOVED] * 3
    assert one.decide(WAIT_US) == []
