"""The table of failures in docs/operate/on-kubernetes.md: one test for each row, on the real API server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from corral.core.model import FailureClass, Health
from corral.kubernetes.pod_backend import PodBackend
from corral.runtime.base import HealthReport, NodePhase, NodeReport, Phase, StaleEpoch, TaskKey, TaskOrder, TaskReport
from corral.wire.pods.pod_settings import BINDING, PodSettings
from tests.kubernetes.breaking_proxy import BUSY, DROP, LOSE, PASS, BreakingProxy
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.pods import pods_namespace, settings_for
from tests.runtime.reports import Collector, order, until

KEY = TaskKey("5/main", 1, 0)


class Bench:
    """One namespace, and backends on it that may go through a proxy."""

    def __init__(self, plane: ControlPlane, namespace: str, folder: Path) -> None:
        self.plane, self.namespace, self.folder = plane, namespace, folder
        self.settings = settings_for(plane, namespace, folder)
        self.proxy = BreakingProxy(plane, folder)
        self.heard = Collector()
        self.backends: list[PodBackend] = []
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def open(self, epoch: int = 1, **more: Any) -> PodBackend:
        settings: PodSettings = structs.replace(self.settings, **more)
        backend = PodBackend(self.folder / "server", settings)
        backend.open(self.heard, epoch)
        self.backends.append(backend)
        return backend

    def through_proxy(self, **more: Any) -> PodBackend:
        return self.open(kubeconfig=str(self.proxy.kubeconfig), **more)

    def pods(self) -> list[Any]:
        found: list[Any] = self.plane.json("GET", self.path)["items"]
        return found

    def pod(self) -> Any:
        (found,) = self.pods()
        return found

    def delete(self, pod: Any, grace_s: int) -> None:
        self.plane.call("DELETE", f"{self.path}/{pod['metadata']['name']}", {"gracePeriodSeconds": grace_s})

    def has_health(self, node: str, gpu: int | None, health: Health, why: str = "") -> bool:
        found = [
            each for each in self.heard.heard if isinstance(each, HealthReport) and (each.node, each.gpu) == (node, gpu)
        ]
        return bool(found) and found[-1].health is health and why in found[-1].why

    def clean(self) -> None:
        self.proxy.rule = lambda *_: PASS
        for backend in self.backends:
            backend.close()
        self.proxy.close()


@pytest.fixture
def bench(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Bench]:
    with pods_namespace(control_plane) as namespace:
        bench = Bench(control_plane, namespace, tmp_path)
        yield bench
        bench.clean()


def task(script: str, key: TaskKey = KEY, node: str = "node-1", gpus: int = 0, **more: Any) -> TaskOrder:
    names = tuple(f"{node}/nvidia.com/gpu/{n}" for n in range(gpus))
    return structs.replace(order(key, "sh", "-c", script, gpus=names, **more), node=node)


def forever(folder: Path) -> str:
    """Writes its process id again and again, so that two at once are noticed."""
    return f"while :; do echo $$ >> {folder}/alive; sleep 0.1; done"


def alive(folder: Path) -> set[str]:
    """Which processes have written within half a second."""
    file = folder / "alive"
    before = file.stat().st_size if file.exists() else 0
    time.sleep(0.5)
    return set(file.read_bytes()[before:].decode().split()) if file.exists() else set()


def plain(plane: ControlPlane, namespace: str, name: str, node: str, gpus: int) -> None:
    """A pod that is not Corral's."""
    restricted = {
        "allowPrivilegeEscalation": False, "runAsNonRoot": True, "runAsUser": 1000, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }  # fmt: skip
    container = {
        "name": "c", "image": "any", "command": ["sleep", "600"], "securityContext": restricted,
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }  # fmt: skip
    spec = {"nodeName": node, "containers": [container], "automountServiceAccountToken": False}
    plane.call("POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": name}, "spec": spec})


# --- answers ----------------------------------------------------------------------------------------------------------


def lost_once(method: str, part: str) -> Callable[[str, str], str]:
    done: list[str] = []

    def rule(asked: str, path: str) -> str:
        if asked == method and part in f"{path}/" and "watch=" not in path and not done:
            done.append(path)
            return LOSE
        return PASS

    return rule


def test_an_answer_lost_after_a_create_makes_no_second_pod(bench: Bench):
    backend = bench.through_proxy()
    bench.proxy.rule = lost_once("POST", "/pods/")
    backend.launch([task(forever(bench.folder))])
    bench.heard.up(KEY)
    assert len(bench.pods()) == 1
    assert sum(method == "POST" and path.endswith("/pods") for method, path, _ in bench.proxy.seen) <= 2
    assert len(alive(bench.folder)) == 1


def test_an_answer_lost_after_a_delete_leaves_no_pod(bench: Bench):
    backend = bench.through_proxy()
    backend.launch([task("exit 0")])
    bench.heard.down(KEY)
    bench.proxy.rule = lost_once("DELETE", "/pods/")
    backend.forget(KEY)
    until(lambda: backend.known() == [] and bench.pods() == [])


def test_others_delete_a_pod_whose_answer_was_lost(bench: Bench):
    """It is not made a second time: the task is reported as lost, once."""
    backend = bench.through_proxy()
    done: list[str] = []

    def rule(method: str, path: str) -> str:
        if method == "POST" and path.endswith("/pods") and not done:
            done.append(path)
            return LOSE
        if done and method != "POST" and len(done) == 1 and bench.pods():
            done.append("deleted")
            bench.delete(bench.pod(), 0)
        return PASS

    bench.proxy.rule = rule
    backend.launch([task(forever(bench.folder))])
    until(lambda: bool(bench.pods()) or bool(done))
    with_pod = [pod for pod in bench.pods() if "deletionTimestamp" not in pod["metadata"]]
    if with_pod and len(done) == 1:
        done.append("deleted")
        bench.delete(with_pod[0], 0)
    down = bench.heard.down(KEY)
    assert down.failure is FailureClass.NODE_LOST
    until(lambda: bench.pods() == [])


def test_answers_of_429_are_respected_and_all_pods_made(bench: Bench):
    backend = bench.through_proxy()
    asked: list[float] = []

    def rule(method: str, path: str) -> str:
        if method == "POST" and path.endswith("/pods"):
            asked.append(time.monotonic())
            return BUSY if len(asked) <= 2 else PASS
        return PASS

    bench.proxy.rule = rule
    backend.launch([task("exit 0", TaskKey("5/main", 1, n)) for n in range(4)])
    for n in range(4):
        assert bench.heard.down(TaskKey("5/main", 1, n)).exit_code == 0
    assert max(asked) - min(asked) >= 1, "Retry-After was one second"


# --- the API server ---------------------------------------------------------------------------------------------------


def test_the_api_server_is_away_for_a_while(bench: Bench, control_plane: ControlPlane):
    """What runs goes on; what was ordered meanwhile starts afterwards; an end meanwhile is reported afterwards."""
    backend = bench.open()
    ends, later = TaskKey("6/main", 1, 0), TaskKey("7/main", 1, 0)
    backend.launch(
        [task(forever(bench.folder)), task(f"until [ -e {bench.folder}/end ]; do sleep 0.1; done; exit 3", ends)]
    )
    bench.heard.up(KEY)
    bench.heard.up(ends)
    control_plane.kill("apiserver")
    backend.launch([task("exit 4", later)])
    (bench.folder / "end").touch()
    time.sleep(3)
    assert len(alive(bench.folder)) == 1
    assert not [each for each in bench.heard.heard if isinstance(each, TaskReport) and each.phase is Phase.DOWN]
    control_plane.restart("apiserver")
    assert bench.heard.down(ends).exit_code == 3
    assert bench.heard.down(later).exit_code == 4
    assert len(alive(bench.folder)) == 1
    backend.kill(KEY)
    assert bench.heard.down(KEY).signal == 9
    assert alive(bench.folder) == set()


def test_a_watch_that_is_cut_misses_nothing(bench: Bench):
    backend = bench.through_proxy()
    keys = [TaskKey(f"{n}/main", 1, 0) for n in range(3)]
    for key in keys:
        bench.proxy.cut()
        backend.launch([task("exit 5", key)])
        bench.proxy.cut()
        assert bench.heard.down(key).exit_code == 5
    assert sum(isinstance(each, TaskReport) for each in bench.heard.heard) == 2 * len(keys)


def test_a_pod_that_ends_while_versions_are_compacted(bench: Bench, control_plane: ControlPlane):
    backend = bench.through_proxy()
    backend.launch([task(f"until [ -e {bench.folder}/end ]; do sleep 0.1; done; exit 6")])
    bench.heard.up(KEY)
    bench.proxy.rule = lambda method, path: DROP
    bench.proxy.cut()
    (bench.folder / "end").touch()
    until(lambda: bench.pod()["status"]["phase"] == "Failed")
    control_plane.compact()
    bench.proxy.rule = lambda method, path: PASS
    assert bench.heard.down(KEY).exit_code == 6


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_a_silent_node_drains_and_its_task_is_not_over(bench: Bench, control_plane: ControlPlane):
    """It is unknown what runs there: no end is reported, however often it is asked for, until the node is back."""
    backend = bench.open()
    backend.launch([task(forever(bench.folder))])
    bench.heard.up(KEY)
    with control_plane.node_is("node-1", "silent"):
        until(lambda: bench.has_health("node-1", None, Health.DRAINING, "NotReady"))
        pod = bench.pod()
        bench.delete(pod, 0)  # by force: gone from the API, and still running
        until(lambda: bench.pods() == [])
        time.sleep(2)
        assert len(alive(bench.folder)) == 1
        assert KEY in backend.known()
        assert not [each for each in bench.heard.of(KEY) if isinstance(each, TaskReport) and each.phase is Phase.DOWN]
    down = bench.heard.down(KEY)
    assert alive(bench.folder) == set(), "reported only when it has ended"
    assert down.failure is FailureClass.NODE_LOST
    until(lambda: bench.has_health("node-1", None, Health.HEALTHY))


def test_a_fenced_node_is_lost_at_once(bench: Bench, control_plane: ControlPlane):
    backend = bench.open()
    backend.launch([task("sleep 600")])
    bench.heard.up(KEY)
    with control_plane.node_is("node-1", "dead"):
        taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
        control_plane.kubectl("taint", "node", "node-1", f"{taint['key']}={taint['value']}:{taint['effect']}")
        try:
            down = bench.heard.down(KEY)
            assert (down.failure, "fenced" in down.why) == (FailureClass.NODE_LOST, True)
        finally:
            control_plane.kubectl("taint", "node", "node-1", f"{taint['key']}-")


@pytest.mark.parametrize(
    ("change", "back", "health", "why"),
    [
        ({"unschedulable": True}, {"unschedulable": None}, Health.SUSPECT, "cordoned"),
        ({"taints": [{"key": "site/repair", "effect": "NoExecute"}]}, {"taints": None}, Health.DRAINING, "site/repair"),
        ({"taints": [{"key": "site/only", "effect": "NoSchedule"}]}, {"taints": None}, Health.SUSPECT, "site/only"),
    ],
)
def test_a_node_is_cordoned_or_tainted(
    bench: Bench, control_plane: ControlPlane, change: Any, back: Any, health: Health, why: str
):
    bench.open()
    path = "/api/v1/nodes/node-2"
    control_plane.call("PATCH", path, {"spec": change}, "application/merge-patch+json")
    try:
        until(lambda: bench.has_health("node-2", None, health, why))
    finally:
        control_plane.call("PATCH", path, {"spec": back}, "application/merge-patch+json")
    until(lambda: bench.has_health("node-2", None, Health.HEALTHY))


def test_a_deleted_node_is_gone_when_nothing_of_it_is_left(bench: Bench, control_plane: ControlPlane):
    backend = bench.open()
    backend.launch([task("sleep 600", node="node-3")])
    bench.heard.up(KEY)
    node = control_plane.json("GET", "/api/v1/nodes/node-3")
    control_plane.call("DELETE", "/api/v1/nodes/node-3")
    try:
        bench.heard.down(KEY)
        until(lambda: NodeReport("node-3", NodePhase.GONE) in bench.heard.heard)
        downs = [n for n, each in enumerate(bench.heard.heard) if each in bench.heard.of(KEY)]
        assert bench.heard.heard.index(NodeReport("node-3", NodePhase.GONE)) > max(downs)
    finally:
        meta = {"name": "node-3", "labels": node["metadata"]["labels"]}
        control_plane.call("POST", "/api/v1/nodes", {"metadata": meta})
        until(lambda: '"Ready","True"' in _ready(control_plane, "node-3"))
        control_plane.logs.describe()
    until(lambda: NodeReport("node-3", NodePhase.BACK) in bench.heard.heard)


def _ready(plane: ControlPlane, node: str) -> str:
    conditions = plane.json("GET", f"/api/v1/nodes/{node}").get("status", {}).get("conditions", [])
    return json.dumps([[each["type"], each["status"]] for each in conditions], separators=(",", ":"))


# --- others -----------------------------------------------------------------------------------------------------------


def test_gpus_of_other_pods_count_as_taken(bench: Bench, control_plane: ControlPlane):
    bench.open()
    plain(control_plane, bench.namespace, "foreign", "node-2", 3)
    for slot in (5, 6, 7):
        until(lambda slot=slot: bench.has_health("node-2", slot, Health.SUSPECT, "not Corral's"))  # type: ignore[misc]
    control_plane.call("DELETE", f"{bench.path}/foreign", {"gracePeriodSeconds": 1})
    until(lambda: bench.has_health("node-2", 7, Health.HEALTHY))


def test_an_evicted_pod_is_warned_and_is_no_failure_of_the_user(bench: Bench):
    backend = bench.open()
    script = "trap 'echo warned; sleep 1; exit 1' TERM; echo ready; while :; do sleep 0.05; done"
    backend.launch([task(script)])
    bench.heard.up(KEY)
    until(lambda: (backend.read_log(KEY, "stdout", 0, 100) or part()).data == b"ready\n")
    pod = bench.pod()
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod["metadata"]["name"]}}
    bench.plane.call("POST", f"{bench.path}/{pod['metadata']['name']}/eviction", eviction)
    down = bench.heard.down(KEY)
    assert (down.exit_code, down.failure) == (1, FailureClass.NODE_LOST)
    assert "ended by others" in down.why


def part() -> Any:
    from corral.runtime.base import LogPart

    return LogPart(0, b"", 0, False)


def test_a_kubelet_that_refuses_a_pod_is_a_failed_start(bench: Bench, control_plane: ControlPlane):
    backend = bench.open()
    with control_plane.node_is("node-1", "refuse"):
        backend.launch([task("exit 0", gpus=1)])
        down = bench.heard.down(KEY)
    assert (down.failure, "OutOfnvidia.com/gpu" in down.why) == (FailureClass.START_FAILED, True)


def test_a_quota_that_is_full_is_a_failed_start_and_its_gpus_are_not_offered(bench: Bench, control_plane: ControlPlane):
    quota = {"metadata": {"name": "small"}, "spec": {"hard": {"requests.nvidia.com/gpu": "30", "pods": "1"}}}
    path = f"/api/v1/namespaces/{bench.namespace}/resourcequotas"
    control_plane.call("POST", path, quota)
    until(lambda: control_plane.json("GET", f"{path}/small").get("status", {}).get("hard"))
    backend = bench.open()
    for slot in (6, 7):
        until(lambda slot=slot: bench.has_health("node-3", slot, Health.SUSPECT, "small"))  # type: ignore[misc]
    keys = [TaskKey("8/main", 1, n) for n in range(2)]
    backend.launch([task("sleep 600", key) for key in keys])
    until(lambda: any(isinstance(each, TaskReport) and each.phase is Phase.DOWN for each in bench.heard.heard))
    (down,) = [each for each in bench.heard.heard if isinstance(each, TaskReport) and each.phase is Phase.DOWN]
    assert down.failure is FailureClass.START_FAILED
    assert "exceeded quota" in down.why


# --- servers ----------------------------------------------------------------------------------------------------------


def test_a_later_server_fences_the_earlier_one(bench: Bench):
    first = bench.open(epoch=1)
    bench.open(epoch=2)

    def is_refused() -> bool:
        try:
            first.launch([task("exit 0", TaskKey("9/main", 1, 0))])
        except StaleEpoch:
            return True
        return False

    until(is_refused)


# --- how pods are made ------------------------------------------------------------------------------------------------


def test_the_grace_of_the_job_and_the_template_of_the_site_are_in_the_pod(bench: Bench):
    template = (
        ("metadata", {"labels": {"team": "vision"}}),
        (
            "spec",
            {
                "tolerations": [{"key": "gpu", "operator": "Exists"}],
                "containers": [{"name": "task", "env": [{"name": "SITE", "value": "1"}]}],
            },
        ),
    )
    backend = bench.open(template=template, pull_secrets=("registry",), volumes=(("/data", "datasets"),))
    backend.launch([task("echo $SITE; exit 0", grace_ms=90_000, gpus=2)])
    assert bench.heard.down(KEY).exit_code == 0
    pod = bench.pod()
    assert pod["spec"]["terminationGracePeriodSeconds"] == 94
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert {"key": "gpu", "operator": "Exists"} in pod["spec"]["tolerations"]
    assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "2"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert {"name": "corral-shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    found = backend.read_log(KEY, "stdout", 0, 100)
    assert found is not None
    assert found.data == b"1\n"


def test_pods_are_bound_by_the_subresource_where_the_site_wants_it(bench: Bench):
    backend = bench.open(bind=BINDING)
    backend.launch([task("exit 0", node="node-3")])
    assert bench.heard.down(KEY).exit_code == 0
    assert bench.pod()["spec"]["nodeName"] == "node-3"
    assert bench.pod()["spec"]["schedulerName"] == "corral"


def test_without_a_connection_a_task_is_warned_by_deleting_its_pod(bench: Bench):
    backend = bench.open(address="none")
    save = 'echo "{\\"step\\": 7}" >> $CORRAL_CHECKPOINT_FILE'
    backend.launch([task(f"trap '{save}; exit 85' TERM; while :; do sleep 0.02; done", grace_ms=20_000)])
    bench.heard.up(KEY)
    backend.warn(KEY, time.time_ns() // 1_000_000 + 60_000, "drain")
    assert bench.heard.down(KEY).exit_code == 85


def test_the_whole_interpreter_is_delivered_into_an_image_without_one(bench: Bench):
    """Not only links to the interpreter of this machine, as in the other tests."""
    deliver = tuple(word for word in bench.settings.deliver if word != "--link")
    backend = bench.open(deliver=deliver)
    backend.launch([task("echo $CORRAL_PYTHONPATH | grep -c task; exit 0")])
    assert bench.heard.down(KEY).exit_code == 0
    (runtime,) = (bench.folder / "mounts").glob("*/runtime")
    assert (runtime / "runtime/loader").is_file()
    assert not (runtime / "runtime/bin/python3").is_symlink()
