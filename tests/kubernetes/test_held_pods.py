"""Placeholders of suspended Jobs: what their pods request and say, and what pods with their seats have of a node."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from corral.core.cluster.resources import amount_of
from corral.core.model import Health
from corral.kubernetes.held_pods import HELD_BY, HOLDS, PLACEHOLDER, SEAT, HeldSeat, held_by_pod, seat_of
from corral.kubernetes.node_inventory import PodRequest, request_of_pod
from corral.kubernetes.node_keeper import NodeKeeper
from corral.kubernetes.pod_names import ATTEMPT
from corral.kubernetes.pod_spec import pod_of, refusal_of
from corral.runtime.base import HealthReport, TaskKey, TaskOrder
from corral.wire.pods.pod_settings import EXACT, PodSettings
from tests.runtime.reports import order

GPU = "nvidia.com/gpu"
KEY = TaskKey("17/main", 2, 1)
SETTINGS = PodSettings(supervisor_image="corral:1")
GPUS = tuple(f"n1/{GPU}/{n}" for n in range(4))


def placeholder(**more: Any) -> TaskOrder:
    env = (("CORRAL_QUEUE", "lab"), (PLACEHOLDER, "1"))
    plain = order(KEY, "sleep", "9", gpus=GPUS, env=env, cpu_milli=8_000, memory_mib=4_096)
    return structs.replace(plain, **more)


def pod_for(given: TaskOrder, settings: PodSettings = SETTINGS) -> Any:
    return pod_of(given, settings, "jobs", {"name": "owner"})


def test_a_placeholder_requests_nothing_and_says_what_it_holds():
    pod = pod_for(placeholder(processes=()))
    assert request_of_pod(pod, GPU) == PodRequest()
    (container,) = pod["spec"]["containers"]
    assert GPU not in str(container["resources"])
    assert container["image"] == "corral:1"
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]
    assert held_by_pod(pod) == PodRequest(4, 8_000, 4_096)
    assert refusal_of(placeholder(), SETTINGS) == ""


def test_other_tasks_have_what_they_hold_themselves():
    pod = pod_for(placeholder(env=((PLACEHOLDER, "0"),), image="train"))
    assert request_of_pod(pod, GPU) == PodRequest(4, 8_000, 4_096)
    assert held_by_pod(pod) is None
    assert "give the job an image" in refusal_of(placeholder(env=()), SETTINGS)


def test_gpus_that_kubernetes_does_not_choose_are_not_held_for_its_pods():
    exact = structs.replace(SETTINGS, gpus=EXACT)
    assert "need gpus: device-plugin" in refusal_of(placeholder(), exact)
    assert refusal_of(placeholder(gpus=()), exact) == ""
    assert pod_for(placeholder(gpus=()), exact)["spec"]["containers"][0]["env"][0]["value"] == "void"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", "[" * 100_000, '{"gpus": 4}', '{"gpus": -1, "cpu_milli": 0, "memory_mib": 0}',
     '{"gpus": true, "cpu_milli": 0, "memory_mib": 0}', '{"gpus": 1e99, "cpu_milli": 0, "memory_mib": 0}'],
    ids=["none", "cut", "list", "number", "deep", "part", "negative", "flag", "large"],
)  # fmt: skip
def test_what_a_pod_says_of_its_seat_is_read_with_care(text: str):
    assert held_by_pod({"metadata": {"annotations": {HOLDS: text}}}) is None


@pytest.mark.parametrize("marks", [{}, {HELD_BY: ""}, {SEAT: ""}, {SEAT: "x"}, {ATTEMPT: "9" * 60}, {ATTEMPT: "-1"}])
def test_labels_that_name_no_seat(marks: dict[str, str]):
    labels = {HELD_BY: "17", ATTEMPT: "2", SEAT: "1"}
    assert seat_of({"metadata": {"labels": labels}}) == KEY
    changed = {**labels, **marks} if marks else {}
    assert seat_of({"metadata": {"labels": changed}}) is None


# --- what is left of a node -------------------------------------------------------------------------------------------


def held_pod(uid: str, gpus: int = 4, cpu: str = "1", marks: dict[str, str] | None = None) -> dict[str, Any]:
    labels = {HELD_BY: "17", ATTEMPT: "2", SEAT: "1"} | (marks or {})
    container = {"resources": {"requests": {"cpu": cpu}, "limits": {GPU: str(gpus)}}}
    return {
        "metadata": {"uid": uid, "namespace": "vision", "labels": labels},
        "spec": {"nodeName": "n1", "containers": [container]},
    }


def taken(*pods: dict[str, Any], seats: dict[TaskKey, HeldSeat] | None = None) -> tuple[int, int]:
    """How many of the 8 GPUs of node n1 are marked, and how many thousandths of CPUs it has left of 64,000."""
    keeper = NodeKeeper(SETTINGS)
    allocatable = {"cpu": "64", "memory": "64Gi", GPU: "8"}
    status = {"allocatable": allocatable, "conditions": [{"type": "Ready", "status": "True"}]}
    keeper.nodes["n1"] = {"metadata": {"name": "n1"}, "status": status}
    keeper.seats = {KEY: HeldSeat("n1", PodRequest(4, 8_000, 4_096))} if seats is None else seats
    for pod in pods:
        keeper.note_other(pod)
    reports = keeper.review({"n1": (set(GPUS) if keeper.seats else set(), True)}, {})
    marked = [each for each in reports if isinstance(each, HealthReport) and each.health is Health.SUSPECT]
    (spec,) = keeper.specs()
    return len(marked), amount_of(spec.amounts, "cpu_milli") or 0


def test_a_pod_on_the_seat_that_is_held_for_it_takes_nothing_more():
    assert taken() == (0, 64_000)
    assert taken(held_pod("a")) == (0, 64_000)


@pytest.mark.parametrize(
    ("pod", "left"),
    [
        (held_pod("a", marks={HELD_BY: "18"}), (4, 63_000)),  # a job that is not there
        (held_pod("a", marks={ATTEMPT: "1"}), (4, 63_000)),
        (held_pod("a", marks={SEAT: "0"}), (4, 63_000)),
        (held_pod("a", gpus=7), (3, 64_000)),  # more than the seat
        (held_pod("a", cpu="10"), (0, 62_000)),
    ],
    ids=["job", "attempt", "seat", "gpus", "cpus"],
)
def test_a_label_hides_no_more_than_the_seat_that_it_names(pod: dict[str, Any], left: tuple[int, int]):
    assert taken(pod) == left


def test_a_seat_counts_for_one_pod_and_on_its_own_node_alone():
    assert taken(held_pod("a"), held_pod("b", gpus=3)) == (3, 64_000)
    assert taken(held_pod("a", gpus=1), held_pod("b", gpus=4)) == (1, 64_000), "no more than the seat, together"
    elsewhere = {KEY: HeldSeat("n2", PodRequest(4, 8_000, 4_096))}
    assert taken(held_pod("a"), seats=elsewhere) == (4, 63_000)


def test_a_pod_whose_placeholder_has_ended_is_one_of_others():
    assert taken(held_pod("a"), seats={}) == (4, 63_000)
