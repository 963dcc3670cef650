"""What do NVML and a probe tell about a real GPU? A plain script for a machine that has one; prints one line of JSON.

    PYTHONPATH=src python tests/device/health_check.py

Needs Corral's sources and its requirements msgspec and nvidia-ml-py; with torch installed the GPUs are tried as well,
and a watch over the machine is let run for a while: it must find nothing wrong with a healthy machine, see a drill at
once, and take the GPU back after a probe. Exit 0: every check that could be made held.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from corral.core.cluster.topology import NodeSpec
from corral.core.model import Health
from corral.health.devices import devices_of
from corral.health.fault_injection import InjectedFault, InjectedXid, health_folder, write_drills
from corral.health.hardware import read_hardware
from corral.health.host import HostReader
from corral.health.monitor import Monitor
from corral.health.probes.probe_process import probe_reading, start_gpu_probe
from corral.health.readings import ProbeReading
from corral.health.rules import Observation, gpu_symptoms
from corral.runtime.base import HealthReport, Report
from corral.runtime.inventory import inventory
from corral.wire.health import HealthSettings

PROBE_MS = 300_000


def main() -> int:
    node = inventory()
    if not node.gpus:
        print(json.dumps({"ok": False, "why": "no GPU was found"}))
        return 1
    found: dict[str, object] = {"gpus": [gpu.model for gpu in node.gpus]}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        faults = read_everything(node, data, found)
        faults += try_gpus(node, found)
        faults += watch(node, data, found)
    found |= {"ok": not faults, "faults": faults}
    print(json.dumps(found))
    return 0 if not faults else 1


def read_everything(node: NodeSpec, data: Path, found: dict[str, object]) -> list[str]:
    devices = devices_of(node.gpus)
    began = time.monotonic()
    readings = devices.read()
    found["first_read_ms"] = round((time.monotonic() - began) * 1000, 1)
    began = time.monotonic()
    readings = devices.read()
    found["read_ms"] = round((time.monotonic() - began) * 1000, 1)
    found["readings"] = [msgspec.to_builtins(reading) for reading in readings]
    found["unknown"] = sorted(
        {name for each in readings for name in each.__struct_fields__ if getattr(each, name) is None}
    )
    found["details"] = msgspec.to_builtins(read_hardware(devices, [data]))
    found["host"] = msgspec.to_builtins(HostReader([data]).read())
    found["hears_xids_by"] = (
        "events" if getattr(devices, "_events", None) is not None else "the kernel's log or nothing"
    )
    began = time.monotonic()
    heard = devices.listen(0.5)
    found["listened_ms"] = round((time.monotonic() - began) * 1000, 1)
    devices.close()
    faults = [f"Xid {each.xid} was received" for each in heard]
    faults += [f"{each.uuid} is not there" for each in readings if not each.is_there]
    faults += [f"{each.uuid} tells no temperature" for each in readings if each.temperature_c is None]
    for reading in readings:
        faults += [f"{each.code}: {each.why}" for each in gpu_symptoms(reading, Observation(), 0, HealthSettings())[0]]
    return faults


def try_gpus(node: NodeSpec, found: dict[str, object]) -> list[str]:
    probes = []
    for gpu in node.gpus:
        began = time.monotonic()
        reading = tried(gpu.uuid)
        probes.append({**msgspec.to_builtins(reading), "s": round(time.monotonic() - began, 1)})
    found["probes"] = probes
    return [f"a probe failed: {probe['told']}" for probe in probes if probe["passed"] is False]


def tried(uuid: str) -> ProbeReading:
    errand = start_gpu_probe(uuid, PROBE_MS)
    while (ended := errand.ended()) is None:
        time.sleep(0.05)
    return probe_reading(ended)


def watch(node: NodeSpec, data: Path, found: dict[str, object]) -> list[str]:
    """A drill on a real GPU: seen at once, and over after a probe."""
    told: list[tuple[float, HealthReport]] = []

    def hear(report: Report) -> None:
        if isinstance(report, HealthReport):
            told.append((time.monotonic(), report))

    def until(health: Health, within_s: float) -> float | None:
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            for at, report in told:
                if report.gpu == 0 and report.health is health and at > drilled:
                    return at
            time.sleep(0.01)
        return None

    monitor = Monitor(node, data, HealthSettings(interval_ms=1_000, quiet_ms=1_000))
    drilled = time.monotonic()
    monitor.begin(hear)
    time.sleep(3)
    faults = [
        f"a healthy machine is {each.health}: {each.why}" for _, each in told if each.health is not Health.HEALTHY
    ]
    drilled = time.monotonic()
    write_drills(health_folder(data), {0: InjectedFault(xids=(InjectedXid(79, time.time_ns() // 1_000_000),))})
    seen = until(Health.FAILED, 10)
    found["drill_heard_ms"] = None if seen is None else round((seen - drilled) * 1000)
    faults += ["the drill was not seen"] if seen is None else []
    back = until(Health.HEALTHY, PROBE_MS / 1000)
    found["back_after_s"] = None if back is None else round(back - drilled, 1)
    can_try = any(probe["passed"] is not None for probe in found["probes"])  # type: ignore[attr-defined]
    faults += ["the GPU did not come back after a probe"] if back is None and can_try else []
    monitor.close()
    return faults


if __name__ == "__main__":
    sys.exit(main())
