"""`corral up --kubernetes`, as typed: what cannot work is named before anything is started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec import structs

from corral.wire.config import Config, parse_config, write_config
from corral.wire.pods.pod_settings import BINDING, EXACT, PodSettings
from tests.e2e.live import environment, free_port


def up(folder: Path, *words: str, config: object = None) -> tuple[int, str]:
    file = folder / "corral.yaml"
    file.write_text(json.dumps(config or {}))
    command = [sys.executable, "-m", "corral", "up", "--kubernetes", "--data", str(folder / "data")]
    command += ["--config", str(file), "--listen", f"127.0.0.1:{free_port()}", *words]
    env = environment() | {"XDG_CONFIG_HOME": str(folder), "XDG_STATE_HOME": str(folder), "HOME": str(folder)}
    env.pop("KUBECONFIG", None)
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_a_cluster_that_is_not_described(tmp_path: Path):
    code, said = up(tmp_path, config={"kubernetes": {"kubeconfig": str(tmp_path / "none")}})
    assert code != 0
    assert "no Kubernetes cluster is described by" in " ".join(said.split())
    assert "Traceback" not in said


@pytest.mark.parametrize("other", [["--cluster"], ["--fake-gpus", "8xH100"]])
def test_it_excludes_other_ways_to_run_tasks(tmp_path: Path, other: list[str]):
    code, said = up(tmp_path, *other)
    assert code != 0
    assert f"--kubernetes and {other[0]} exclude each other" in " ".join(said.split())


def test_all_settings_are_read_as_they_are_written():
    settings = PodSettings(
        kubeconfig="/etc/k", context="c", name="other", namespace="n", namespaces=(("lab", "m"),), image="i",
        supervisor_image="s", service_account="a", pull_secrets=("p",), pull_patience_ms=60_000,
        volumes=(("/data", "claim"),), shm_mib=1024, user=7, template=(("spec", {"hostNetwork": True}),), bind=BINDING,
        scheduler="x", gpus=EXACT, gpu_resource="amd.com/gpu", resource_slices=True, topology=("rack",), nodes="a=b",
        port=7414, address="host:7414",
    )  # fmt: skip
    written = json.loads(json.dumps(write_config(structs.replace(Config(), kubernetes=settings))))
    found = parse_config(written)
    assert isinstance(found, Config), found
    assert found.kubernetes == settings


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        ({"bind": "scheduler"}, "bind"),
        ({"namespace": "Not A Name"}, "namespace"),
        ({"template": {"kind": "Pod"}}, "a pod has no 'kind' here"),
        ({"template": [1]}, "this must be a pod"),
        ({"address": "no port"}, "address"),
        ({"name": "a name that is far too long"}, "name"),
    ],
)
def test_wrong_settings_are_named(stated: object, why: str):
    found = parse_config({"kubernetes": stated})
    assert isinstance(found, list)
    assert why in str(found)


def test_a_template_that_is_nested_without_end_is_refused():
    deep: object = 1
    for _ in range(200):
        deep = {"a": deep}
    found = parse_config({"kubernetes": {"template": {"spec": deep}}})
    assert isinstance(found, list)
    assert "nested too deeply" in str(found)
