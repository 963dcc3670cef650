"""A real server whose tasks are pods: a gang over four nodes, preempted with acknowledgement and resumed; the server is
killed in between; nothing is left on the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.pod_server import PodServer
from tests.kubernetes.pods import pods_namespace
from tests.runtime.reports import until

#: Counts steps until the file exists; stops at the step that all ranks agree on.
TRAIN = """
import os, time
from pathlib import Path
import corral_training as training

step = training.resume_from().step if training.resume_from() else 0
print("from", step, flush=True)
while not Path(os.environ["ENOUGH"]).exists():
    step += 1
    time.sleep(0.02)
    training.report(step=step)
    if training.should_stop(step):
        training.checkpoint_saved(step, "memory")
        print("saved", step, flush=True)
        raise SystemExit(85)
"""


@pytest.fixture
def server(control_plane: ControlPlane, tmp_path: Path) -> Iterator[PodServer]:
    with pods_namespace(control_plane) as namespace:
        server = PodServer(control_plane, namespace, tmp_path)
        server.start()
        until(lambda: len(server.ask("GET", "/v1/nodes")["nodes"]) == 4)
        yield server
        if server.process is not None:
            server.stop()


def log_of(server: PodServer, job: str) -> str:
    return str(server.ask("GET", f"/v1/jobs/{job}/output?limit=65536"))


def test_a_gang_is_preempted_at_one_step_and_resumed_and_leaves_nothing(server: PodServer, tmp_path: Path):
    enough = tmp_path / "enough"
    job = server.submit({"command": ["python3", "-c", TRAIN], "gpus": 8, "nodes": 4, "env": {"ENOUGH": str(enough)}})
    until(lambda: server.job(job)["state"] == "running")
    assert {pod["spec"]["nodeName"] for pod in server.pods()} == {f"node-{n}" for n in range(4)}
    assert all(pod["spec"]["terminationGracePeriodSeconds"] == 34 for pod in server.pods())
    server.kill()
    server.start()
    urgent = server.submit({"command": "true", "gpus": 8, "priority": 100})
    assert server.until_over([urgent], 90)[urgent]["state"] == "succeeded"
    until(lambda: server.job(job)["state"] == "running")
    enough.touch()
    assert server.until_over([job], 90)[job]["state"] == "succeeded"
    ends = [(each["exit_code"], each["failure"]) for each in server.job(job)["history"]]
    assert ends == [(85, "preempted"), (0, None)]
    saved = server.job(job)["history"][0]
    assert saved
    until(lambda: not server.pods() and not server.of_gangs("configmaps") and not server.of_gangs("secrets"))


def test_secrets_are_not_in_the_pod(server: PodServer):
    server.ask("PUT", "/v1/secrets/token?queue=default", {"value": "s3cr3t-value"})
    job = server.submit({"command": "echo $TOKEN | rev; sleep 600", "secrets": {"TOKEN": "token"}, "gpus": 1})
    until(lambda: server.job(job)["state"] == "running")
    assert "s3cr3t-value" not in str(server.pods())
    server.ask("POST", f"/v1/jobs/{job}/cancel")
    assert server.until_over([job])[job]["state"] == "cancelled"


def test_what_no_pod_can_be_is_refused_at_once(server: PodServer):
    from tests.e2e.live import Refused

    with pytest.raises(Refused, match="is no volume of this cluster"):
        server.submit({"command": "true", "image": "any", "mounts": ["/nowhere:/data"]})
