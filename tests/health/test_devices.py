"""What devices tell: NVML with every question answered, none answered, a GPU gone; pretended ones; drills over both."""

import ctypes
from types import SimpleNamespace
from typing import ClassVar

import pytest
from msgspec.structs import replace

from corral.core.cluster.resources import Gpu
from corral.health.devices import DriverTimeout, SimulatedDevices, UnknownDevices, devices_of
from corral.health.fault_injection import (
    DevicesWithFaults,
    InjectedFault,
    InjectedXid,
    drilled,
    read_drills,
    write_drills,
)
from corral.health.nvml import NvmlDevices, xids_in
from corral.health.readings import GpuReading, LinkReading, XidEvent
from tests.runtime.reports import now_ms

UUIDS = ("GPU-a", "GPU-b")


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class Bare(SimpleNamespace):
    """A binding that knows GPUs, and answers nothing else."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_FOUND, NVML_ERROR_GPU_IS_LOST, NVML_ERROR_TIMEOUT = 6, 15, 10
    lost: frozenset[str] = frozenset()

    def nvmlInit(self): ...  # noqa: N802

    def nvmlShutdown(self): ...  # noqa: N802

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        return uuid

    def nvmlDeviceGetTemperature(self, handle, _sensor):  # noqa: N802
        raise NVMLError(15 if handle in self.lost else 3)


class Talkative(Bare):
    """One that answers every question."""

    NVML_NVLINK_MAX_LINKS = 3
    NVML_FEATURE_ENABLED = 1
    heard: tuple[tuple[int, str], ...] = ((79, "GPU-b"),)

    def __getattr__(self, name):
        answers = {
            "nvmlDeviceGetPciInfo": lambda h: SimpleNamespace(busId=f"00000000:{'1A' if h == 'GPU-a' else '2B'}:00.0"),
            "nvmlDeviceGetTemperatureThreshold": lambda _h, which: {1: 92, 2: 95}[which],
            "nvmlDeviceGetFieldValues": lambda _h, _ids: [
                SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=61))
            ],
            "nvmlDeviceGetCurrentClocksEventReasons": lambda _h: 0x44,
            "nvmlDeviceGetTotalEccErrors": lambda _h, kind, since: 1 + kind + 2 * since,
            "nvmlDeviceGetRemappedRows": lambda _h: (1, 2, 1, 0),
            "nvmlDeviceGetNvLinkState": lambda _h, link: int(link < 2),
            "nvmlDeviceGetNvLinkErrorCounter": lambda _h, link, counter: 10 * link + counter,
            "nvmlDeviceGetNvLinkRemotePciInfo": lambda _h, link: SimpleNamespace(
                busId="0000:2B:00.0" if link == 0 else "0000:C1:00.0"
            ),
            "nvmlDeviceGetCurrPcieLinkWidth": lambda _h: 8,
            "nvmlDeviceGetMaxPcieLinkWidth": lambda _h: 16,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda _h: 4,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda _h: 5,
            "nvmlDeviceGetPcieReplayCounter": lambda _h: 7,
            "nvmlDeviceGetUtilizationRates": lambda _h: SimpleNamespace(gpu=33),
            "nvmlDeviceGetMemoryInfo": lambda _h: SimpleNamespace(used=2**30, total=2**36),
            "nvmlDeviceGetPowerUsage": lambda _h: 300_000,
            "nvmlDeviceGetEnforcedPowerLimit": lambda _h: 700_000,
            "nvmlDeviceGetComputeRunningProcesses": lambda _h: [SimpleNamespace(pid=4711)],
            "nvmlDeviceGetNumaNodeId": lambda _h: 1,
            "nvmlSystemGetDriverVersion": lambda: b"570.1",
            "nvmlEventSetCreate": lambda: "set",
            "nvmlEventSetFree": lambda _set: None,
            "nvmlDeviceRegisterEvents": lambda *_: None,
            "nvmlEventSetWait_v2": self._wait,
            "nvmlDeviceGetUUID": lambda h: h.encode(),
        }
        if name in answers:
            return answers[name]
        raise AttributeError(name)

    def nvmlDeviceGetTemperature(self, _handle, _sensor):  # noqa: N802
        return 55

    def _wait(self, _set, _patience_ms):
        if not self.heard:
            raise NVMLError(10)
        (xid, uuid), self.heard = self.heard[0], self.heard[1:]
        return SimpleNamespace(device=uuid, eventData=xid)


def test_everything_that_nvml_tells():
    devices = NvmlDevices(UUIDS, Talkative())
    first, _ = devices.read()
    assert first == GpuReading(
        uuid="GPU-a", temperature_c=55, temperature_c_max=92, memory_temperature_c=61, memory_temperature_c_max=95,
        throttle=("power_cap", "hw_thermal"), corrected=1, uncorrected=2, corrected_ever=3, uncorrected_ever=4,
        remapped_rows=3, is_remap_pending=True, has_remap_failed=False,
        links=(LinkReading(0, True, 6), LinkReading(1, True, 46), LinkReading(2, False, 86)),
        pcie_width=8, pcie_width_max=16, pcie_generation=4, pcie_generation_max=5, pcie_replays=7,
        utilisation_percent=33, memory_used_mib=1024, memory_mib=65536, power_mw=300_000, power_mw_max=700_000,
        processes=(4711,),
    )  # fmt: skip
    assert devices.driver() == "570.1"
    described = devices.describe()[0]
    assert (described.bus, described.numa, described.nvlinks) == ("00000000:1A:00.0", 1, 2)
    assert (described.peers, described.switches) == ((1,), 1)
    (heard,) = devices.listen(0.1)
    assert (heard.uuid, heard.xid) == ("GPU-b", 79)
    assert devices.listen(0.0) == ()
    devices.close()


def test_a_gpu_that_has_fallen_off_the_bus_is_known_by_its_handle():
    """It does not tell its name any more, just when it must be known which one it is."""

    class Pointers(Talkative):
        handles: ClassVar = {uuid: ctypes.c_void_p(n) for n, uuid in enumerate(UUIDS, start=0x1000)}

        def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
            return self.handles[uuid]

        def nvmlDeviceGetUUID(self, _handle):  # noqa: N802
            raise NVMLError(15)

        def _wait(self, _set, _patience_ms):
            return SimpleNamespace(device=ctypes.c_void_p(0x1001), eventData=79)

    devices = NvmlDevices(UUIDS, Pointers())
    assert [(each.uuid, each.xid) for each in devices.listen(0.1)] == [("GPU-b", 79)]
    devices.close()


def test_what_nvml_does_not_tell_is_unknown():
    devices = NvmlDevices(UUIDS, Bare())
    assert devices.read() == [GpuReading(uuid=uuid, links=()) for uuid in UUIDS]
    assert devices.driver() is None
    assert [each.nvlinks for each in devices.describe()] == [None, None]
    assert list(devices.listen(0.0)) == []
    devices.close()


def test_a_gpu_that_is_gone_is_told_from_one_that_does_not_answer():
    devices = NvmlDevices(UUIDS, Bare(lost=frozenset({"GPU-b"})))
    assert [reading.is_there for reading in devices.read()] == [True, False]
    devices.close()


@pytest.mark.parametrize(("error", "is_there"), [(6, False), (15, False), (4, True)])
def test_a_gpu_that_was_gone_from_the_beginning(error, is_there):
    class Gone(Bare):
        def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
            raise NVMLError(error)

    devices = NvmlDevices(["GPU-a"], Gone())
    assert devices.read()[0].is_there is is_there
    devices.close()


def test_a_driver_that_cannot_be_asked_says_nothing_about_gpus():
    class Driverless(Bare):
        def nvmlInit(self):  # noqa: N802
            raise NVMLError(18)

    devices = NvmlDevices(UUIDS, Driverless())
    with pytest.raises(DriverTimeout, match="NVML does not answer: error 18"):
        devices.read()
    assert list(devices.listen(0.0)) == []
    devices.close()


LINES = {
    "with the process": ("4,1,2,-;NVRM: Xid (PCI:0000:1a:00): 79, pid=12, GPU has fallen off", [("GPU-a", 79)]),
    "of an old driver": ("NVRM: Xid (0000:1a:00): 13, 0005 000", [("GPU-a", 13)]),
    "of a GPU that does not exist": ("NVRM: Xid (PCI:0000:ff:00): 48, x", [("", 48)]),
    "about something else": ("usb 1-1: new device", []),
}


@pytest.mark.parametrize(("line", "expected"), LINES.values(), ids=LINES)
def test_lines_of_the_kernels_log(line, expected):
    assert [(each.uuid, each.xid) for each in xids_in(line, {"0:1a:00": "GPU-a"})] == expected


def test_devices_are_found_by_what_the_gpus_are():
    assert isinstance(devices_of([Gpu("SIM-H100-0", "H100", 1)]), SimulatedDevices)
    unknown = devices_of([Gpu("AMD-0", "MI300X", 1)])
    assert isinstance(unknown, UnknownDevices)
    assert unknown.read() == [GpuReading(uuid="AMD-0")]
    assert devices_of([]).read() == []


WELL = SimulatedDevices(["SIM-a"]).read()[0]
DRILLS = {
    "hot": (InjectedFault(temperature_c=97), replace(WELL, temperature_c=97)),
    "slowed down": (InjectedFault(throttle="hw_thermal"), replace(WELL, throttle=("hw_thermal",))),
    "memory errors": (InjectedFault(uncorrected=2, corrected=9), replace(WELL, uncorrected=2, corrected=9)),
    "rows": (InjectedFault(remap_failed=True), replace(WELL, has_remap_failed=True)),
    "narrow": (InjectedFault(pcie_width=4), replace(WELL, pcie_width=4)),
    "gone": (InjectedFault(vanished=True), GpuReading(uuid="SIM-a", is_there=False)),
}


@pytest.mark.parametrize(("drill", "expected"), DRILLS.values(), ids=DRILLS)
def test_a_drill(drill, expected):
    assert drilled(WELL, drill) == expected


def test_a_drill_of_a_link():
    links = drilled(WELL, InjectedFault(links_down=(2,))).links
    assert links is not None
    assert [link.number for link in links if not link.is_up] == [2]


def test_drills_are_received_once_and_end(tmp_path):
    devices = DevicesWithFaults(SimulatedDevices(["SIM-a", "SIM-b"]), ["SIM-a", "SIM-b"], tmp_path)
    old = InjectedXid(48, now_ms() - 60_000)
    new = InjectedXid(79, now_ms() + 1)
    write_drills(tmp_path, {1: InjectedFault(xids=(old, new), temperature_c=99), 7: InjectedFault(xids=(new,))})
    assert read_drills(tmp_path)[1].temperature_c == 99
    assert devices.listen(0.2) == [XidEvent("SIM-b", 79, new.at_ms, "drill")]
    assert devices.listen(0.0) == []
    assert [reading.temperature_c for reading in devices.read()] == [45, 99]
    write_drills(tmp_path, {})
    assert [reading.temperature_c for reading in devices.read()] == [45, 45]
    (tmp_path / "drill.json").write_text("nonsense")
    assert [reading.temperature_c for reading in devices.read()] == [45, 45]
