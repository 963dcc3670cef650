"""The Helm chart: what it renders is accepted by a real API server, and by the command line that it starts."""

from __future__ import annotations

import json
import re

import pytest

from tests.architecture.documented_commands import Command, fault_of
from tests.packaging.helm import CHART, helm, named, objects, rendered

VARIANTS = {
    "one server": "tls.allowPlainHttp=true",
    "two servers": "tls.secretName=corral-tls,database.secretName=corral-db",
    "everything": "tls.secretName=t,database.secretName=d,kubernetes.jobNamespace=chart-jobs,"
    "kubernetes.resourceSlices=true,"
    "server.persistence.storageClassName=fast,imagePullSecrets[0].name=pull,service.type=LoadBalancer,"
    "server.extraEnv[0].name=A,server.extraEnv[0].value=b,server.nodeSelector.zone=a",
    "no Kubernetes": "tls.allowPlainHttp=true,kubernetes.enabled=false,controller.enabled=false",
}  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_object_passes_a_dry_run_on_the_api_server(control_plane, variant):
    for namespace in ("chart", "chart-jobs"):
        text = json.dumps({"apiVersion": "v1", "kind": "Namespace", "metadata": {
            "name": namespace, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}})  # fmt: skip
        control_plane.kubectl("apply", "-f", "-", text=text)
    text = rendered(VARIANTS[variant], namespace="chart", with_definition=True)
    said = control_plane.kubectl("apply", "--dry-run=server", "--validate=strict", "-f", "-", text=text)
    assert len(said.splitlines()) == len(objects(text))
    assert said.count("(server dry run)") == len(objects(text))
    # a StatefulSet or a Deployment is accepted whatever its pods are: so the pods themselves are tried
    for found in objects(text):
        if found["kind"] in ("StatefulSet", "Deployment"):
            template = found["spec"]["template"]
            account = template["spec"]["serviceAccountName"]
            control_plane.kubectl("create", "serviceaccount", "-n", "chart", account, check=False)
            meta = template["metadata"] | {"name": "try", "namespace": "chart"}
            spec = template["spec"] | {"volumes": [*template["spec"]["volumes"], {"name": "data", "emptyDir": {}}]}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            assert "created" in control_plane.kubectl("create", "--dry-run=server", "-f", "-", text=json.dumps(pod))


@pytest.mark.parametrize("variant", VARIANTS)
def test_its_containers_start_commands_that_there_are(variant):
    started = 0
    for found in objects(rendered(VARIANTS[variant])):
        for container in found["spec"]["template"]["spec"]["containers"] if "template" in found.get("spec", {}) else ():
            words = tuple(re.sub(r"\$\((\w+)\)", "corral-0", word) for word in container["args"])
            assert fault_of(Command(words, True)) == ""
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["livenessProbe"]
            started += 1
    assert started == (1 if variant == "no Kubernetes" else 2)


def test_two_servers_only_where_there_is_a_database():
    one, two = (objects(rendered(VARIANTS[name])) for name in ("one server", "two servers"))
    assert named(one, "StatefulSet", "corral")["spec"]["replicas"] == 1
    servers = named(two, "StatefulSet", "corral")["spec"]
    assert servers["replicas"] == 2
    container = servers["template"]["spec"]["containers"][0]
    peers = [word for word in container["args"] if word.startswith("--peer")]
    assert peers == [f"--peer=https://corral-{n}.corral-servers.corral.svc:7411" for n in (0, 1)]
    assert container["env"][1]["valueFrom"]["secretKeyRef"] == {"name": "corral-db", "key": "url"}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/v1/health", "port": "api", "scheme": "HTTPS"}
    assert named(two, "PodDisruptionBudget", "corral")["spec"]["maxUnavailable"] == 1


def test_a_change_of_the_configuration_restarts_the_servers():
    def checksum(values: str) -> str:
        found = objects(rendered(f"tls.allowPlainHttp=true,{values}"))
        return str(named(found, "StatefulSet", "corral")["spec"]["template"]["metadata"]["annotations"])

    assert checksum("server.config.policy=fifo") != checksum("server.config.policy=standard")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ("", "tls: name a Secret"),
        ("tls.allowPlainHttp=true,image.repo=x", "repo"),
        ("tls.allowPlainHttp=true,server.replicas=0", "replicas"),
        ("tls.allowPlainHttp=true,server.persistence.size=20GB", "size"),
    ],
)  # fmt: skip
def test_wrong_values_are_refused_with_their_name(values, text):
    more = ["--set", values] if values else []
    assert text in helm("template", "corral", str(CHART), *more, check=False)


def test_helm_itself_finds_no_fault():
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), "--set", "tls.allowPlainHttp=true")


def test_the_notes_name_the_next_steps(control_plane):
    reached = ("--kubeconfig", str(control_plane.kubeconfig), "--namespace", "chart-notes")
    said = helm("install", "corral", str(CHART), "--dry-run=client", "--set", "tls.allowPlainHttp=true", *reached)
    notes = said.partition("NOTES:")[2]
    assert "kubectl create secret generic -n chart-notes corral-controller --from-literal=token=TOKEN" in notes
