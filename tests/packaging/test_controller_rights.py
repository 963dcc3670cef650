"""The rights of the controller's service account: with all of them everything works, and without any one of them a
step that is named here does not. Everything is done with a token of that account."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from corral.controller.corral_jobs import CorralJobs
from corral.controller.definition import KIND_PATH
from corral.controller.held_seats import GATE
from corral.controller.namespace_queues import AllowedQueues
from corral.controller.object_controller import NAMESPACES, Controller, ControllerOptions, ObjectCache
from corral.controller.submissions import Submissions, SubmittingClient
from corral.controller.suspended_jobs import JOBS, PODS, SuspendedJobs
from corral.kubernetes.cluster_api import ApiRefused, ClusterApi, connect, object_path
from corral.kubernetes.list_watch import ListWatch
from corral.wire.api.jobs import GangView, JobSummary, JobView, SeatView
from tests.controller.controller_site import ControllerSite, corral_job, suspended_job
from tests.kubernetes.control_plane import ControlPlane
from tests.packaging.helm import named, objects, rendered

NAMESPACE = "rights"
ROLE = f"{NAMESPACE}-corral-controller"
QUEUES = AllowedQueues(NAMESPACE, ("lab",))


class Rights:
    """``api``: as the service account. ``plane``: as the administrator of the cluster."""

    def __init__(self, site: ControllerSite, folder: Path) -> None:
        self.site = site
        self.plane: ControlPlane = site.plane
        site.namespace(NAMESPACE)
        chart = objects(rendered("tls.allowPlainHttp=true", namespace=NAMESPACE))
        wanted = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
        mine = [each for each in chart if each["kind"] in wanted and each["metadata"]["name"].endswith("-controller")]
        assert len(mine) == 3
        site.apply(*mine)
        self.rules = named(mine, "ClusterRole", ROLE)["rules"]
        token = self.plane.kubectl("create", "token", "-n", NAMESPACE, "corral-controller").strip()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(self.plane.kubeconfig.read_text().replace(self.plane.token, token))
        self.api: ClusterApi = connect(str(self.kubeconfig))
        self.client = SubmittingClient(site.live.url, site.live.token)
        submissions = Submissions(self.client, "a-cluster", self.client.whoami().user)
        self.corral_jobs = CorralJobs(self.api, submissions)
        self.suspended = SuspendedJobs(self.api, submissions, "corral.dev/node")
        self.controller = Controller(self.api, self.client, ControllerOptions())
        self._number = 0

    def name(self) -> str:
        self._number += 1
        return f"thing-{self._number}"

    def set_rules(self, rules: list[Any]) -> None:
        """Returns when the API server decides by them."""
        path = object_path("apis/rbac.authorization.k8s.io/v1/clusterroles", name=ROLE)
        self.plane.json("PATCH", path, {"rules": rules}, "application/merge-patch+json")
        time.sleep(0.5)

    def without(self, resource: str, verb: str) -> list[Any]:
        """The rules without one verb of one resource; a rule for names alone is one of its own."""
        changed = []
        for rule in self.rules:
            is_it = resource in rule["resources"] and verb in rule["verbs"]
            verbs = [each for each in rule["verbs"] if each != verb] if is_it else rule["verbs"]
            if verbs:
                changed.append(rule | {"verbs": verbs})
        assert changed != self.rules
        return changed

    def apply(self, found: Any) -> Any:
        self.site.apply(found)
        kind, meta = found["kind"].lower(), found["metadata"]
        return self.site.get(kind, meta.get("namespace", ""), meta["name"])


def sees(path: str, make: Callable[[Rights], Any], selector: str = "") -> Callable[[Rights], None]:
    def step(rights: Rights) -> None:
        cache = ObjectCache(lambda: None)
        params = {"labelSelector": selector} if selector else None
        watch = ListWatch(rights.api, object_path(path), cache, params)
        watch.start()
        try:
            until = time.monotonic() + 20
            wanted = ""
            while not wanted or all(each["metadata"]["name"] != wanted for each in cache.all()):
                if watch.wait_synced(0.05) and watch.watches and not wanted:
                    wanted = make(rights)["metadata"]["name"]
                assert not watch.last_error, watch.last_error
                assert time.monotonic() < until, "no change arrived"
                time.sleep(0.02)
        finally:
            watch.stop()

    return step


def new_corral_job(rights: Rights) -> Any:
    return rights.apply(corral_job(NAMESPACE, rights.name(), command="true", hold=True))


def new_job(rights: Rights, script: str = "true", **more: Any) -> Any:
    return rights.apply(suspended_job(NAMESPACE, rights.name(), script, **more))


def new_pod(rights: Rights) -> Any:
    meta = {
        "name": rights.name(),
        "namespace": NAMESPACE,
        "labels": {"corral.dev/held-by": "1", "corral.dev/attempt": "1"},
    }
    container = {"name": "main", "image": "any", "command": ["/bin/true"]}
    spec = {"restartPolicy": "Never", "schedulingGates": [{"name": GATE}], "containers": [container]}
    return rights.apply({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def new_namespace(rights: Rights) -> Any:
    return rights.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"rights-{rights.name()}"}})


def writes_the_status(rights: Rights) -> None:
    found = new_corral_job(rights)
    rights.corral_jobs.reconcile(found, QUEUES, {}, 0)
    assert rights.site.get("corraljob", NAMESPACE, found["metadata"]["name"])["status"]["job"]


def cancelled_without_object(rights: Rights, kind: str) -> None:
    labels = {"kubernetes.kind": kind, "kubernetes.uid": "gone", "kubernetes.object": f"{NAMESPACE}/gone"}
    id = rights.site.live.submit(
        {"command": "true", "hold": True, "queue": "lab", "directory": "/tmp", "labels": labels}
    )
    job: JobSummary = replace(rights.client.job(id), labels=labels)
    rights.controller._each_orphan(job)
    rights.site.until("it is cancelled", lambda: rights.site.live.job(id)["state"] == "cancelled", 20)


def cancels_the_job_of_a_corral_job_that_is_gone(rights: Rights) -> None:
    cancelled_without_object(rights, "corraljob")


def gives_back_the_seats_of_a_job_that_is_gone(rights: Rights) -> None:
    cancelled_without_object(rights, "job")


def suspends_a_job(rights: Rights) -> None:
    job = new_job(rights, suspend=False)
    rights.suspended._suspend(job)
    assert rights.site.get("job", NAMESPACE, job["metadata"]["name"])["spec"]["suspend"] is True


def gives_other_seats_to_a_job_that_ran_before(rights: Rights) -> None:
    name = new_job(rights, "sleep 60", suspend=False)["metadata"]["name"]
    site = rights.site
    site.until("it has started", lambda: site.get("job", NAMESPACE, name)["status"].get("startTime"), 20)
    path = object_path(JOBS, NAMESPACE, name)
    rights.plane.json("PATCH", path, {"spec": {"suspend": True}}, "application/merge-patch+json")
    found = site.get("job", NAMESPACE, name)
    if not found["status"].get("startTime"):  # the Job controller was faster: as it was before
        found = rights.plane.json("GET", path)
        found.setdefault("status", {})["startTime"] = found["metadata"]["creationTimestamp"]
    view = JobView("1", name, "lab", "k8s", 0, "running", False, 0)  # type: ignore[arg-type]
    gang = GangView("1", "main", "running", 2)
    for _ in range(20):  # the Job controller changes it meanwhile
        try:
            rights.suspended._admit(found, view, gang)
            break
        except ApiRefused as refused:
            if refused.status != 409:
                raise
            found = rights.plane.json("GET", path) | {"status": found["status"]}
    assert site.get("job", NAMESPACE, name)["spec"]["suspend"] is False


def binds_a_pod_to_its_seat(rights: Rights) -> None:
    pod = new_pod(rights)
    gang = GangView("1", "main", "running", 1, seats=(SeatView(0, "here"),))
    rights.suspended._seat({"metadata": {"namespace": NAMESPACE}}, [pod], gang)
    bound = rights.site.get("pod", NAMESPACE, pod["metadata"]["name"])["spec"]
    assert bound["nodeSelector"] == {"corral.dev/node": "here"}
    assert not bound.get("schedulingGates")


def identifies_the_cluster(rights: Rights) -> None:
    assert rights.api.get(object_path(NAMESPACES, name="kube-system"))["metadata"]["uid"]


STEPS: dict[str, Callable[[Rights], None]] = {
    "sees CorralJobs": sees(KIND_PATH, new_corral_job),
    "sees Jobs with a queue": sees(JOBS, new_job, "corral.dev/queue"),
    "sees pods of admitted Jobs": sees(PODS, new_pod, "corral.dev/held-by"),
    "sees the queues of namespaces": sees(NAMESPACES, new_namespace),
    "writes the status": writes_the_status,
    "cancels the job of a CorralJob that is gone": cancels_the_job_of_a_corral_job_that_is_gone,
    "gives back the seats of a Job that is gone": gives_back_the_seats_of_a_job_that_is_gone,
    "suspends a Job": suspends_a_job,
    "gives other seats to a Job that ran before": gives_other_seats_to_a_job_that_ran_before,
    "binds a pod to its seat": binds_a_pod_to_its_seat,
    "identifies the cluster": identifies_the_cluster,
}
#: Every right of the role, and a step that fails without it.
NEEDED_FOR = {
    ("corraljobs", "list"): "sees CorralJobs",
    ("corraljobs", "watch"): "sees CorralJobs",
    ("corraljobs", "get"): "cancels the job of a CorralJob that is gone",
    ("corraljobs/status", "patch"): "writes the status",
    ("jobs", "list"): "sees Jobs with a queue",
    ("jobs", "watch"): "sees Jobs with a queue",
    ("jobs", "get"): "gives back the seats of a Job that is gone",
    ("jobs", "patch"): "suspends a Job",
    ("jobs/status", "patch"): "gives other seats to a Job that ran before",
    ("pods", "list"): "sees pods of admitted Jobs",
    ("pods", "watch"): "sees pods of admitted Jobs",
    ("pods", "patch"): "binds a pod to its seat",
    ("namespaces", "list"): "sees the queues of namespaces",
    ("namespaces", "watch"): "sees the queues of namespaces",
    ("namespaces", "get"): "identifies the cluster",
}


@pytest.fixture(scope="module")
def rights(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rights]:
    site = ControllerSite(control_plane, tmp_path_factory.mktemp("rights"))
    try:
        site.start()
        site.end_controller()  # the one of the administrator
        made = Rights(site, tmp_path_factory.mktemp("account"))
        yield made
        made.api.close()
        made.client.close()
        made.site.plane.call("DELETE", f"/api/v1/namespaces/{NAMESPACE}")
    finally:
        site.stop()


def test_the_table_has_every_right_of_the_role_and_no_other(rights):
    stated = {(each, verb) for rule in rights.rules for each in rule["resources"] for verb in rule["verbs"]}
    assert stated == set(NEEDED_FOR)


@pytest.mark.parametrize("step", STEPS)
def test_with_these_rights_it(rights, step):
    rights.set_rules(rights.rules)
    STEPS[step](rights)


@pytest.mark.parametrize("right", NEEDED_FOR, ids=" ".join)
def test_a_step_fails_without_its_right(rights, right):
    rights.set_rules(rights.without(*right))
    try:
        with pytest.raises((ApiRefused, AssertionError), match="403"):
            STEPS[NEEDED_FOR[right]](rights)
    finally:
        rights.set_rules(rights.rules)


def test_the_controller_itself_works_with_that_account_and_is_refused_nothing(rights):
    """A whole process, from objects to their end."""
    rights.set_rules(rights.rules)
    site = rights.site
    site.start_controller("--kubeconfig", str(rights.kubeconfig))
    try:
        site.apply(corral_job(NAMESPACE, "whole", command="true"), suspended_job(NAMESPACE, "whole", "sleep 1"))
        site.phase(NAMESPACE, "whole", "Succeeded")
        site.plane.kubectl("wait", "-n", NAMESPACE, "--for=condition=Complete", "job/whole", "--timeout=50s")
    finally:
        site.end_controller()
    assert "403" not in site.log()


def test_it_may_read_no_secrets_and_create_nothing(rights):
    rights.set_rules(rights.rules)
    for verb, kind in (("get", "secrets"), ("create", "pods"), ("delete", "jobs.batch"), ("patch", "nodes")):
        text = rights.plane.kubectl("auth", "can-i", verb, kind, "-n", NAMESPACE, "--as",
                                    f"system:serviceaccount:{NAMESPACE}:corral-controller", check=False)  # fmt: skip
        assert text.startswith("no"), (verb, kind)
    assert json.dumps(rights.rules).count("*") == 0
