"""Nodes of Kubernetes as nodes of Corral: documents in, nodes and their health out."""

from __future__ import annotations

from typing import Any

import pytest

from corral.core.cluster.resources import amount_of
from corral.core.cluster.topology import NodeSpec
from corral.core.model import Health
from corral.kubernetes.node_inventory import (
    PodRequest,
    gpu_conditions,
    is_fenced,
    node_condition,
    node_spec,
    quantity,
    quota_gpus,
    request_of_pod,
)
from corral.wire.pods.pod_settings import PodSettings

GPU = "nvidia.com/gpu"
SITE = PodSettings(topology=("topology.kubernetes.io/zone", "rack"))


def node(**spec: Any) -> dict[str, Any]:
    labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559", "rack": "r1"}
    allocatable = {"cpu": "63500m", "memory": "500Gi", GPU: "2"}
    ready = [{"type": "Ready", "status": "True"}]
    addresses = [{"type": "InternalIP", "address": "10.0.0.7"}]
    return {
        "metadata": {"name": "n1", "labels": labels},
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": ready, "addresses": addresses},
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [("500m", 0.5), ("16", 16), ("1.5Gi", 1.5 * (1 << 30)), ("2k", 2000), ("1e3", 1000), (8, 8), ("", 0), ("x", 0),
     ("-1", 0), (None, 0), ("1Zi", 0)],
)  # fmt: skip
def test_quantities(text: object, value: float):
    assert quantity(text) == value


def test_a_node_less_what_others_request():
    found = node_spec(node(), [PodRequest(0, 1_500, 1_024), PodRequest(1, 2_000, 0)], SITE)
    assert found.path == ("unplaced", "r1")
    assert found.address == "10.0.0.7"
    assert [(gpu.model, gpu.vram_mib) for gpu in found.gpus] == [("H100", 81_559)] * 2
    assert amount_of(found.amounts, "cpu_milli") == 60_000
    assert amount_of(found.amounts, "memory_mib") == 511_000 - 24


def test_a_pod_has_the_sum_of_its_containers_or_its_largest_init_container():
    def container(cpu: str, gpus: int) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}, "limits": {GPU: gpus, "memory": "1Gi"}}}

    pod = {"spec": {"containers": [container("500m", 1), container("1", 2)], "initContainers": [container("4", 1)]}}
    assert request_of_pod(pod, GPU) == PodRequest(3, 4_000, 2_048)
    assert request_of_pod({}, GPU) == PodRequest()


@pytest.mark.parametrize(
    ("spec", "health", "why"),
    [
        ({}, Health.HEALTHY, ""),
        ({"unschedulable": True}, Health.SUSPECT, "cordoned"),
        ({"taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}]}, Health.SUSPECT, "taint a=b:NoSchedule"),
        ({"taints": [{"key": "a", "effect": "NoExecute"}]}, Health.DRAINING, "taint a=:NoExecute"),
        ({"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}, Health.HEALTHY, ""),
        ({"taints": [{"key": "gpu", "effect": "NoSchedule"}]}, Health.HEALTHY, ""),  # tolerated by the template
    ],
)
def test_health_of_a_node(spec: dict[str, Any], health: Health, why: str):
    site = PodSettings(template=(("spec", {"tolerations": [{"key": "gpu", "operator": "Exists"}]}),))
    found = node_condition(node(**spec), site)
    assert (found.health, found.why) == (health, why)


@pytest.mark.parametrize("ready", ["False", "Unknown"])
def test_a_node_that_is_not_ready_drains(ready: str):
    silent = node()
    silent["status"]["conditions"] = [{"type": "Ready", "status": ready, "message": "Kubelet stopped posting"}]
    found = node_condition(silent, SITE)
    assert (found.health, found.why) == (Health.DRAINING, "NotReady: Kubelet stopped posting")


def test_only_the_taint_for_it_fences_a_node():
    assert not is_fenced(node(taints=[{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]))
    assert is_fenced(node(taints=[{"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}]))


def test_gpus_of_resource_slices_of_the_newest_generation():
    def slice_of(generation: int, *names: str, driver: str = "gpu.nvidia.com", on: str = "n1") -> dict[str, Any]:
        devices = [
            {
                "name": name,
                "attributes": {
                    "uuid": {"string": f"GPU-{name}"}, "productName": {"string": "NVIDIA A100-SXM4-80GB"},
                    "type": {"string": "gpu"},
                },
                "capacity": {"memory": {"value": "80Gi"}},
            }
            for name in names
        ]  # fmt: skip
        pool = {"name": on, "generation": generation}
        return {"spec": {"driver": driver, "nodeName": on, "pool": pool, "devices": devices}}

    slices = [
        slice_of(1, "old"),
        slice_of(2, "b", "a"),
        slice_of(1, "nic", driver="net.example"),
        slice_of(1, "c", on="n2"),
    ]
    found = node_spec(node(), (), PodSettings(resource_slices=True), slices)
    assert [(gpu.uuid, gpu.model, gpu.vram_mib) for gpu in found.gpus] == [
        ("GPU-a", "A100", 81_920), ("GPU-b", "A100", 81_920),
    ]  # fmt: skip
    assert len(node_spec(node(), (), PodSettings(), slices).gpus) == 2, "without the setting, those of the resource"


def test_the_last_free_gpus_are_taken_by_others_and_those_of_tasks_are_not():
    specs = {"n1": node_spec(node(), (), SITE)}
    assert list(gpu_conditions(specs, {"n1": 1}, {"n1": [1]}, None)) == [("n1", 0)]
    assert list(gpu_conditions(specs, {"n1": 2}, {"n1": [1]}, None)) == [("n1", 0)], "the other is a task's own"
    assert gpu_conditions(specs, {}, {}, None) == {}


def test_a_quota_takes_out_what_it_does_not_allow():
    specs: dict[str, NodeSpec] = {name: node_spec(node(), (), SITE) for name in ("n1", "n2")}
    found = gpu_conditions(specs, {"n2": 1}, {"n1": [0]}, (2, "small"))
    whys = {place: condition.why for place, condition in found.items()}
    assert whys == {
        ("n2", 1): "used by pods that are not Corral's",
        ("n2", 0): "the ResourceQuota small allows no more GPUs",
    }
    quotas = [
        {"metadata": {"name": name}, "spec": {"hard": {f"requests.{GPU}": hard}}}
        for name, hard in (("a", "8"), ("b", "4"))
    ]
    assert quota_gpus(quotas, GPU) == (4, "b")
    assert quota_gpus([], GPU) is None
