"""Each measure on a history small enough to work its number out by hand, beside the number."""

from __future__ import annotations

import msgspec
import pytest

from corral.sim.report.job_figures import figures, kept_spell, size_class
from corral.sim.report.measures import Measures, Power, distribution, measure
from corral.sim.report.team_shares import completion_alone, jain, max_min
from corral.sim.traces.trace import Trace, TraceJob
from tests.sim.report.histories import S, history, job, run

H = 3_600  # seconds


def preempted_job(**terms):
    """2 GPUs. In line 0-10, starting 10-15, runs 15-35 and loses its last 5 s; in line 35-50, runs 52-82."""
    runs = [
        run(10, 15, 35, 2, cause="reclaim", failure="preempted", lost_gpu_s=10),
        run(50, 52, 82, 2, attempt=2, is_last=True),
    ]
    return job("j", 0, 2, runs, 82, **terms)


# ---- one job -------------------------------------------------------------------------------------------------------


def test_figures_of_a_job_that_was_preempted_once():
    found = figures(preempted_job(), 100 * S)
    assert found.completion_ms == 82 * S
    assert found.waited_ms == 10 * S
    assert found.in_line_ms == (10 + 15) * S
    assert found.held_ms == (25 + 32) * S
    assert found.kept_ms == (15 + 30) * S
    assert found.held_gpu_ms == 2 * (25 + 32) * S
    assert found.starting_gpu_ms == 2 * (5 + 2) * S
    assert found.kept_gpu_ms == 2 * (15 + 30) * S
    assert found.lost_gpu_ms == 10 * S
    assert found.busy_gpu_ms == 2 * (20 + 30) * S
    assert (found.preemptions, found.evictions, found.failures) == (1, 0, 0)


def test_held_time_is_starting_kept_and_lost():
    found = figures(preempted_job(), 100 * S)
    assert found.held_gpu_ms == found.starting_gpu_ms + found.kept_gpu_ms + found.lost_gpu_ms


def test_spares_are_held_but_do_not_work():
    """3 seats of 1 GPU, one of them a spare, for 10 s."""
    found = figures(job("j", 0, 3, [run(0, 0, 10, 3, nodes=("a", "b", "c"), spares=1)], 10), 10 * S)
    assert (found.held_gpu_ms, found.kept_gpu_ms) == (30 * S, 20 * S)


CAUSES = {
    "preempted for its priority": ("priority", "preempted", (1, 0, 0)),
    "asked to shrink": ("shrink", "preempted", (1, 0, 0)),
    "moved off a node": ("drain", "preempted", (0, 1, 0)),
    "cancelled": ("cancel", "cancelled", (0, 1, 0)),
    "over its limit": ("time_limit", "time_limit", (0, 1, 1)),
    "crashed": ("", "user_error", (0, 0, 1)),
    "repaired": ("", "node_lost", (0, 0, 1)),
    "done": ("", "", (0, 0, 0)),
}


@pytest.mark.parametrize(("cause", "failure", "counts"), CAUSES.values(), ids=CAUSES.keys())
def test_why_a_run_ended(cause, failure, counts):
    found = figures(job("j", 0, 1, [run(0, 0, 10, cause=cause, failure=failure)], 10), 10 * S)
    assert (found.preemptions, found.evictions, found.failures) == counts


def test_what_runs_at_the_end_counts_up_to_the_end():
    found = figures(job("j", 0, 1, [run(5, 10, None)]), 40 * S)
    assert (found.completion_ms, found.waited_ms, found.in_line_ms) == (None, 5 * S, 5 * S)
    assert (found.held_gpu_ms, found.kept_gpu_ms) == (35 * S, 30 * S)


def test_a_run_that_never_started_kept_nothing():
    assert kept_spell(run(5, None, 9), 20 * S) == (9 * S, 9 * S)
    found = figures(job("j", 0, 1, [run(5, None, 9)], 9), 20 * S)
    assert (found.starting_gpu_ms, found.kept_gpu_ms, found.busy_gpu_ms) == (4 * S, 0, 0)


@pytest.mark.parametrize(
    ("milli", "label"),
    [(0, "0"), (250, "1"), (1000, "1"), (1001, "2-7"), (7000, "2-7"), (8000, "8"), (63_000, "9-63"), (64_000, "64+")],
)
def test_size_classes(milli, label):
    assert size_class(milli) == label


# ---- distributions -------------------------------------------------------------------------------------------------


def test_percentiles_are_by_nearest_rank():
    found = distribution([15, 20, 35, 40, 50])
    assert found is not None
    assert (found.mean, found.p50, found.p95, found.p99, found.max) == (32, 35, 50, 50, 50)
    hundred = distribution(range(1, 101))
    assert hundred is not None
    assert (hundred.p50, hundred.p95, hundred.p99) == (50, 95, 99)
    assert distribution([]) is None


def test_jobs_that_are_not_over_or_were_cancelled_are_counted_but_in_no_distribution():
    measures = measure(
        history(
            job("done", 0, 1, [run(0, 0, 20)], 20),
            job("failed", 0, 1, [run(0, 0, 40, failure="user_error")], 40, outcome="failed"),
            job("cancelled", 0, 1, [run(0, 0, 90)], 90, outcome="cancelled"),
            job("running", 10, 1, [run(50, 50, None)]),
            job("waiting", 30, 1),
            end=100,
        )
    )
    total = measures.total
    assert (total.jobs, total.succeeded, total.failed, total.cancelled, total.unfinished) == (5, 1, 1, 1, 2)
    assert (total.never_started, total.oldest_in_line_ms) == (1, 70 * S)
    assert total.completion_ms is not None
    assert (total.completion_ms.count, total.completion_ms.mean) == (2, 30 * S)


def test_bounded_slowdown_takes_short_jobs_for_ten_seconds():
    """A job of 2 s that is done after 40 s: 40 / 10. One of 20 s done after 30 s: 30 / 20. One of 5 s at once: 1."""
    jobs = [
        job("short", 0, 1, [run(38, 38, 40)], 40),
        job("long", 0, 1, [run(10, 10, 30)], 30),
        job("quick", 0, 1, [run(0, 0, 5)], 5),
    ]
    work = {"short": 2, "long": 20, "quick": 5}
    trace = Trace("t", tuple(TraceJob(id=name, submit_ms=0, work_ms=s * S, gpus=1) for name, s in work.items()))
    found = measure(history(*jobs, end=40), trace).total.slowdown
    assert found is not None
    assert found.mean == pytest.approx((4 + 1.5 + 1) / 3)


def test_effective_training_time_is_what_was_kept_of_the_completion_time():
    assert measure(history(preempted_job(), end=100)).total.effective_time_ratio == pytest.approx(45 / 82)


# ---- the cluster ---------------------------------------------------------------------------------------------------


def test_uptime_and_utilisation_in_window_and_span():
    """4 GPUs; 2 held 10-35 (kept 15-30) and 50-82 (kept 52-82); submissions from 0 to 40; the run ends at 100."""
    other = job("k", 40, 1, [run(99, None, 100)], 100)
    cluster = measure(history(preempted_job(), other, end=100)).cluster
    assert cluster.utilisation_in_window == pytest.approx(2 * 25 / (4 * 40))
    assert cluster.uptime_in_window == pytest.approx(2 * 15 / (4 * 40))
    assert cluster.utilisation_in_span == pytest.approx((2 * 57 + 1) / (4 * 100))
    assert cluster.uptime_in_span == pytest.approx(2 * 45 / (4 * 100))
    assert cluster.uptime_while_waiting == pytest.approx(2 * 30 / (4 * 74))  # in line: 0-10, 35-50 and 40-99
    assert (cluster.makespan_ms, cluster.gpus_max) == (100 * S, 4)
    assert cluster.gpu_hours_in_span == pytest.approx(400 / H)


def test_what_sits_on_a_lost_node_is_no_use_of_the_others():
    """2 GPUs held from 0 to 20; half of the 4 are lost at 10, and all of them from 15 on."""
    found = history(job("j", 0, 2, [run(0, 0, 20, 2)], 20), job("k", 20, 1), end=20)
    found.capacity = [(0, 4000), (10, 1000), (15, 0)]
    cluster = measure(found).cluster
    assert cluster.utilisation_in_window == pytest.approx((2 * 10 + 1 * 5) / (4 * 10 + 1 * 5))


def test_fragmentation_is_the_free_part_of_used_nodes_while_work_waits():
    """Two nodes of 4. A gang waits from 10 to 20: 3 are free beside a GPU in use, 4 on the empty node."""
    small = job("s", 0, 1, [run(0, 0, 30, 1, "a1")], 30)
    large = job("l", 10, 8, [run(20, 20, 25, 1, "a2")], 25)
    found = measure(history(small, large, end=30, nodes={"a1": 4, "a2": 4})).cluster.fragmentation
    assert found == pytest.approx(3 / 7)


def test_no_one_waited_and_nothing_is_known_of_nodes():
    assert measure(history(job("j", 0, 1, [run(0, 0, 5)], 5), end=5)).cluster.fragmentation is None
    assert measure(history(job("j", 0, 1, [run(3, 3, 5)], 5), end=5, nodes={})).cluster.fragmentation is None


def test_energy_of_busy_and_idle_gpus():
    """4 GPUs for 2 h; 2 of them busy for 1 h: 2 GPU hours at 500 W and 6 at 100 W."""
    found = history(job("j", 0, 2, [run(0, 0, H, 2)], H), end=2 * H)
    energy = measure(found, power=Power(100, 500, 0.25)).energy
    assert energy is not None
    assert energy.kwh == pytest.approx(2 * 0.5 + 6 * 0.1)
    assert energy.cost == pytest.approx(1.6 * 0.25)
    assert energy.kwh_per_kept_gpu_hour == pytest.approx(1.6 / 2)
    assert measure(found).energy is None


# ---- fairness ------------------------------------------------------------------------------------------------------


def test_max_min_gives_to_the_modest_first():
    assert max_min([("a", 2, 1), ("b", 10, 1), ("c", 10, 1)], 12) == {"a": 2, "b": 5, "c": 5}
    assert max_min([("a", 10, 3), ("b", 10, 1)], 8) == {"a": 6, "b": 2}
    assert max_min([("a", 1, 1), ("b", 2, 1)], 8) == {"a": 1, "b": 2}


def test_jains_index():
    assert jain([1, 1, 1]) == 1
    assert jain([1, 0]) == pytest.approx(1 / 2)
    assert jain([0.5, 1]) == pytest.approx(1.5**2 / (2 * 1.25))
    assert jain([]) is None


def test_a_team_that_waits_while_another_has_everything():
    """4 GPUs, two teams that want 4 each from 0 to 10. One has all: it is owed 2, has 4; the other is owed 2, has 0."""
    greedy = job("g", 0, 4, [run(0, 0, 10, 4)], 10, team="greedy")
    patient = job("p", 0, 4, [run(10, 10, 20, 4)], 20, team="patient")
    last = job("z", 10, 1, team="late")
    shares = measure(history(greedy, patient, last, end=20)).shares
    assert shares.deficit == pytest.approx(2 / 4)
    assert shares.deviation == pytest.approx(2 / 4 + 2 / 4)
    assert shares.jain == pytest.approx(1 / 2)  # 4 of 4 wanted, 0 of 4 wanted; "late" wanted nothing yet
    assert shares.teams["greedy"].received == pytest.approx(1)
    assert shares.teams["patient"].deficit == pytest.approx(1 / 2)
    assert shares.teams["late"].received_of_wanted is None


def test_completion_in_a_cluster_of_ones_own():
    """2 GPUs: 10 s on 2; then 10 s on 1 starts at 10; one of 4 GPUs waits until 20 and takes twice its 5 s."""
    assert completion_alone([(0, 10, 2000), (0, 10, 1000), (5, 5, 4000)], 2000) == [10, 20, 25]
    assert completion_alone([(0, 10, 0), (3, 10, 0)], 0) == [10, 10]


def test_finish_time_ratio_compares_with_an_nth_of_the_cluster():
    """4 GPUs, two teams: 2 each. A job of 40 s on 4 GPUs would have taken 80 s there; here it took 60 s."""
    one = job("a", 0, 4, [run(20, 20, 60, 4)], 60, team="a")
    other = job("b", 0, 2, [run(0, 0, 20, 2)], 20, team="b")
    teams = measure(history(one, other, end=60)).teams
    ratios = {team: found.mean for team, group in teams.items() if (found := group.finish_time_ratio) is not None}
    assert ratios == pytest.approx({"a": 60 / 80, "b": 1})


# ---- groups and edges ----------------------------------------------------------------------------------------------


def test_refused_jobs_are_those_that_were_due_and_have_no_record():
    """The engine's clock runs 100 s ahead of the workload's; what is due after the end was never submitted."""
    jobs = [("kept", 0, 1, "x"), ("refused", 5, 64, "y"), ("later", 50, 1, "x")]
    trace = Trace("t", tuple(TraceJob(id=i, submit_ms=s * S, work_ms=S, gpus=g, team=t) for i, s, g, t in jobs))
    measures = measure(history(job("kept", 100, 1, [run(100, 100, 101)], 101, team="x"), end=110), trace)
    assert measures.total.refused == 1
    assert {team: group.refused for team, group in measures.teams.items()} == {"x": 0, "y": 1}
    assert {size: (group.jobs, group.refused) for size, group in measures.sizes.items()} == {"1": (1, 0), "64+": (0, 1)}


EDGES = {
    "nothing at all": history(end=0, nodes={}),
    "no jobs": history(end=50),
    "one job": history(job("j", 5, 1, [run(6, 7, 8)], 8), end=8),
    "nothing finished": history(job("j", 0, 1), job("k", 3, 1, [run(4, None, None)]), end=9),
    "runs of no length": history(job("j", 3, 1, [run(3, 3, 3)], 3), end=3),
    "no GPUs asked for": history(job("j", 0, 0, [run(1, 1, 5, 0)], 5), end=5),
    "a cluster without GPUs": history(job("j", 0, 0, [run(1, 1, 5, 0)], 5), end=5, nodes={"c": 0}),
}


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES.keys())
def test_there_is_always_an_answer_and_it_can_be_written_and_read(edge):
    measures = measure(edge, power=Power(1, 2, 3))
    assert msgspec.json.decode(msgspec.json.encode(measures), type=Measures) == measures


def test_all_jobs_refused():
    trace = Trace("t", (TraceJob(id="j", submit_ms=0, work_ms=S, gpus=9999),))
    measures = measure(history(end=50), trace)
    assert (measures.total.jobs, measures.total.refused) == (0, 1)
    assert measures.cluster.uptime_in_window is None
