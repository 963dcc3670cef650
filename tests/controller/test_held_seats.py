"""From a Job to the document that holds its seats, and from seats to pods."""

from __future__ import annotations

from typing import Any

import pytest

from corral.controller.held_seats import (
    GATE,
    BadJob,
    admit_patch,
    free_seats,
    held_document,
    quantity_milli,
    seat_patch,
)
from corral.kubernetes.held_pods import SEAT
from corral.wire.api.jobs import SeatView
from corral.wire.job.parse import parse_job
from tests.controller.controller_site import suspended_job


@pytest.mark.parametrize(
    ("stated", "milli"),
    [
        ("500m", 500), ("2", 2000), (3, 3000), ("1.5", 1500), ("0.1m", 1), ("1k", 10**6), ("1e3", 10**6),
        ("64Gi", 64 * 1000 << 30), ("1Ki", 1024_000), ("1.5Mi", 1_572_864_000), ("2G", 2 * 10**12), ("0", 0),
        ("9007199254740993", 9007199254740993000),
    ],
)  # fmt: skip
def test_quantities_of_kubernetes_are_read_exactly(stated, milli):
    assert quantity_milli(stated) == milli


@pytest.mark.parametrize("stated", ["", "m", "1x", "-1", "nan", "inf", "1e99", "1Gii", "1 G", None, {}])
def test_what_is_no_quantity_is_refused(stated):
    with pytest.raises(BadJob, match="is not an amount"):
        quantity_milli(stated)


def test_the_document_is_one_that_corral_accepts_and_holds_what_the_pods_request():
    job = suspended_job("ns", "train", "true", gpus=2, parallelism=8, completions=4, grace_s=60,
                        notes={"corral.dev/options": '{"within": "rack", "time_limit": "2h"}'})  # fmt: skip
    document = held_document(job, "lab", "corral:1")
    spec = parse_job(document)
    assert not isinstance(spec, list), spec
    demand = spec.gangs[0].demand
    assert (demand.tasks, demand.task.gpus, demand.within) == (4, 2, "rack")
    assert dict(demand.task.amounts) == {"cpu_milli": 1000, "memory_mib": 64}
    assert (spec.time_limit_ms, spec.grace_ms, spec.name) == (7_200_000, 65_000, "train")
    assert spec.gangs[0].work is not None
    assert spec.gangs[0].work.launch == "first"
    assert spec.gangs[0].work.rerun_after_exit_0 is False


@pytest.mark.parametrize(
    ("options", "text"),
    [("{", "is not JSON"), ("[" * 100_000, "is not JSON"), ("[]", "not a mapping"), ('{"env": {}}', "may not set env")],
    ids=["cut", "deep", "list", "key"],
)
def test_options_are_checked(options, text):
    with pytest.raises(BadJob, match=text):
        held_document(suspended_job("ns", "x", "true", notes={"corral.dev/options": options}), "lab")


def test_a_job_without_pods_is_refused():
    with pytest.raises(BadJob, match="parallelism is 0"):
        held_document(suspended_job("ns", "x", "true", parallelism=0), "lab")


def test_each_pod_gets_a_seat_that_no_other_has():
    seats = [SeatView(2, "b"), SeatView(0, "a"), SeatView(1, "a")]
    pods: list[Any] = [{"metadata": {"labels": {SEAT: "0"}}}, {"metadata": {}}]
    assert [seat.task for seat in free_seats(seats, pods)] == [1, 2]


def test_a_pod_is_bound_and_let_through_in_one_patch_that_keeps_what_it_has():
    gates = [{"name": "other"}, {"name": GATE}]
    pod = {
        "metadata": {"uid": "u", "labels": {"a": "b"}},
        "spec": {"schedulingGates": gates, "nodeSelector": {"c": "d"}},
    }
    patch = seat_patch(pod, SeatView(3, "n1"), "host")
    assert patch[0] == {"op": "test", "path": "/metadata/uid", "value": "u"}
    assert {each["path"]: each.get("value") for each in patch[2:]} == {
        "/spec/nodeSelector": {"c": "d", "host": "n1"},
        "/metadata/labels": {"a": "b", SEAT: "3"},
        "/spec/schedulingGates/1": None,
    }


def test_a_job_is_admitted_with_one_gate_beside_those_it_has():
    template = {"spec": {"schedulingGates": [{"name": GATE}, {"name": "other"}]}}
    patch = admit_patch({"metadata": {"resourceVersion": "7"}, "spec": {"template": template}}, "12", 3)
    assert patch["metadata"] == {"resourceVersion": "7"}
    assert patch["spec"]["suspend"] is False
    assert patch["spec"]["template"]["spec"]["schedulingGates"] == [{"name": "other"}, {"name": GATE}]
