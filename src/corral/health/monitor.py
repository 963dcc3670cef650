"""Monitors the health of one machine: reads it, judges it, reports what has changed, probes idle GPUs.

It has two threads. One reads the devices and the system, and may hang in a driver that does not answer; the other
judges, and never reads them, so that it can report the missing answer. The records are kept in a file; changes are
reported like those of tasks. Knows GPUs in use only from `Occupancy`.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from corral.core.cluster.topology import NodeSpec
from corral.core.model import Health
from corral.health.devices import Devices, DriverTimeout, devices_of
from corral.health.fault_injection import DevicesWithFaults, health_folder, read_clearings, read_drills
from corral.health.gpu_activity import GpuActivities
from corral.health.hardware import read_hardware
from corral.health.health_store import HealthStore
from corral.health.host import HostReader
from corral.health.judgement import HealthRecord, cleared, judge, probed, wants_probe
from corral.health.lemons import End, lemon
from corral.health.occupancy import Occupancy
from corral.health.probes.probe_process import (
    ProbeProcess,
    probe_reading,
    site_reading,
    start_gpu_probe,
    start_site_check,
)
from corral.health.readings import GpuReading, HostReading, ProbeReading, XidEvent
from corral.health.rules import Symptom, gpu_symptoms, host_symptoms, symptom_of_site, symptom_of_xid
from corral.runtime.base import DetailsReport, HealthReport, Tell
from corral.runtime.gpu_visibility import is_simulated
from corral.wire.details import NodeDetails
from corral.wire.health import HealthSettings

_log = logging.getLogger(__name__)
_TURN_S = 0.1  # between two looks at probes and files
_LISTEN_S = 0.5

_DETAILS_EVERY_S = 3600


class MachineReading(Struct, frozen=True, gc=False):
    """One reading of everything. ``silence``: why the GPUs could not be read."""

    gpus: tuple[GpuReading, ...]
    host: HostReading
    silence: str = ""


News = MachineReading | NodeDetails | Sequence[XidEvent]


class Monitor:
    """``data``: the data directory. The health records, drills and clearings are below it."""

    def __init__(
        self,
        node: NodeSpec,
        data: Path,
        settings: HealthSettings | None = None,
        *,
        devices: Devices | None = None,
        host: HostReader | None = None,
    ) -> None:
        self.node, self.settings = node, settings or HealthSettings()
        self._folder = health_folder(data)
        self._uuids = [gpu.uuid for gpu in node.gpus]
        self._devices = DevicesWithFaults(devices or devices_of(node.gpus), self._uuids, self._folder)
        self._disks = (data,)
        self._host = host or HostReader(self._disks)
        self._file = HealthStore(self._folder)
        self._records = self._file.read()
        self.occupancy = Occupancy(self._records.tasks)
        self.activities = GpuActivities(node.gpus)
        self._used_by_others: set[str] = set()  # GPUs with processes, according to the driver
        self._site: dict[int | None, Symptom] = {}
        self._reported: dict[int | None, tuple[Health, str]] = {}
        self._tell: Tell = lambda _: None
        self._details: NodeDetails | None = None
        self._seen: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._last_reading = time.monotonic()
        self._probe: tuple[str, ProbeProcess] | None = None
        self._probe_lock = threading.Lock()
        self._killed: list[ProbeProcess] = []  # killed, but not yet reaped
        self._check: ProbeProcess | None = None
        self._next_check = 0.0
        self._cleared_ms = _now_ms()
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []

    # --- start and stop -----------------------------------------------------------------------------------------------

    def begin(self, tell: Tell) -> None:
        """Report changes from now on, and first the present state."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._tell, self._last_reading = tell, time.monotonic()
        self._report_changes()
        self._threads = [
            threading.Thread(target=self._watch, name="health-eyes", daemon=True),
            threading.Thread(target=self._decide, name="health", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        if not self._threads:
            return
        self._ends.set()
        self._threads[1].join()
        self._threads[0].join(5)  # do not wait for a driver that hangs
        self._threads = []
        self.make_way(self._uuids)
        for process in [*self._killed, *([self._check] if self._check is not None else [])]:
            process.end()
        self._file.write(self._records)

    @property
    def details(self) -> NodeDetails | None:
        """The hardware of the machine, once it was read."""
        return self._details

    def observations(self) -> list[HealthReport]:
        """The present health of everything, changed or not."""
        records: list[tuple[int | None, HealthRecord]] = [(None, self._records.node)]
        records += [(slot, self._record(uuid)) for slot, uuid in enumerate(self._uuids)]
        return [HealthReport(self.node.name, slot, each.health, each.why) for slot, each in records]

    def make_way(self, gpus: Sequence[str]) -> None:
        """These GPUs are about to be used: end the probe of one of them."""
        with self._probe_lock:
            if self._probe is not None and self._probe[0] in gpus:
                self._probe[1].kill()
                self._killed.append(self._probe[1])
                self._probe = None

    # --- reading ------------------------------------------------------------------------------------------------------

    def look(self) -> MachineReading:
        try:
            gpus, silence = tuple(self._devices.read()), ""
        except DriverTimeout as fault:
            gpus, silence = (), str(fault)
        return MachineReading(gpus, self._host.read(), silence)

    def _watch(self) -> None:
        next_look = next_details = time.monotonic()
        while not self._ends.is_set():
            try:
                if time.monotonic() >= next_details:
                    next_details = time.monotonic() + _DETAILS_EVERY_S
                    self._seen.put(read_hardware(self._devices, self._disks))
                if time.monotonic() >= next_look:
                    self._seen.put(self.look())
                    next_look = time.monotonic() + self.settings.interval_ms / 1000
                events = self._devices.listen(max(min(next_look - time.monotonic(), _LISTEN_S), 0))
                if events:
                    self._seen.put(events)
            except Exception:
                _log.exception("reading the health of the machine failed; retrying")
                self._ends.wait(1)
        self._devices.close()

    # --- judging ------------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        while not self._ends.is_set():
            try:
                try:
                    self.take(self._seen.get(timeout=_TURN_S))
                except queue.Empty:
                    self._note_silence()
                self.turn()
            except Exception:
                _log.exception("judging the health of the machine failed; retrying")
                self._ends.wait(1)

    def take(self, news: News) -> None:
        """Judge readings or events, and report changes."""
        now_ms = _now_ms()
        if isinstance(news, NodeDetails):
            if news != self._details:
                self._details = news
                self._tell(DetailsReport(self.node.name, news))
        elif isinstance(news, MachineReading):
            self._last_reading = time.monotonic()
            self._judge_reading(news, now_ms)
        else:
            for event in news:
                self._judge_xid(event, now_ms)
        self._report_changes()

    def _judge_reading(self, machine: MachineReading, now_ms: int) -> None:
        settings, ends = self.settings, self._records.ends
        oldest_ms = now_ms - settings.lemon_window_ms
        self.activities.take(machine.gpus)
        self._used_by_others = {reading.uuid for reading in machine.gpus if reading.processes}
        for slot, reading in enumerate(machine.gpus):
            record = self._record(reading.uuid)
            found, seen = gpu_symptoms(reading, record.seen, now_ms, settings)
            bad = lemon(reading.uuid, ends, max(oldest_ms, record.pardoned_ms), settings)
            found += [each for each in (bad, self._site.get(slot)) if each is not None]
            self._records.gpus[reading.uuid] = judge(replace(record, seen=seen), found, now_ms, settings)
        node = self._records.node
        found, seen = host_symptoms(machine.host, node.seen, now_ms, settings)
        unexplained = [end for end in ends if not any(self._is_bad(unit) for unit in end.units)]
        bad = lemon(self.node.name, unexplained, max(oldest_ms, node.pardoned_ms), settings)
        silent = Symptom("silent", Health.SUSPECT, machine.silence) if machine.silence else None
        found += [each for each in (bad, silent, self._site.get(None)) if each is not None]
        # There is no probe for a whole machine: a fault that only a probe would clear ends when it is gone.
        self._records.node = judge(replace(node, seen=seen, owes_probe=False), found, now_ms, settings)

    def _is_bad(self, uuid: str) -> bool:
        record = self._records.gpus.get(uuid)
        return record is not None and record.health is not Health.HEALTHY

    def _judge_xid(self, event: XidEvent, now_ms: int) -> None:
        symptom = symptom_of_xid(event)
        _log.warning("Xid %d on %s %s", event.xid, event.uuid or "an unknown GPU", event.text)
        if symptom is None:
            return
        if event.uuid in self._uuids:
            record = self._record(event.uuid)
            self._records.gpus[event.uuid] = judge(record, [symptom], now_ms, self.settings, is_look=False)
        else:  # the next reading may show which GPU it is; the others must not be affected
            vague = replace(symptom, health=Health.SUSPECT)
            self._records.node = judge(self._records.node, [vague], now_ms, self.settings, is_look=False)

    def _note_silence(self) -> None:
        silent_s = time.monotonic() - self._last_reading
        if silent_s * 1000 > self.settings.silence_ms_max + self.settings.interval_ms:
            why = f"the driver or the disk has not answered for more than {self.settings.silence_ms_max // 1000} s"
            silent = Symptom("silent", Health.SUSPECT, why)
            self._records.node = judge(self._records.node, [silent], _now_ms(), self.settings, is_look=False)
            self._report_changes()

    def _record(self, uuid: str) -> HealthRecord:
        """A GPU that was never seen before counts as just probed, so its first probe is not due yet."""
        return self._records.gpus.get(uuid) or HealthRecord(probed_ms=_now_ms())

    # --- reporting ----------------------------------------------------------------------------------------------------

    def _report_changes(self) -> None:
        for report in self.observations():
            verdict = (report.health, report.why)
            if self._reported.get(report.gpu) != verdict:
                self._reported[report.gpu] = verdict
                self._tell(report)
        self._file.write(self._records)

    def ended(self, end: End) -> None:
        """A task has ended. Called from another thread: the list is replaced, never changed."""
        self._records.note(end, end.at_ms - self.settings.lemon_window_ms)

    # --- probing ------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Handle what has ended, and start what is due."""
        self._killed = [process for process in self._killed if process.ended() is None]
        self._remember_tasks()
        self._take_clearings()
        self._take_probe()
        self._start_probe()
        self._site_check()

    def _remember_tasks(self) -> None:
        tasks = self.occupancy.known()
        if tasks != self._records.tasks:
            self._records.tasks = tasks
            self._file.write(self._records)

    def _take_clearings(self) -> None:
        for each in read_clearings(self._folder):
            if each.at_ms <= self._cleared_ms:
                continue
            self._cleared_ms = each.at_ms
            if each.gpu is None:
                self._records.node = cleared(self._records.node, each.at_ms)
            elif each.gpu < len(self._uuids):
                uuid = self._uuids[each.gpu]
                self._records.gpus[uuid] = cleared(self._record(uuid), each.at_ms)
            self._report_changes()

    def _start_probe(self) -> None:
        now_ms = _now_ms()
        for slot, uuid in enumerate(self._uuids):
            if not wants_probe(self._record(uuid), now_ms, self.settings):
                continue
            with self._probe_lock:
                if self._probe is not None or uuid in self._used_by_others or self.occupancy.is_busy(uuid):
                    continue
                if not is_simulated(uuid):
                    self._probe = (uuid, start_gpu_probe(uuid, self.settings.probe_limit_ms))
                    return
            self._judge_probe(uuid, self._simulated_probe(slot))

    def _simulated_probe(self, slot: int) -> ProbeReading:
        drill = read_drills(self._folder).get(slot)
        is_bad = drill is not None and (drill.probe_fails or drill.vanished)
        return ProbeReading(not is_bad, "simulated failure (drill)" if is_bad else "")

    def _take_probe(self) -> None:
        with self._probe_lock:
            if self._probe is None:
                return
            uuid, process = self._probe
            ended = process.ended()
            if ended is None:
                return
            self._probe = None
        self._judge_probe(uuid, probe_reading(ended))

    def _judge_probe(self, uuid: str, reading: ProbeReading) -> None:
        self._records.gpus[uuid] = probed(self._record(uuid), reading, _now_ms(), self.settings)
        self._report_changes()

    def _site_check(self) -> None:
        if not self.settings.site_check:
            return
        if self._check is None:
            if time.monotonic() >= self._next_check:
                self._next_check = time.monotonic() + self.settings.site_check_every_ms / 1000
                self._check = start_site_check(
                    self.settings.site_check, self.node.name, self.settings.site_check_limit_ms
                )
            return
        ended = self._check.ended()
        if ended is not None:
            self._check = None
            slot, symptom = symptom_of_site(site_reading(ended))
            self._site = {} if symptom is None else {slot: symptom}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
