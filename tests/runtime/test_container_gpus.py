"""GPUs of containers by their CDI names, on a real Podman: a character device of this machine plays the GPU."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.core.model import FailureClass
from corral.runtime.container.settings import ContainerSettings
from tests.runtime.container_backend import ContainerHarness
from tests.runtime.podman import Podman

UUID = "GPU-0b2f8d5c-1111-2222-3333-444455556666"
KIND = "corral.test/gpu"


@pytest.fixture
def specification(podman: Podman) -> Iterator[Path]:
    path = podman.cdi / "corral-test.json"
    path.write_text(_specification({UUID: "/dev/fuse-of-the-test"}))
    yield path
    path.unlink()


def _specification(devices: dict[str, str]) -> str:
    listed = [
        {"name": uuid, "containerEdits": {"deviceNodes": [{"path": node, "hostPath": "/dev/zero"}]}}
        for uuid, node in devices.items()
    ]
    return json.dumps({"cdiVersion": "0.3.0", "kind": KIND, "devices": listed})


def test_a_container_gets_its_gpu_by_name(tmp_path: Path, podman: Podman, specification: Path):
    specification.write_text(_specification({UUID: "/dev/zero"}))
    harness = ContainerHarness(tmp_path, podman, nodes={UUID: "/dev/zero"}, cdi_kind=KIND)
    down, said = harness.ran("echo $CUDA_VISIBLE_DEVICES; ls /dev/zero; id -u; cat /proc/self/status", gpus=(UUID,))
    harness.close()
    assert (down.exit_code, down.why) == (0, "")
    assert said.startswith(f"{UUID}\n/dev/zero\n0\n")
    assert "NoNewPrivs:\t1" in said, "the same holds in Podman's own dialect"


def test_a_container_without_its_gpu_does_not_run(tmp_path: Path, podman: Podman, specification: Path):
    """The specification names another device than the GPU is: as good as none."""
    harness = ContainerHarness(tmp_path, podman, nodes={UUID: "/dev/fuse"}, cdi_kind=KIND)
    down, _ = harness.ran("echo it runs; sleep 600", gpus=(UUID,))
    harness.close()
    assert down.failure is FailureClass.START_FAILED
    assert f"without its GPUs {UUID}" in down.why


def test_a_gpu_without_a_specification_is_the_machines_fault(tmp_path: Path, podman: Podman):
    harness = ContainerHarness(tmp_path, podman, nodes={UUID: "/dev/zero"}, cdi_kind=KIND)
    down, _ = harness.ran("true", gpus=(UUID,))
    harness.close()
    assert down.failure is FailureClass.START_FAILED
    assert UUID in down.why


def test_limits_and_mounts_hold_in_podmans_own_dialect(tmp_path: Path, podman: Podman, specification: Path):
    specification.write_text(_specification({UUID: "/dev/zero"}))
    harness = ContainerHarness(tmp_path, podman, nodes={UUID: "/dev/zero"}, cdi_kind=KIND)
    hungry = "x=0123456789abcdef; while :; do x=$x$x; done"
    down, _ = harness.ran(hungry, gpus=(UUID,), memory_mib=32, cpu_milli=1000, account="nobody", directory="/tmp")
    harness.close()
    assert (down.exit_code, down.failure) == (137, FailureClass.OUT_OF_MEMORY)


def test_the_kind_is_nvidias_unless_reported(podman: Podman):
    assert ContainerSettings().cdi_kind == "nvidia.com/gpu"
