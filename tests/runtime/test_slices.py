"""A task that takes more of a shared GPU than its slice is warned and ended, before others suffer."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from corral.core.cluster.topology import NodeSpec
from corral.core.model import FailureClass
from corral.runtime.base import Phase, TaskKey, TaskReport
from corral.runtime.gpu_memory import GpuMemory, NvmlMemory
from corral.runtime.local import slices
from corral.runtime.local.backend import LocalBackend
from corral.runtime.local.orders import request_of
from corral.runtime.local.settings import LocalSettings
from corral.runtime.local.slices import Slice, SliceExcess, excesses
from tests.accounts import OWN
from tests.runtime.reports import Collector, order, until

GPU, OTHER = "GPU-1", "GPU-2"
A, B, C = (TaskKey(f"{n}/main", 1, 0) for n in (1, 2, 3))
TEN = Slice(GPU, 10_240)


@pytest.mark.parametrize(
    ("used", "free", "expected"),
    [
        ({A: 10_240, B: 10_240}, 60_000, []),
        ({A: 10_400}, 60_000, []),  # what drivers round up to
        ({A: 11_000, B: 100}, 60_000, [SliceExcess(A, 11_000, TEN, is_urgent=False)]),
        ({A: 11_000, B: 100}, 10_139, [SliceExcess(A, 11_000, TEN, is_urgent=True)]),
        ({A: 11_000, B: 10_240}, 0, [SliceExcess(A, 11_000, TEN, is_urgent=False)]),  # the others have all of theirs
        ({A: 60_000, B: 20_000}, 0, [SliceExcess(A, 60_000, TEN, False), SliceExcess(B, 20_000, TEN, False)]),
    ],
)
def test_who_exceeds(used, free, expected):
    assert excesses({A: TEN, B: TEN, C: Slice(OTHER, 10_240)}, used, {GPU: free}) == expected


class Memory:
    """What each task uses is what it has written into a file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.free_mib = folder, 50_000

    def read(self, uuids: Sequence[str]) -> list[GpuMemory]:
        used = {}
        for path in self.folder.glob("uses.*"):
            said = path.read_text().split()
            if len(said) == 2:
                used[int(said[0])] = int(said[1])
        return [GpuMemory(uuid, self.free_mib, used) for uuid in uuids]

    def close(self) -> None: ...


class Harness:
    def __init__(self, folder: Path) -> None:
        self.folder, self.memory, self.collector = folder, Memory(folder), Collector()
        settings = LocalSettings(scan_ms=50, peer_grace_ms=300, account=OWN)
        self.backend = LocalBackend(folder / "data", NodeSpec("n1"), settings, memory=self.memory)
        self.backend.open(self.collector, 1)

    def uses(self, key: TaskKey, mib: int, then: str = "time.sleep(600)") -> None:
        """A task whose grandchild, which has left its session, uses this much."""
        script = f"""
import os, sys, time, signal
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open({str(self.folder)!r} + f"/uses.{{os.getpid()}}", "w") as file:
            file.write(f"{{os.getpid()}} {mib}")
        time.sleep(600)
    os._exit(0)
os.wait()
{then}
"""
        command = (sys.executable, "-I", "-S", "-c", script)
        self.backend.launch([order(key, *command, epoch=1, gpus=(GPU,), vram_mib=10_240)])

    def is_over(self, key: TaskKey) -> bool:
        return any(isinstance(each, TaskReport) and each.phase is Phase.DOWN for each in self.collector.of(key))

    def close(self) -> None:
        for key in self.backend.known():
            self.backend.kill(key)
        for key in self.backend.known():
            self.collector.down(key)
        self.backend.close()


@pytest.fixture
def harness(tmp_path, monkeypatch) -> Iterator[Harness]:
    monkeypatch.setattr(slices, "EVERY_S", 0.05)
    made = Harness(tmp_path)
    yield made
    made.close()


def test_it_is_warned_and_then_ended(harness, monkeypatch):
    monkeypatch.setattr(slices, "GRACE_MS", 1_000)
    saves = "signal.signal(signal.SIGTERM, lambda *_: None)\nwhile True: time.sleep(1)"
    harness.uses(A, 30_000, saves)
    harness.uses(B, 9_000)
    down = harness.collector.down(A)
    assert down.failure is FailureClass.VRAM_EXCEEDED
    assert down.why == "it uses 29.2 GiB of GPU memory, but was given 10 GiB"
    assert B in harness.backend.known()
    assert not harness.is_over(B)


def test_it_may_save_and_leave_by_itself(harness):
    leaves = """
def leave(*_):
    print("saved", flush=True)
    sys.exit(85)
signal.signal(signal.SIGTERM, leave)
while True: time.sleep(1)"""
    harness.uses(A, 30_000, leaves)
    assert harness.collector.down(A).failure is FailureClass.VRAM_EXCEEDED
    until(lambda: b"saved" in harness.backend.read_log(A, "stdout", 0, 100).data)


def test_it_is_ended_at_once_where_others_could_not_get_theirs(harness):
    harness.memory.free_mib = 100
    harness.uses(B, 1_000)
    until(lambda: len(list(harness.folder.glob("uses.*"))) == 1)
    harness.uses(A, 30_000, "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: time.sleep(1)")
    down = harness.collector.down(A)
    assert (down.failure, down.signal) == (FailureClass.VRAM_EXCEEDED, 9)
    assert not harness.is_over(B)


def test_who_keeps_to_the_slice_is_left_alone(harness):
    harness.uses(A, 10_240, "sys.exit(0)")
    down = harness.collector.down(A)
    assert (down.failure, down.exit_code) == (None, 0)


def test_mps_is_reported_the_slice_where_it_runs(tmp_path, monkeypatch):
    harness = Harness(tmp_path)
    try:
        site = harness.backend._site
        sliced = order(A, "true", epoch=1, gpus=(GPU,), vram_mib=10_240)
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path / "mps"))
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in request_of(sliced, site, "")["env"]
        (tmp_path / "mps").mkdir()
        (tmp_path / "mps" / "control").touch()
        assert request_of(sliced, site, "")["env"]["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10240M"
        whole = order(A, "true", epoch=1, gpus=(GPU,))
        assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in request_of(whole, site, "")["env"]
    finally:
        harness.close()


class FakeNvml:
    class NVMLError(Exception):
        pass

    class _Info:
        free = 5 << 30

    class _Process:
        def __init__(self, pid: int, used: int | None) -> None:
            self.pid, self.usedGpuMemory = pid, used

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        if uuid == OTHER:
            raise self.NVMLError
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> object:  # noqa: N802
        return self._Info

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[object]:  # noqa: N802
        return [self._Process(7, 3 << 30), self._Process(8, None)]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[object]:  # noqa: N802
        raise self.NVMLError


def test_what_nvml_tells():
    memory = NvmlMemory(FakeNvml())
    assert memory.read([GPU, OTHER, "SIM-H100-0"]) == [GpuMemory(GPU, 5 << 10, {7: 3 << 10, 8: 0})]
    memory.close()
