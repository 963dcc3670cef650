"""The machine around the GPUs, read off made-up /sys and /proc and off this one; and probe processes."""

import os
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from corral.health.devices import SimulatedDevices
from corral.health.hardware import read_hardware
from corral.health.host import HostReader
from corral.health.probes.probe_process import (
    ProbeProcess,
    probe_reading,
    site_reading,
    start_gpu_probe,
    start_site_check,
)
from corral.health.readings import NicReading, ProbeReading, SiteReading
from corral.wire.details import NicDetails
from tests.runtime.reports import until


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    net = "sys/class/net"
    write(
        root,
        {
            f"{net}/lo/operstate": "unknown",
            f"{net}/ib0/device/numa_node": "1",
            f"{net}/ib0/operstate": "up",
            f"{net}/ib0/speed": "400000",
            f"{net}/ib0/statistics/rx_errors": "3",
            f"{net}/ib0/statistics/tx_errors": "4",
            f"{net}/eth1/device/numa_node": "-1",
            f"{net}/eth1/operstate": "down",
            f"{net}/eth1/speed": "-1",
            "proc/meminfo": "MemTotal:       1048576 kB\nMemAvailable:    524288 kB\nHugePages_Total:       0",
            "sys/devices/system/node/node0/cpulist": "0-3",
            "sys/devices/system/node/node1/cpulist": "4-7",
            "sys/devices/system/node/possible": "0-1",
        },
    )
    return root


def test_cards_and_memory(root, tmp_path):
    reading = HostReader([tmp_path], root).read()
    assert reading.nics == (NicReading("eth1", False, None, None), NicReading("ib0", True, 400_000, 7))
    assert (reading.memory_mib, reading.memory_available_mib) == (1024, 512)


def test_a_disk_that_is_well_and_one_that_is_not_there(tmp_path):
    well, gone = HostReader([tmp_path, tmp_path / "nowhere"]).read().disks
    assert well.free_mib is not None
    assert well.write_ms is not None
    assert (well.is_read_only, well.fault) == (False, None)
    assert gone.fault == "No such file or directory"
    assert os.listdir(tmp_path) == [], "the probe is removed"


def test_the_clock_is_compared_with_one_that_no_onesets(tmp_path, monkeypatch):
    host = HostReader([])
    assert host.read().clock.jump_ms is None
    assert abs(host.read().clock.jump_ms or 0) < 1_000
    right = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right() - 7_200_000_000_000)
    assert abs((host.read().clock.jump_ms or 0) + 7_200_000) < 1_000


def test_where_nothing_can_be_read_nothing_is_known(tmp_path):
    reading = HostReader([], tmp_path).read()
    assert (reading.nics, reading.memory_mib, reading.memory_available_mib) == ((), None, None)


def test_what_a_machine_is_made_of(root, tmp_path):
    found = read_hardware(SimulatedDevices(["SIM-a", "SIM-b"]), [tmp_path], root)
    assert found.driver == "simulated"
    assert found.numa_nodes == 2
    assert found.nics == (NicDetails("eth1"), NicDetails("ib0", 400_000, 1))
    assert [gpu.numa for gpu in found.gpus] == [0, 1]
    assert found.disks[0].size_mib


# ---- probe processes ------------------------------------------------------------------------------------------------


def back(errand: ProbeProcess) -> tuple[int | None, str]:
    found: list[tuple[int | None, str]] = []

    def is_back() -> bool:
        ended = errand.ended()
        found.extend([ended] if ended is not None else [])
        return bool(found)

    until(is_back)
    return found[0]


def script(folder: Path, text: str) -> str:
    path = folder / "check"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


CHECKS = {
    "well": ("echo fine; exit 0", SiteReading(0, "fine")),
    "suspect": ("echo slow on $CORRAL_NODE; echo more; exit 1", SiteReading(1, "slow on n1")),
    "says it on standard error": ("echo bad >&2; exit 2", SiteReading(2, "bad")),
    "silent": ("exit 2", SiteReading(2, "")),
}


@pytest.mark.parametrize(("text", "expected"), CHECKS.values(), ids=CHECKS)
def test_a_check_of_the_site(tmp_path, text, expected):
    assert site_reading(back(start_site_check(script(tmp_path, text), "n1", 10_000))) == expected


def test_a_check_that_hangs_is_ended_with_all_it_has_started(tmp_path):
    code, told = back(start_site_check(script(tmp_path, "sleep 600 & sleep 600"), "n1", 200))
    assert (code, told) == (None, "it did not end within 0.2 s")


def test_a_check_that_is_not_there(tmp_path):
    code, told = back(start_site_check(str(tmp_path / "none"), "n1", 200))
    assert code is None
    assert told.endswith("No such file or directory")


PROBES = {
    "passed": ((0, '{"passed": true, "gflops": 5, "mib_per_s": 7}\n'), ProbeReading(True, "", 5, 7)),
    "failed": (
        (1, "some\na matrix product is wrong by 3"),
        ProbeReading(False, "a matrix product is wrong by 3"),
    ),
    "died": ((-11, ""), ProbeReading(False, "it ended with exit code -11")),
    "hung": ((None, "it did not end within 300 s"), ProbeReading(False, "it did not end within 300 s")),
    "no torch": ((3, "torch is not installed"), ProbeReading(None, "torch is not installed")),
    "nonsense": ((0, "hello"), ProbeReading(False, "hello")),
}


@pytest.mark.parametrize(("ended", "expected"), PROBES.values(), ids=PROBES)
def test_what_a_probe_says(ended, expected):
    assert probe_reading(ended) == expected


def test_where_there_is_no_torch_gpus_cannot_be_tried():
    if find_spec("torch") is not None:
        pytest.skip("there is torch")
    reading = probe_reading(back(start_gpu_probe("SIM-a", 60_000)))
    assert reading == ProbeReading(None, "cannot probe GPUs: torch is not installed")


def test_an_errand_that_is_called_off_leaves_no_process(tmp_path):
    errand = start_site_check(script(tmp_path, "echo $$; sleep 600"), "n1", 60_000)
    errand.kill()
    code, _ = back(errand)
    assert code == -9
