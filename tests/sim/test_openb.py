"""The placement experiment on openb: its terms on small workloads, and recorded decisions where they are available."""

from random import Random

import pytest

from corral.core import events as e
from corral.core.cluster.resources import CPU_MILLI, TaskDemand
from corral.sim.research.openb_placement import (
    drawn,
    gpu_milli_of,
    nodes_of,
    published,
    read_order,
    recorded,
    replay,
    typical_tasks,
)
from corral.sim.traces.catalog import open_trace
from corral.sim.traces.trace import Trace, TraceJob, TraceNodes
from tests.sim.traces.files import PUBLIC, needs_public_traces, written

DECISIONS = 600


def pod(
    name: str, gpus: int = 0, gpu_milli: int = 1000, cpu_milli: int = 1000, models: tuple[str, ...] = ()
) -> TraceJob:
    return TraceJob(
        id=name,
        submit_ms=0,
        work_ms=0,
        gpus=gpus,
        gpu_milli=gpu_milli,
        cpu_milli=cpu_milli,
        memory_mib=1,
        models=models,
    )


NODES = (TraceNodes(2, 2, "T4", 0, 8_000, 1_024, ("a", "b")), TraceNodes(1, 0, "", 0, 8_000, 1_024, ("c",)))
PODS = (pod("half", 1, 500), pod("also-half", 1, 500), pod("two", 2), pod("cpu"), pod("big", 1, cpu_milli=9_000))
TRACE = Trace("small", PODS, NODES)


def test_pods_that_do_not_fit_at_once_have_failed_and_take_nothing():
    journal: list[e.Event] = []
    pods = [*PODS, pod("more", 2), pod("last", 1), pod("other", 1, models=("A100",))]
    found = list(replay(pods, nodes_of(TRACE, "cba"), published("BestFit", TRACE), journal.extend))
    assert [arrived.is_placed for arrived in found] == [True, True, True, True, False, False, True, False]
    assert [arrived.used_gpu_milli for arrived in found] == [500, 1000, 3000, 3000, 3000, 3000, 4000, 4000]
    assert [arrived.asked_gpu_milli for arrived in found] == [500, 1000, 3000, 3000, 4000, 6000, 7000, 8000]
    assert [event.job for event in journal if isinstance(event, e.JobCancelled)] == ["more"]
    placed = [event for event in journal if isinstance(event, e.GangPlaced)]
    seats = {event.gang.partition("/")[0]: event.seats[0].node for event in placed}
    # the one without GPUs has 97 points on a as well: of equal nodes the first
    assert seats == {"half": "1-b", "also-half": "1-b", "two": "2-a", "cpu": "0-c", "last": "1-b"}


def test_pods_are_shuffled_and_then_cloned_until_enough_has_arrived():
    trace = Trace("small", PODS[:4], NODES)
    pods = drawn(trace, Random(1))
    assert sorted(each.id for each in pods[:4]) == sorted(each.id for each in PODS[:4])
    assert all("-tuned-" in each.id for each in pods[4:])
    assert len({each.id for each in pods}) == len(pods)
    asked = sum(map(gpu_milli_of, pods))
    assert 4_000 * 1.3 - 1000 < asked <= 4_000 * 1.3 + 1000
    assert drawn(trace, Random(1)) == pods


def test_typical_tasks_are_the_most_frequent_kinds_up_to_a_part_of_all():
    pods = [pod(f"half-{n}", 1, 500) for n in range(60)]
    pods += [pod(f"cpu-{n}", models=()) for n in range(36)]
    pods += [pod(f"rare-{n}", 8, models=("A100", "T4")) for n in range(4)]
    cpu = ((CPU_MILLI, 1000),)
    assert typical_tasks(pods) == [(TaskDemand(slice_mib=500, amounts=cpu), 60), (TaskDemand(amounts=cpu), 36)]


def test_an_order_names_clones_by_the_pod_they_are_of(tmp_path):
    order = read_order(TRACE, written(tmp_path, "order.txt.gz", "two", "half", "two-tuned-0"))
    assert [(each.id, each.gpus, each.gpu_milli) for each in order] == [
        ("two", 2, 1000),
        ("half", 1, 500),
        ("two-tuned-0", 2, 1000),
    ]


def test_a_score_that_was_not_published_is_an_error():
    with pytest.raises(ValueError, match="BestFit"):
        published("Worst", TRACE)


@needs_public_traces
@pytest.mark.parametrize("name", ["GpuPacking", "BestFit", "FGD"])
def test_the_first_decisions_are_those_on_record(name):
    found, on_record = recorded(open_trace("openb:default", PUBLIC), PUBLIC / "openb", name, DECISIONS)
    assert len(found) == DECISIONS
    assert found == on_record
