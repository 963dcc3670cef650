"""The watch over one machine: look, listen, judge, tell what has changed, try what is idle.

Two threads. The one asks devices and system, and may be kept waiting by a driver that hangs; the other judges, and
never asks them, so that it can say that there is no answer. What is known is kept in a file; what is told goes through
the same seam as reports of tasks. Knows GPUs in use only by what it is told (`Occupancy`).
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

from corral.backends.base import DetailsReport, HealthReport, Tell
from corral.backends.gpus import is_simulated
from corral.backends.health.anatomy import anatomy
from corral.backends.health.book import BookFile
from corral.backends.health.devices import Devices, Silent, devices_of
from corral.backends.health.drills import DrilledDevices, health_folder, read_clearings, read_drills
from corral.backends.health.errands import Errand, probe_errand, probe_reading, site_errand, site_reading
from corral.backends.health.host import Host
from corral.backends.health.judgement import Sheet, cleared, judge, probed, wants_probe
from corral.backends.health.lemons import End, lemon
from corral.backends.health.occupancy import Occupancy
from corral.backends.health.readings import GpuReading, HostReading, ProbeReading, XidEvent
from corral.backends.health.rules import Symptom, look_at_gpu, look_at_host, symptom_of_site, symptom_of_xid
from corral.core.cluster.topology import NodeSpec
from corral.core.model import Health
from corral.wire.details import NodeDetails
from corral.wire.health import HealthSettings

_log = logging.getLogger(__name__)
_TURN_S = 0.1  # how long errands and files are left alone
_LISTEN_S = 0.5

_DETAILS_EVERY_S = 3600


class Sight(Struct, frozen=True, gc=False):
    """One look at everything. ``silence``: why the GPUs could not be asked."""

    gpus: tuple[GpuReading, ...]
    host: HostReading
    silence: str = ""


News = Sight | NodeDetails | Sequence[XidEvent]


class Monitor:
    """``data``: the data directory; below it the book of health, drills and clearings lie."""

    def __init__(
        self,
        node: NodeSpec,
        data: Path,
        settings: HealthSettings | None = None,
        *,
        devices: Devices | None = None,
        host: Host | None = None,
    ) -> None:
        self.node, self.settings = node, settings or HealthSettings()
        self._folder = health_folder(data)
        self._uuids = [gpu.uuid for gpu in node.gpus]
        self._devices = DrilledDevices(devices or devices_of(node.gpus), self._uuids, self._folder)
        self._disks = (data,)
        self._host = host or Host(self._disks)
        self._file = BookFile(self._folder)
        self._book = self._file.read()
        self.occupancy = Occupancy(self._book.tasks)
        self._strangers: set[str] = set()  # GPUs on which the driver sees processes
        self._site: dict[int | None, Symptom] = {}
        self._told: dict[int | None, tuple[Health, str]] = {}
        self._tell: Tell = lambda _: None
        self._details: NodeDetails | None = None
        self._seen: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._last_sight = time.monotonic()
        self._probe: tuple[str, Errand] | None = None
        self._probe_lock = threading.Lock()
        self._ousted: list[Errand] = []  # told to end, and not yet waited for
        self._check: Errand | None = None
        self._next_check = 0.0
        self._cleared_ms = _now_ms()
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []

    # --- its life -----------------------------------------------------------------------------------------------------

    def begin(self, tell: Tell) -> None:
        """From here on changes are told; first of all how things stand."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._tell, self._last_sight = tell, time.monotonic()
        self._say()
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
        self._threads[0].join(5)  # a driver that hangs keeps nobody from ending
        self._threads = []
        self.make_way(self._uuids)
        for errand in [*self._ousted, *([self._check] if self._check is not None else [])]:
            errand.end()
        self._file.write(self._book)

    @property
    def details(self) -> NodeDetails | None:
        """What the machine is made of, once it was looked at."""
        return self._details

    def observations(self) -> list[HealthReport]:
        """How everything stands, changed or not."""
        sheets: list[tuple[int | None, Sheet]] = [(None, self._book.node)]
        sheets += [(slot, self._sheet(uuid)) for slot, uuid in enumerate(self._uuids)]
        return [HealthReport(self.node.name, slot, each.health, each.why) for slot, each in sheets]

    def make_way(self, gpus: Sequence[str]) -> None:
        """Somebody is about to use these GPUs: nothing is tried on them now."""
        with self._probe_lock:
            if self._probe is not None and self._probe[0] in gpus:
                self._probe[1].kill()
                self._ousted.append(self._probe[1])
                self._probe = None

    # --- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> Sight:
        try:
            gpus, silence = tuple(self._devices.read()), ""
        except Silent as said:
            gpus, silence = (), str(said)
        return Sight(gpus, self._host.read(), silence)

    def _watch(self) -> None:
        next_look = next_details = time.monotonic()
        while not self._ends.is_set():
            try:
                if time.monotonic() >= next_details:
                    next_details = time.monotonic() + _DETAILS_EVERY_S
                    self._seen.put(anatomy(self._devices, self._disks))
                if time.monotonic() >= next_look:
                    self._seen.put(self.look())
                    next_look = time.monotonic() + self.settings.interval_ms / 1000
                heard = self._devices.listen(max(min(next_look - time.monotonic(), _LISTEN_S), 0))
                if heard:
                    self._seen.put(heard)
            except Exception:
                _log.exception("looking after the machine met a fault and goes on")
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
                _log.exception("judging the health of the machine met a fault and goes on")
                self._ends.wait(1)

    def take(self, news: News) -> None:
        """What was seen or heard, judged and told."""
        now_ms = _now_ms()
        if isinstance(news, NodeDetails):
            if news != self._details:
                self._details = news
                self._tell(DetailsReport(self.node.name, news))
        elif isinstance(news, Sight):
            self._last_sight = time.monotonic()
            self._judge_sight(news, now_ms)
        else:
            for event in news:
                self._judge_xid(event, now_ms)
        self._say()

    def _judge_sight(self, sight: Sight, now_ms: int) -> None:
        settings, ends = self.settings, self._book.ends
        oldest_ms = now_ms - settings.lemon_window_ms
        self._strangers = {reading.uuid for reading in sight.gpus if reading.processes}
        for slot, reading in enumerate(sight.gpus):
            sheet = self._sheet(reading.uuid)
            found, seen = look_at_gpu(reading, sheet.seen, now_ms, settings)
            bad = lemon(reading.uuid, ends, max(oldest_ms, sheet.pardoned_ms), settings)
            found += [each for each in (bad, self._site.get(slot)) if each is not None]
            self._book.gpus[reading.uuid] = judge(replace(sheet, seen=seen), found, now_ms, settings)
        node = self._book.node
        found, seen = look_at_host(sight.host, node.seen, now_ms, settings)
        unexplained = [end for end in ends if not any(self._is_bad(unit) for unit in end.units)]
        bad = lemon(self.node.name, unexplained, max(oldest_ms, node.pardoned_ms), settings)
        silent = Symptom("silent", Health.SUSPECT, sight.silence) if sight.silence else None
        found += [each for each in (bad, silent, self._site.get(None)) if each is not None]
        # nothing tries a machine as a whole: what only a probe would end ends by being gone
        self._book.node = judge(replace(node, seen=seen, owes_probe=False), found, now_ms, settings)

    def _is_bad(self, uuid: str) -> bool:
        sheet = self._book.gpus.get(uuid)
        return sheet is not None and sheet.health is not Health.HEALTHY

    def _judge_xid(self, event: XidEvent, now_ms: int) -> None:
        symptom = symptom_of_xid(event)
        _log.warning("Xid %d on %s %s", event.xid, event.uuid or "an unknown GPU", event.told)
        if symptom is None:
            return
        if event.uuid in self._uuids:
            sheet = self._sheet(event.uuid)
            self._book.gpus[event.uuid] = judge(sheet, [symptom], now_ms, self.settings, is_look=False)
        else:  # the next look may tell which GPU it is; no other is to suffer for it
            vague = replace(symptom, health=Health.SUSPECT)
            self._book.node = judge(self._book.node, [vague], now_ms, self.settings, is_look=False)

    def _note_silence(self) -> None:
        silent_s = time.monotonic() - self._last_sight
        if silent_s * 1000 > self.settings.silence_ms_max + self.settings.interval_ms:
            why = f"driver or disk have not answered for more than {self.settings.silence_ms_max // 1000} s"
            silent = Symptom("silent", Health.SUSPECT, why)
            self._book.node = judge(self._book.node, [silent], _now_ms(), self.settings, is_look=False)
            self._say()

    def _sheet(self, uuid: str) -> Sheet:
        """One that was never seen before is taken to be as good as tried: the first probe is a while away."""
        return self._book.gpus.get(uuid) or Sheet(probed_ms=_now_ms())

    # --- telling ------------------------------------------------------------------------------------------------------

    def _say(self) -> None:
        for report in self.observations():
            said = (report.health, report.why)
            if self._told.get(report.gpu) != said:
                self._told[report.gpu] = said
                self._tell(report)
        self._file.write(self._book)

    def ended(self, end: End) -> None:
        """A task is over. Told from another thread: the list is replaced, never changed."""
        self._book.note(end, end.at_ms - self.settings.lemon_window_ms)

    # --- trying -------------------------------------------------------------------------------------------------------

    def turn(self) -> None:
        """Whatever has come back, and whatever is due."""
        self._ousted = [errand for errand in self._ousted if errand.ended() is None]
        self._remember_tasks()
        self._take_clearings()
        self._take_probe()
        self._start_probe()
        self._site_check()

    def _remember_tasks(self) -> None:
        tasks = self.occupancy.known()
        if tasks != self._book.tasks:
            self._book.tasks = tasks
            self._file.write(self._book)

    def _take_clearings(self) -> None:
        for each in read_clearings(self._folder):
            if each.at_ms <= self._cleared_ms:
                continue
            self._cleared_ms = each.at_ms
            if each.gpu is None:
                self._book.node = cleared(self._book.node, each.at_ms)
            elif each.gpu < len(self._uuids):
                uuid = self._uuids[each.gpu]
                self._book.gpus[uuid] = cleared(self._sheet(uuid), each.at_ms)
            self._say()

    def _start_probe(self) -> None:
        now_ms = _now_ms()
        for slot, uuid in enumerate(self._uuids):
            if not wants_probe(self._sheet(uuid), now_ms, self.settings):
                continue
            with self._probe_lock:
                if self._probe is not None or uuid in self._strangers or self.occupancy.is_busy(uuid):
                    continue
                if not is_simulated(uuid):
                    self._probe = (uuid, probe_errand(uuid, self.settings.probe_limit_ms))
                    return
            self._judge_probe(uuid, self._pretended_probe(slot))

    def _pretended_probe(self, slot: int) -> ProbeReading:
        drill = read_drills(self._folder).get(slot)
        is_bad = drill is not None and (drill.probe_fails or drill.vanished)
        return ProbeReading(not is_bad, "the drill says so" if is_bad else "")

    def _take_probe(self) -> None:
        with self._probe_lock:
            if self._probe is None:
                return
            uuid, errand = self._probe
            ended = errand.ended()
            if ended is None:
                return
            self._probe = None
        self._judge_probe(uuid, probe_reading(ended))

    def _judge_probe(self, uuid: str, reading: ProbeReading) -> None:
        self._book.gpus[uuid] = probed(self._sheet(uuid), reading, _now_ms(), self.settings)
        self._say()

    def _site_check(self) -> None:
        if not self.settings.site_check:
            return
        if self._check is None:
            if time.monotonic() >= self._next_check:
                self._next_check = time.monotonic() + self.settings.site_check_every_ms / 1000
                self._check = site_errand(self.settings.site_check, self.node.name, self.settings.site_check_limit_ms)
            return
        ended = self._check.ended()
        if ended is not None:
            self._check = None
            slot, symptom = symptom_of_site(site_reading(ended))
            self._site = {} if symptom is None else {slot: symptom}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
