"""Each signal: from which number on it is bad, how bad, and with the numbers in its reason. Unknown is not bad."""

import pytest
from msgspec.structs import replace

from corral.core.model import Health
from corral.health.devices import SimulatedDevices
from corral.health.readings import (
    ClockReading,
    DiskReading,
    GpuReading,
    HostReading,
    LinkReading,
    NicReading,
    SiteReading,
    XidEvent,
)
from corral.health.rules import (
    TERMS,
    CounterRule,
    Observation,
    Symptom,
    gpu_symptoms,
    host_symptoms,
    metered,
    symptom_of_site,
    symptom_of_xid,
    terms_of,
)
from corral.health.xids import XIDS
from corral.wire.health import HOUR_MS, HealthSettings

SETTINGS = HealthSettings()
WELL = SimulatedDevices(["GPU-a"]).read()[0]
SUSPECT, DRAINING, FAILED = Health.SUSPECT, Health.DRAINING, Health.FAILED
MINUTE_MS = 60_000


def found_on_gpu(*readings: GpuReading, settings: HealthSettings = SETTINGS) -> list[tuple[str, Health, str]]:
    """What is found at the last of some looks, a minute apart."""
    seen = Observation()
    found: list[Symptom] = []
    for n, reading in enumerate(readings):
        found, seen = gpu_symptoms(reading, seen, n * MINUTE_MS, settings)
    return [(each.code, each.health, each.why) for each in found]


def links(*up: bool, errors: int = 0) -> tuple[LinkReading, ...]:
    return tuple(LinkReading(n, is_up, errors) for n, is_up in enumerate(up))


GPU_CASES = {
    "as cool as it should be": ([replace(WELL, temperature_c=89)], []),
    "as hot as where it slows down by itself": (
        [replace(WELL, temperature_c=90)],
        [("hot", SUSPECT, "temperature 90 °C; the GPU slows down from 90 °C on")],
    ),
    "hot, without a value for where it slows down": (
        [GpuReading(uuid="GPU-a", temperature_c=95)],
        [("hot", SUSPECT, "temperature 95 °C; the GPU slows down from 90 °C on")],
    ),
    "hot memory": (
        [replace(WELL, memory_temperature_c=106)],
        [("memory_hot", SUSPECT, "memory temperature 106 °C; the limit is 105 °C")],
    ),
    "slowed down by heat": (
        [replace(WELL, throttle=("hw_thermal", "power_cap"))],
        [("throttled", SUSPECT, "the hardware slows it down because it is hot")],
    ),
    "slowed down by its power limit, which is no fault": ([replace(WELL, throttle=("power_cap",))], []),
    "memory errors from before the first look": ([replace(WELL, uncorrected=7, corrected=100_000)], []),
    "two new memory errors": (
        [WELL, replace(WELL, uncorrected=2)],
        [("uncorrected", DRAINING, "2 uncorrectable memory errors")],
    ),
    "one new memory error after the driver began to count again": (
        [replace(WELL, uncorrected=9), replace(WELL, uncorrected=1)],
        [("uncorrected", DRAINING, "1 uncorrectable memory error")],
    ),
    "some corrected memory errors": ([WELL, replace(WELL, corrected=1_000)], []),
    "many corrected memory errors": (
        [WELL, replace(WELL, corrected=600), replace(WELL, corrected=1_001)],
        [("corrected", SUSPECT, "1,001 corrected memory errors within 2m")],
    ),
    "a row to be replaced": (
        [replace(WELL, is_remap_pending=True)],
        [("remap_pending", SUSPECT, "a bad row of memory is to be remapped, which needs a reset of the GPU")],
    ),
    "a row that cannot be replaced": (
        [replace(WELL, has_remap_failed=True, is_remap_pending=True)],
        [("remap_failed", FAILED, "a bad row of memory could not be remapped: there is no spare row left")],
    ),
    "links that were never up": ([replace(WELL, links=links(False, False))], []),
    "a link that was up and is down": (
        [replace(WELL, links=links(True, True)), replace(WELL, links=links(True, False))],
        [("link_down", DRAINING, "NVLink 1 of 2 is down")],
    ),
    "a link with many errors": (
        [replace(WELL, links=links(True)), replace(WELL, links=links(True, errors=5_000))],
        [("link_errors", SUSPECT, "5,000 errors of NVLink 0 within 1m")],
    ),
    "a PCIe link that lost lanes": (
        [replace(WELL, pcie_width=4)],
        [("pcie_narrow", SUSPECT, "its PCIe link uses 4 of 16 lanes")],
    ),
    "a PCIe link that rests while the GPU is idle": ([replace(WELL, pcie_generation=1)], []),
    "a PCIe link that is slow under load": (
        [replace(WELL, pcie_generation=1, utilisation_percent=80)],
        [("pcie_slow", SUSPECT, "its PCIe link runs at generation 1 of 5 although it is busy")],
    ),
    "a PCIe link that repeats itself": (
        [WELL, replace(WELL, pcie_replays=2_000)],
        [("pcie_replays", SUSPECT, "2,000 transfers over PCIe were repeated within 1m")],
    ),
    "a GPU that is gone": (
        [WELL, GpuReading(uuid="GPU-a", is_there=False)],
        [("lost", FAILED, "the driver can no longer reach the GPU")],
    ),
    "a GPU that says nothing at all": ([GpuReading(uuid="GPU-a")], []),
}  # fmt: skip


@pytest.mark.parametrize(("readings", "expected"), GPU_CASES.values(), ids=GPU_CASES)
def test_a_gpu(readings, expected):
    assert found_on_gpu(*readings) == expected


def found_on_host(*readings: HostReading, **settings: object) -> list[tuple[str, Health, str]]:
    seen = Observation()
    found: list[Symptom] = []
    for n, reading in enumerate(readings):
        found, seen = host_symptoms(reading, seen, n * MINUTE_MS, HealthSettings(**settings))  # type: ignore[arg-type]
    return [(each.code, each.health, each.why) for each in found]


def card(**terms: object) -> HostReading:
    return HostReading(nics=(NicReading("ib0", **terms),))  # type: ignore[arg-type]


def disk(**terms: object) -> HostReading:
    return HostReading(disks=(DiskReading("/data", **terms),))  # type: ignore[arg-type]


HOST_CASES = {
    "nothing known": ([HostReading()], {}, []),
    "a card that was never up": ([card(is_up=False)], {}, []),
    "a card that went down": (
        [card(is_up=True), card(is_up=False)],
        {},
        [("nic_down ib0", SUSPECT, "network card ib0 is down")],
    ),
    "a card that became slower": (
        [card(is_up=True, speed_mbps=400_000), card(is_up=True, speed_mbps=100_000)],
        {},
        [("nic_slow ib0", SUSPECT, "network card ib0 runs at 100,000 Mbit/s instead of 400,000")],
    ),
    "a card with errors": (
        [card(is_up=True, errors=5), card(is_up=True, errors=2_005)],
        {},
        [("nic_errors ib0", SUSPECT, "2,000 errors of network card ib0 within 1m")],
    ),
    "a disk with little room": (
        [disk(free_mib=100)],
        {},
        [("disk_full /data", SUSPECT, "only 100 MiB are free at /data; the minimum is 512 MiB")],
    ),
    "a disk that became read-only": (
        [disk(is_read_only=True, free_mib=0)],
        {},
        [("disk_read_only /data", DRAINING, "/data is mounted read-only")],
    ),
    "a disk that cannot be written": (
        [disk(fault="Input/output error", free_mib=1_000)],
        {},
        [("disk_fault /data", DRAINING, "cannot write to /data: Input/output error")],
    ),
    "a disk that is slow": (
        [disk(write_ms=12_000, free_mib=1_000)],
        {},
        [("disk_slow /data", SUSPECT, "a small write to /data took 12s")],
    ),
    "hardly any memory": (
        [HostReading(memory_mib=1_000_000, memory_available_mib=19_999)],
        {},
        [("memory_low", SUSPECT, "only 19.5 GiB of 976.5 GiB of memory are available")],
    ),
    "a high load without a rule": ([HostReading(load_percent=9_000)], {}, []),
    "a high load with a rule": (
        [HostReading(load_percent=900)],
        {"load_percent_max": 800},
        [("load", SUSPECT, "the load is 900 % of its CPUs; the limit is 800 %")],
    ),
    "a clock that was set back": (
        [HostReading(clock=ClockReading(jump_ms=-3_600_000))],
        {},
        [("clock_jump", SUSPECT, "the clock was set back by 1h")],
    ),
    "a clock that runs as clocks do": ([HostReading(clock=ClockReading(False, 16_000, 4_000))], {}, []),
    "a clock that should be synchronised": (
        [HostReading(clock=ClockReading(is_synchronised=False))],
        {"needs_clock_sync": True},
        [("clock_loose", SUSPECT, "the clock is not synchronised")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("readings", "settings", "expected"), HOST_CASES.values(), ids=HOST_CASES)
def test_a_machine(readings, settings, expected):
    assert found_on_host(*readings, **settings) == expected


XID_CASES = {
    13: None, 31: None, 43: None, 45: None,
    48: DRAINING, 63: SUSPECT, 64: FAILED, 74: DRAINING, 79: FAILED, 92: SUSPECT, 94: DRAINING, 95: FAILED,
    119: FAILED, 120: FAILED, 154: SUSPECT, 999: SUSPECT,
}  # fmt: skip


@pytest.mark.parametrize(("xid", "health"), XID_CASES.items(), ids=lambda each: str(each))
def test_an_xid(xid, health):
    symptom = symptom_of_xid(XidEvent("GPU-a", xid, 1))
    assert (None if symptom is None else symptom.health) is health
    assert symptom is None or symptom.why.startswith(f"Xid {xid}: ")


SITE_CASES = {
    "well": (SiteReading(0, "all is well"), None, None),
    "suspect": (SiteReading(1, "nccl is slow"), None, (SUSPECT, "the site check: nccl is slow")),
    "to be drained": (SiteReading(2, ""), None, (DRAINING, "the site check: exit code 2")),
    "one GPU": (SiteReading(2, "gpu 3: row errors"), 3, (DRAINING, "the site check: row errors")),
    "it hangs": (
        SiteReading(None, "it did not end within 60 s"), None,
        (SUSPECT, "the site check failed: it did not end within 60 s"),
    ),
    "another end": (
        SiteReading(127, "no such file"), None,
        (SUSPECT, "the site check ended with 127, not 0, 1 or 2: no such file"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reading", "slot", "expected"), SITE_CASES.values(), ids=SITE_CASES)
def test_the_check_of_the_site(reading, slot, expected):
    found, symptom = symptom_of_site(reading)
    assert (found, symptom and (symptom.health, symptom.why)) == (slot, expected)


def test_every_rule_can_be_switched_off_by_a_threshold_of_zero():
    off = HealthSettings(
        temperature_c_max=0, memory_temperature_c_max=0, corrected_per_hour_max=0, link_errors_per_hour_max=0,
        pcie_replays_per_hour_max=0, nic_errors_per_hour_max=0, disk_free_mib_min=0, disk_write_ms_max=0,
        memory_available_percent_min=0, clock_jump_ms_max=0,
    )  # fmt: skip
    bad = GpuReading(uuid="a", temperature_c=200, memory_temperature_c=200, corrected=10**6, pcie_replays=10**6)
    assert found_on_gpu(GpuReading(uuid="a", corrected=0, pcie_replays=0), bad, settings=off) == []
    host = HostReading(
        disks=(DiskReading("/", free_mib=0, write_ms=10**6),), memory_mib=100, memory_available_mib=0,
        clock=ClockReading(jump_ms=10**9),
    )  # fmt: skip
    assert host_symptoms(host, Observation(), 0, off)[0] == []


def test_a_counter_is_measured_by_the_hour():
    meter = metered(None, 100, 0)
    meter = metered(meter, 300, HOUR_MS // 2)
    assert (meter.grown, meter.since_ms) == (200, 0)
    assert metered(meter, 310, HOUR_MS) == CounterRule(310, HOUR_MS, 10)


def test_every_rule_has_terms_and_every_xid_a_meaning():
    assert terms_of("nic_down ib0") is TERMS["nic_down"]
    assert all(0 < terms.needs <= terms.of <= 30 for terms in TERMS.values())
    assert all(rule.means for rule in XIDS.values())
