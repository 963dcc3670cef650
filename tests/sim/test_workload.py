"""From the jobs of a trace to what is submitted."""

from __future__ import annotations

import pytest

from corral.core.cluster.resources import GPU_MILLI
from corral.sim.cluster_spec import build_cluster
from corral.sim.traces.trace import Trace, TraceJob, TraceNodes
from corral.sim.workload import ESTIMATES, HOUR_MS, SubmissionTerms, arrivals_of, demand_of, queues_of
from tests.sim.runs import cluster

EIGHTS = cluster("4x8")


def asked(gpus: int, **more: object) -> TraceJob:
    return TraceJob(**{"id": "a", "submit_ms": 5, "work_ms": 1_000, "gpus": gpus, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpus", "whole_nodes", "tasks", "each"),
    [
        (1, False, 1, 1),
        (8, False, 1, 8),
        (16, False, 2, 8),
        (12, False, 3, 4),
        (9, False, 9, 1),
        (12, True, 2, 8),
        (0, False, 1, 0),
    ],
)
def test_a_job_is_one_task_where_it_can_be_and_equal_tasks_where_not(
    gpus: int, whole_nodes: bool, tasks: int, each: int
) -> None:
    demand = demand_of(asked(gpus), EIGHTS, whole_nodes)
    assert (demand.tasks, demand.task.gpus) == (tasks, each)


def test_a_part_of_a_gpu_is_a_slice_of_the_smallest() -> None:
    machines = build_cluster([TraceNodes(1, 1, "big", 80_000), TraceNodes(1, 1, "small", 24_000)])
    assert demand_of(asked(1, gpu_milli=250), machines).task.slice_mib == 6_000


def test_other_amounts_are_asked_for_where_the_cluster_knows_them() -> None:
    job = asked(16, cpu_milli=32_000, memory_mib=1_001)
    known = build_cluster([TraceNodes(2, 8, cpu_milli=64_000, memory_mib=9_000)])
    assert dict(demand_of(job, known).task.amounts) == {"cpu_milli": 16_000, "memory_mib": 501}
    assert demand_of(job, EIGHTS).task.amounts == ()


def test_estimates() -> None:
    job = asked(1, work_ms=HOUR_MS + 1, limit_ms=5 * HOUR_MS)
    said = {name: None if estimate is None else estimate(job) for name, estimate in ESTIMATES.items()}
    assert said == {"exact": HOUR_MS + 1, "hours": 2 * HOUR_MS, "stated": 5 * HOUR_MS, "none": None}


def test_a_stated_limit_is_believed_and_enforced_only_when_asked() -> None:
    trace = Trace("t", (asked(1, limit_ms=HOUR_MS),))
    assert arrivals_of(trace, EIGHTS)[0].spec.time_limit_ms is None
    assert arrivals_of(trace, EIGHTS, SubmissionTerms(ends_at_limit=True))[0].spec.time_limit_ms == HOUR_MS


def test_teams_are_queues_and_a_name_is_never_a_path() -> None:
    trace = Trace("t", (asked(1, team="a/b"), asked(1, id="b", team=""), asked(1, id="c", team="red")))
    queues = queues_of(trace, time_share=3, guarantees={"red": 4})
    assert [queue.name for queue in queues] == ["a-b", "all", "red"]
    assert [dict(queue.guarantee) for queue in queues] == [{}, {}, {GPU_MILLI: 4_000}]
    assert {queue.time_share for queue in queues} == {3}
    assert [arrival.spec.queue for arrival in arrivals_of(trace, EIGHTS)] == ["a-b", "all", "red"]


def test_a_workload_that_begins_at_0_begins_a_second_later():
    jobs = tuple(TraceJob(id=f"j{at}", submit_ms=at * 5_000, work_ms=1, gpus=1) for at in range(3))
    assert [each.at_ms for each in arrivals_of(Trace("t", jobs), EIGHTS)] == [1_000, 6_000, 11_000]
    assert [each.at_ms for each in arrivals_of(Trace("t", jobs[1:]), EIGHTS)] == [5_000, 10_000]
