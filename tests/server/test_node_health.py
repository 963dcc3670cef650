"""Machines judged by their history in the fleet: events are written by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import Seat
from corral.core.model import Cause, FailureClass, Health, JobSpec
from corral.runtime.base import HealthReport, PaceReport, TaskKey
from corral.server.node_health.end_history import EndHistory
from corral.server.node_health.past_ends import read_recent
from corral.server.node_health.status import NodeStatuses
from corral.server.node_health.stragglers import steadily_slow
from corral.store.journal import Entry
from corral.store.memory import MemoryJournal
from corral.wire.codec import encode
from corral.wire.health import DAY_MS, HOUR_MS, HealthSettings

NOW_MS = 10 * DAY_MS
FAILED = FailureClass.GPU_FAULT


class Past:
    """What happens one after the other, a second apart."""

    def __init__(self) -> None:
        self.events: list[e.Event] = []
        self.at_ms, self.gangs = NOW_MS - HOUR_MS, 0

    def _next(self) -> int:
        self.at_ms += 1_000
        return self.at_ms

    def placed(self, *nodes: str) -> str:
        self.gangs += 1
        gang = f"{self.gangs}/main"
        user = f"u{self.gangs % 5}"
        self.events.append(e.JobSubmitted(self._next(), str(self.gangs), JobSpec(queue="team", gangs=()), user))
        self.events.append(e.GangPlaced(self._next(), gang, 1, tuple(Seat(node, 1) for node in nodes), ()))
        return gang

    def ran(self, nodes: Sequence[str], failure: FailureClass | None = None, times: int = 1) -> None:
        for _ in range(times):
            gang = self.placed(*nodes)
            self.events.append(e.GangStopped(self._next(), gang, 1, failure, int(failure is not None)))

    def add(self, event: e.Event) -> None:
        self.events.append(event)

    def lemons(self, now_ms: int = NOW_MS, lemon_failures: int = 4) -> dict[str, str]:
        history = EndHistory()
        for event in self.events:
            history.take(event)
        return history.lemons(now_ms, HealthSettings(lemon_failures=lemon_failures), {})


def test_a_node_on_which_work_fails_more_than_elsewhere_is_a_lemon():
    past = Past()
    past.ran(["n1"], FAILED, times=5)
    past.ran(["n2"], times=15)
    past.ran(["n3"], FAILED, times=1)
    why = "lemon: jobs of 5 users hit machine faults here within 3d (5 of 5 jobs; 1 of 16 elsewhere), and suc"
    assert {node: said[: len(why)] for node, said in past.lemons().items()} == {"n1": why}
    assert past.lemons(lemon_failures=0) == {}
    assert past.lemons(now_ms=NOW_MS + 4 * DAY_MS) == {}, "it is long ago"


def test_a_lemon_that_spoils_a_job_now_and_then_is_found_over_more_than_a_day():
    past = Past()
    past.at_ms = NOW_MS - 65 * HOUR_MS
    for _ in range(8):
        past.ran(["n1"], FAILED)
        past.ran(["n1"])
        past.ran(["n2"], times=9)
        past.at_ms += 8 * HOUR_MS
    assert past.lemons().keys() == {"n1"}


def test_what_fails_everywhere_in_the_same_hours_condemns_no_one_also_if_it_runs_well_later():
    """A shared filesystem fails again and again; what it spoils is run again."""
    past, nodes = Past(), [f"n{n}" for n in range(8)]
    for _ in range(2):
        past.at_ms = NOW_MS - DAY_MS if past.gangs == 0 else NOW_MS - 12 * HOUR_MS
        gangs = [past.placed(node) for _ in range(3) for node in nodes]
        for gang in gangs:
            past.add(e.GangStopped(past._next(), gang, 1, FAILED, 1))
        past.at_ms += HOUR_MS
        for n, gang in enumerate(gangs):
            past.add(e.GangPlaced(past._next(), gang, 2, (Seat(nodes[(n + 1) % 8], 1),), ()))
            past.add(e.GangStopped(past._next(), gang, 2))
        past.at_ms += HOUR_MS
        for node in nodes:
            past.ran([node], times=60)
    assert past.lemons() == {}


def test_a_node_is_judged_again_once_its_failed_jobs_have_run_well_elsewhere():
    past = Past()
    past.at_ms = NOW_MS - DAY_MS
    for n in range(15):  # programs that fail wherever they run
        past.ran([f"m{n}"], FAILED)
    past.ran(["n3"], times=500)
    past.at_ms += 2 * HOUR_MS
    gangs = []
    for _ in range(5):
        gangs.append(past.placed("n1"))
        past.add(e.GangStopped(past._next(), gangs[-1], 1, FAILED, 1))
        past.ran(["n1"], times=3)
    history = EndHistory()
    for event in past.events:
        history.take(event)
    assert history.lemons(NOW_MS, HealthSettings(), {}) == {}
    again = Past()
    again.at_ms, again.gangs = past.at_ms, past.gangs
    for gang in gangs:
        again.add(e.GangPlaced(again._next(), gang, 2, (Seat("n3", 1),), ()))
        again.add(e.GangStopped(again._next(), gang, 2))
    again.ran(["n3"], times=40)
    for event in again.events:
        history.take(event)
    (why,) = history.lemons(NOW_MS, HealthSettings(), {}).values()
    assert "5 of these jobs succeeded elsewhere afterwards" in why


def test_a_users_errors_condemn_nothing_however_many():
    """An array of a hundred with a typo; and six scripts of different users that fail."""
    past = Past()
    past.ran(["n1"], FailureClass.USER_ERROR, times=100)
    past.ran(["n2"], times=50)
    assert past.lemons() == {}


def test_programs_that_fail_everywhere_make_no_lemon():
    past = Past()
    for node in ("n1", "n2", "n3"):
        past.ran([node], FAILED, times=8)
    assert past.lemons() == {}


def test_of_a_gang_on_many_nodes_only_the_one_that_failed_is_blamed():
    past = Past()
    for _ in range(4):
        gang = past.placed("n1", "n2", "n3")
        past.add(e.TasksLost(past._next(), gang, 1, 2, "n2", FailureClass.GPU_FAULT))
        past.add(e.GangRepaired(past._next(), gang, 2, (Seat("n1", 1), Seat("n3", 1), Seat("n4", 1)), ()))
        past.add(e.GangStopped(past._next(), gang, 2))
    past.ran(["n5"], times=20)
    assert past.lemons().keys() == {"n2"}


def test_who_was_evicted_says_nothing_and_who_failed_first_says_where():
    past = Past()
    for _ in range(6):
        gang = past.placed("n1")
        past.add(e.GangEvicted(past._next(), gang, 1, Cause.PRIORITY, past.at_ms))
        past.add(e.GangStopped(past._next(), gang, 1, FailureClass.PREEMPTED, 143))
        gang = past.placed("n3", "n4")
        past.add(e.GangEvicted(past._next(), gang, 1, Cause.FAILURE, past.at_ms, failure=FAILED, node="n4"))
        past.add(e.GangStopped(past._next(), gang, 1, FAILED, 1))
    past.ran(["n2"], times=15)
    assert past.lemons().keys() == {"n4"}


def test_a_node_that_is_lost_again_and_again_is_a_lemon_and_a_network_that_fails_makes_none():
    past = Past()
    for hour in range(5):
        past.add(e.NodeLost(NOW_MS - hour * HOUR_MS, "n1"))
        for node in ("n2", "n3"):
            past.add(e.NodeLost(NOW_MS - hour * HOUR_MS - 1_000_000, node))
    assert past.lemons() == {"n1": "lemon: it was lost 5 times within 3d"}


def watch_of(past: Past) -> NodeStatuses:
    watch = NodeStatuses(EndHistory())
    for event in past.events:
        watch.take(event)
    return watch


def test_the_worse_of_two_words_counts_and_a_lemon_stays_one_until_it_is_undrained():
    past = Past()
    past.ran(["n1"], FAILED, times=5)
    past.ran(["n2"], times=15)
    watch = watch_of(past)
    well = HealthReport("n1", None, Health.HEALTHY)
    assert watch.take_report(well) == well
    (said,) = watch.judge(NOW_MS)
    assert (said.health, said.why[:6]) == (Health.SUSPECT, "lemon:")
    assert watch.take_report(well) == said, "it does not know how others fare"
    ill = HealthReport("n1", None, Health.DRAINING, "disk")
    assert watch.take_report(ill) == ill
    gpu = HealthReport("n1", 3, Health.FAILED, "Xid 79")
    assert watch.take_report(gpu) == gpu
    watch.take_report(well)
    later = Past()
    later.at_ms = NOW_MS
    later.ran(["n2"], FAILED, times=30)
    for event in later.events:
        watch.take(event)
    assert list(watch.judge(NOW_MS + HOUR_MS)) == [], "that others fail now as well does not clear it"
    watch.take(e.NodeUndrained(NOW_MS + HOUR_MS, "n1"))
    assert list(watch.judge(NOW_MS + HOUR_MS)) == [well]


def test_a_new_server_recalls_the_history_from_the_record():
    losses = [e.NodeLost(NOW_MS - hour * HOUR_MS, "n1") for hour in range(5, 0, -1)]
    calm = e.NodeDrained(NOW_MS - HOUR_MS, "n2")
    journal = MemoryJournal()
    written: list[e.Event] = [*losses, calm]
    journal.append([Entry(event.at_ms, "world", encode(event)) for event in written])
    assert read_recent(journal, NOW_MS - DAY_MS) == losses
    assert read_recent(journal, NOW_MS) == []
    watch = NodeStatuses(EndHistory())
    for event in read_recent(journal, NOW_MS - DAY_MS):
        watch.take(event)
    assert [each.node for each in watch.judge(NOW_MS)] == ["n1"]


def paced(watch: NodeStatuses, attempt: int = 1, jobs: Sequence[str] = ("7", "8"), **busy_ms: int) -> None:
    """One rank of each job on each node, in the order given; each job is another user's."""
    for job in jobs:
        watch.take(e.JobSubmitted(NOW_MS, job, JobSpec(queue="team", gangs=()), f"user of {job}"))
        for rank, (node, ms) in enumerate(busy_ms.items()):
            watch.paces.take(PaceReport(TaskKey(f"{job}/main", attempt, rank), node, ((rank, ms),)))


def test_what_one_job_says_of_its_steps_condemns_nothing():
    watch = NodeStatuses(EndHistory())
    paced(watch, jobs=("7",), n1=100, n2=104, n3=180, n4=99)
    assert [each for n in range(9) for each in watch.judge(NOW_MS + n)] == []


def test_a_machine_whose_ranks_are_slower_than_their_gang_is_a_straggler():
    watch = NodeStatuses(EndHistory())
    paced(watch, n1=100, n2=104, n3=180, n4=99)
    assert [list(watch.judge(NOW_MS + n)) for n in range(2)] == [[], []], "one failure blames no node"
    (said,) = watch.judge(NOW_MS + 2)
    assert (said.node, said.health) == ("n3", Health.SUSPECT)
    assert said.why == "straggler: rank 2 of 8/main takes 180 ms for a step, the median is 102 ms"
    paced(watch, n1=100, n2=104, n3=175, n4=99)
    assert list(watch.judge(NOW_MS + 3)) == [], "the words stay the same"
    assert watch.slow_ranks("8/main") == ["rank 2 on n3 takes 175 ms for a step, the median is 102 ms"]
    assert watch.slow_ranks("9/main") == []
    well = HealthReport("n3", None, Health.HEALTHY)
    assert watch.take_report(well) == said
    for gang in ("7/main", "8/main"):
        watch.take(e.GangStopped(NOW_MS + 4, gang, 1))
    assert list(watch.judge(NOW_MS + 5)) == []
    assert list(watch.judge(NOW_MS + HOUR_MS)) == [well]


def test_few_ranks_old_attempts_and_equal_slowness_make_no_straggler():
    watch = NodeStatuses(EndHistory())
    paced(watch, n1=100, n2=900, n3=100)
    assert [each for n in range(5) for each in watch.judge(NOW_MS + n)] == [], "three are too few to compare"
    paced(watch, attempt=2, n1=900, n2=910, n3=905, n4=800)
    paced(watch, attempt=1, n1=100, n2=900, n3=100, n4=100)
    assert [each for n in range(5) for each in watch.judge(NOW_MS + n)] == []


def _noisy_reports(seed: int, ranks: int, slow: int | None, reports: int) -> dict[int, list[int]]:
    """Means of the steps of 10 s: 5 % of noise, ranks that differ by 2 %, and some reports of twice the time."""
    draw = random.Random(seed)
    found: dict[int, list[int]] = {}
    for rank in range(ranks):
        own = 100 * draw.gauss(1, 0.02) * (1.3 if rank == slow else 1.0)
        found[rank] = [round(own * draw.gauss(1, 0.05) * (2 if draw.random() < 0.05 else 1)) for _ in range(reports)]
    return found


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_a_rank_that_is_slowed_by_a_third_is_named_within_three_minutes(ranks):
    """18 reports of 10 s."""
    for seed in range(100):
        slow = seed % ranks
        assert [rank for rank, _, _ in steadily_slow(_noisy_reports(seed, ranks, slow, 18))] == [slow], seed


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_no_rank_of_a_hundred_clean_runs_is_named(ranks):
    for seed in range(100):
        reports = _noisy_reports(seed, ranks, None, 60)
        windows = [{rank: each[n : n + 18] for rank, each in reports.items()} for n in range(0, 43, 6)]
        assert [steadily_slow(window) for window in windows] == [[]] * len(windows), seed


def test_a_steadily_slow_rank_is_shown_at_its_job():
    watch = NodeStatuses(EndHistory())
    for n in range(8):
        paced(watch, n1=100 + n % 3, n2=101, n3=130 + n % 2, n4=99)
    assert watch.slow_ranks("8/main") == [
        "rank 2 on n3 takes 1.3 times as long as the others for a step: 130 ms, the median is 101 ms"
    ]


def test_that_a_gang_waits_for_a_slow_rank_is_said_once_and_taken_back():
    watch = NodeStatuses(EndHistory())
    for n in range(8):
        paced(watch, jobs=("7",), n1=100 + n % 3, n2=101, n3=130 + n % 2, n4=99)
    assert list(watch.slowed()) == [f.Slowed("7/main", 1, "n3", 129)]
    paced(watch, jobs=("7",), n1=101, n2=100, n3=132, n4=99)
    assert list(watch.slowed()) == []
    for _ in range(18):
        paced(watch, jobs=("7",), n1=101, n2=100, n3=100, n4=99)
    assert list(watch.slowed()) == [f.Slowed("7/main", 1, "n3", 100)]
    assert list(watch.slowed()) == []
