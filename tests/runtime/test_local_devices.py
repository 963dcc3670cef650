"""GPUs that a task was not given cannot be opened: by version 1 of cgroups, and by version 2 with a BPF program.

Harmless devices replace GPUs: nodes of our own with the numbers of /dev/zero and /dev/full.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.core.cluster.resources import Gpu
from corral.core.cluster.topology import NodeSpec
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.orders import Site, request_of
from corral.runtime.local.settings import LocalSettings
from corral.runtime.local.task import cgroups, device_access
from tests.accounts import OWN
from tests.runtime.container_backend import ContainerHarness
from tests.runtime.local_backend import Harness
from tests.runtime.podman import Podman
from tests.runtime.reports import Collector, order

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can deny devices")

GPUS = ("GPU-stand-in-0", "GPU-stand-in-1")
NUMBERS = {GPUS[0]: (1, 5), GPUS[1]: (1, 7)}
MACHINE = NodeSpec("n1", tuple(Gpu(uuid, "H100", 81_559) for uuid in GPUS))


@pytest.fixture
def nodes() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="corral-test-") as folder:
        Path(folder).chmod(0o755)
        made = {uuid: f"{folder}/gpu{n}" for n, uuid in enumerate(GPUS)}
        try:
            for uuid, path in made.items():
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(*NUMBERS[uuid]))
                os.chmod(path, 0o666)
                os.close(os.open(path, os.O_RDONLY))
        except OSError as fault:
            pytest.skip(f"no device nodes can be made and opened here: {fault}")
        yield made


class Fenced(Harness):
    """A machine with two GPUs."""

    def __init__(self, data: Path, nodes: dict[str, str]) -> None:
        self.nodes = nodes
        super().__init__(data)

    def open(self) -> None:
        self.collector = Collector()
        self.backend = LocalBackend(self.data, MACHINE, self._settings, device_nodes=lambda: self.nodes)
        self._epoch += 1
        self.backend.open(self.collector, self._epoch)

    def opens(self, *gpus: str, **rest: object) -> list[str]:
        """What a task that was given these can open of both."""
        script = "".join(f"(: < {path}) 2>/dev/null && echo {uuid}; " for uuid, path in self.nodes.items())
        down, said = self.ran(script + "cat /dev/null", gpus=gpus, **rest)
        assert down.exit_code == 0, down
        return said.split()


@pytest.fixture
def fenced(tmp_path: Path, nodes: dict[str, str]) -> Iterator[Fenced]:
    harness = Fenced(tmp_path / "data", nodes)
    if why := device_access.why_not(harness.backend._site.layout):
        harness.close()
        pytest.skip(why)
    yield harness
    harness.close()


def test_a_task_can_open_the_gpus_that_it_was_given_and_no_others(fenced: Fenced):
    """One after another, so that supervisors are used again by tasks that were given something else."""
    for given in ((), GPUS[:1], GPUS[1:], GPUS, ()):
        assert fenced.opens(*given) == list(given)


@pytest.mark.parametrize("limits", [{"account": "daemon"}, {"memory_mib": 100, "cpu_milli": 500}])
def test_so_can_one_of_another_account_and_one_with_limits(fenced: Fenced, limits: dict[str, object]):
    assert fenced.opens(GPUS[1], **limits) == [GPUS[1]]


def test_it_is_kept_by_the_task_when_the_server_starts_again(fenced: Fenced):
    go = fenced.data / "go"
    script = "".join(f"(: < {path}) 2>/dev/null && echo {uuid}; " for uuid, path in fenced.nodes.items())
    key = fenced.sh(f"while ! [ -e {go} ]; do sleep 0.05; done; {script} true", gpus=GPUS[:1])
    fenced.collector.up(key)
    fenced.backend.close()
    fenced.open()
    go.touch()
    assert fenced.collector.down(key).exit_code == 0
    assert fenced.log(key).split() == [GPUS[0]]


def test_a_task_is_not_called_unfenced_where_it_is_fenced(fenced: Fenced):
    key = fenced.sh("true", gpus=GPUS[:1])
    assert not [text for text in fenced.collector.up(key).unenforced if text.startswith("gpus")]


def test_where_devices_cannot_be_denied_the_start_says_so(fenced: Fenced):
    site = Site("/t", "/r", "/s", "boot", cgroups.Layout(), LocalSettings(account=OWN))
    request = request_of(order(fenced.key(), "true", gpus=GPUS[:1]), site, "/l")
    assert [text for text in request["unenforced"] if text.startswith("gpus: hidden by CUDA_VISIBLE_DEVICES")]


def test_a_container_after_a_fenced_task_runs_as_before(tmp_path: Path, nodes: dict[str, str], podman: Podman):
    class Both(ContainerHarness):
        def open(self) -> None:
            super().open()
            self.backend._site.devices = device_access.numbers(nodes)

    harness = Both(tmp_path / "data", podman)
    try:
        down, said = harness.ran(f": < {nodes[GPUS[0]]}", image="")
        assert (down.exit_code, said) != (0, "")
        down, said = harness.ran("head -c 3 /dev/zero | tail -c 1 | cat > /dev/null; echo ran")
        assert (down.exit_code, said) == (0, "ran\n")
    finally:
        harness.close()


@pytest.mark.skipif("v2" not in cgroups.mounts(), reason="version 2 of cgroups is not mounted")
def test_version_2_denies_by_a_program_that_the_next_one_replaces(nodes: dict[str, str]):
    group = f"{cgroups.mounts()['v2']}/corral-test-{os.getpid()}"
    os.mkdir(group)
    try:
        try:
            device_access.deny(2, group, (), ())
        except OSError as fault:
            pytest.skip(f"the kernel takes no BPF program for devices: {fault}")
        for denied in ([], [GPUS[0]], list(GPUS), [GPUS[1]], []):
            device_access.deny(2, group, [NUMBERS[uuid] for uuid in denied], [])
            assert _opened_in(group, nodes) == [uuid for uuid in GPUS if uuid not in denied]
    finally:
        with contextlib.suppress(OSError):
            os.rmdir(group)


def _opened_in(group: str, nodes: dict[str, str]) -> list[str]:
    """What a process in this group can open."""
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        cgroups.write(f"{group}/cgroup.procs", "0")
        for uuid, path in nodes.items():
            with contextlib.suppress(OSError):
                os.close(os.open(path, os.O_RDONLY))
                os.write(tell, f"{uuid}\n".encode())
        os._exit(0)
    os.close(tell)
    os.waitpid(pid, 0)
    with os.fdopen(told) as said:
        return said.read().split()
