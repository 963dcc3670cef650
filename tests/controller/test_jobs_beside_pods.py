"""Suspended Jobs where Corral's own tasks are pods of the same cluster: placeholders hold the seats, and the GPUs of
the Job's pods are counted once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from corral.controller.definition import definition_text
from corral.controller.held_seats import JOB, REASON, STATE
from corral.kubernetes.held_pods import HOLDS, SEAT
from tests.controller.controller_site import ControllerSite, suspended_job
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.pod_server import PodServer
from tests.kubernetes.pods import pods_namespace

NODES = ("node-2", "node-3")
QUEUE = "beside"


class PodSite(ControllerSite):
    """``live`` has two nodes of the cluster, each with 8 GPUs; names of nodes are the same in both."""

    def __init__(self, plane: ControlPlane, folder: Path, namespace: str) -> None:
        super().__init__(plane, folder)
        selector = f"kubernetes.io/hostname in ({','.join(NODES)})"
        self.server = self.live = PodServer(plane, namespace, folder, nodes=selector)

    def start(self) -> PodSite:
        self.live.start()
        self.live.ask("PUT", f"/v1/queues/{QUEUE}", {})
        self.plane.kubectl("apply", "-f", "-", text=definition_text())
        self.plane.kubectl("wait", "--for=condition=Established", "crd/corraljobs.corral.dev", "--timeout=30s")
        self.start_controller("--node-label", "kubernetes.io/hostname")
        self.until("both nodes are there", lambda: len(self.nodes()) == len(NODES))
        return self

    def nodes(self) -> list[Any]:
        found: list[Any] = self.live.ask("GET", "/v1/nodes")["nodes"]
        return found

    def stop(self) -> None:
        if self.process is not None:
            self.end_controller()
        if self.live.process is not None:
            self.live.stop()


@pytest.fixture
def site(control_plane: ControlPlane, tmp_path: Path) -> Iterator[PodSite]:
    with pods_namespace(control_plane) as tasks, control_plane.namespace(f"{tasks}-jobs") as jobs:
        made = PodSite(control_plane, tmp_path, tasks)
        control_plane.kubectl("annotate", "namespace", jobs, f"corral.dev/queues={QUEUE}")
        try:
            yield made.start()
        finally:
            control_plane.kubectl("delete", "jobs", "--all", "-n", jobs, "--wait=false")
            made.stop()


def test_jobs_run_on_seats_that_placeholders_hold_and_no_gpu_is_counted_twice(site: PodSite, tmp_path: Path):
    jobs, enough = f"{site.server.namespace}-jobs", tmp_path / "enough"

    def pods(job: str, phase: str) -> list[Any]:
        found = json.loads(site.plane.kubectl("get", "pods", "-n", jobs, "-l", f"job-name={job}", "-o", "json"))
        return [pod for pod in found["items"] if pod["status"].get("phase") == phase]

    def notes(job: str) -> dict[str, str]:
        return site.get("job", jobs, job)["metadata"].get("annotations") or {}

    wait = f"while [ ! -e {enough} ]; do sleep 0.2; done"
    site.apply(suspended_job(jobs, "first", wait, queue=QUEUE, gpus=4, parallelism=3, completions=3))
    first = site.until("its pods run", lambda: len(found := pods("first", "Running")) == 3 and found)
    holders = {pod["metadata"]["labels"]["corral.dev/task"]: pod for pod in site.server.pods()}
    assert sorted(holders) == ["0", "1", "2"]
    for pod in first:
        holder = holders[pod["metadata"]["labels"][SEAT]]
        assert pod["spec"]["nodeName"] == holder["spec"]["nodeName"]
        assert json.loads(holder["metadata"]["annotations"][HOLDS])["gpus"] == 4
        assert "nvidia.com/gpu" not in str(holder["spec"]["containers"][0]["resources"])

    site.apply(suspended_job(jobs, "second", "true", queue=QUEUE, gpus=4, parallelism=2, completions=2))
    site.until("the second says why it waits", lambda: notes("second").get(REASON), state=lambda: notes("second"))
    assert notes("second")[STATE] == "waiting"
    site.live.kill()  # the next server knows from the pods what is held
    site.live.start()
    small = site.live.submit({"command": "true", "image": "any", "gpus": 4, "queue": QUEUE})
    assert site.live.until_over([small])[small]["state"] == "succeeded", "four GPUs are free"
    assert "used by pods that are not Corral's" not in json.dumps(site.nodes())
    assert site.get("job", jobs, "second")["spec"]["suspend"] is True

    enough.touch()
    for name in ("first", "second"):
        site.plane.kubectl("wait", "-n", jobs, "--for=condition=Complete", f"job/{name}", "--timeout=60s")
        id = notes(name)[JOB]
        site.until("it has succeeded", lambda: site.live.job(id)["state"] == "succeeded")  # noqa: B023
    site.until("no placeholder is left", lambda: not site.server.pods())


def test_a_preempted_job_gives_its_gpus_to_pods_of_corral_and_comes_back(site: PodSite):
    jobs = f"{site.server.namespace}-jobs"

    def pods() -> list[Any]:
        found = json.loads(site.plane.kubectl("get", "pods", "-n", jobs, "-o", "json"))["items"]
        return [pod for pod in found if pod["status"].get("phase") == "Running"]

    low = suspended_job(jobs, "low", "sleep 300", queue=QUEUE, gpus=8, parallelism=2, completions=2)
    site.apply(low)
    first = site.until("its pods run", lambda: len(found := pods()) == 2 and found)
    before = {pod["metadata"]["name"] for pod in first}
    urgent = site.live.submit({"command": "true", "image": "any", "gpus": 8, "queue": QUEUE, "priority": "high"})
    assert site.live.until_over([urgent])[urgent]["state"] == "succeeded"
    after = site.until("it runs again", lambda: len(found := pods()) == 2 and found)
    assert not before & {pod["metadata"]["name"] for pod in after}
    id = site.get("job", jobs, "low")["metadata"]["annotations"][JOB]
    assert site.live.job(id)["attempts"] == 2
    site.plane.kubectl("delete", "job", "-n", jobs, "low")
    site.until("its seats are free", lambda: site.live.job(id)["state"] == "cancelled")
    site.until("no placeholder is left", lambda: not site.server.pods())
