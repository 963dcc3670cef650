"""From readings to symptoms: one small rule for each signal, in a table. Pure: numbers in, sentences out.

A rule sees one check (the reading, the previous one, how counters have grown, what was ever seen) and returns what is
wrong, if anything. What is unknown is never wrong. `TERMS` says how often something must be seen, and when it is over;
`judgement` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct

from corral.amount_text import size
from corral.core.model import Health
from corral.duration_text import span
from corral.health.readings import (
    THROTTLES,
    GpuReading,
    HostReading,
    NicReading,
    SiteReading,
    XidEvent,
)
from corral.health.xids import rule_of
from corral.wire.health import HOUR_MS, HealthSettings

_BUSY_PERCENT = 10  # a GPU with less use may slow down its PCIe link to save power


class Symptom(Struct, frozen=True, gc=False):
    """Something is wrong: a stable code, how bad it is, and why, with the numbers."""

    code: str
    health: Health
    why: str


class Thresholds(Struct, frozen=True, gc=False):
    """A symptom counts once it was seen in ``needs`` of the last ``of`` checks. ``probe``: only a probe clears it."""

    needs: int
    of: int
    probe: bool = False


#: By the first word of the code of a symptom.
TERMS: Mapping[str, Thresholds] = {
    "lost": Thresholds(1, 1, probe=True),
    "xid": Thresholds(1, 1, probe=True),
    "uncorrected": Thresholds(1, 1, probe=True),
    "corrected": Thresholds(1, 1, probe=True),
    "remap_failed": Thresholds(1, 1, probe=True),
    "remap_pending": Thresholds(1, 1, probe=True),
    "hot": Thresholds(3, 5),
    "memory_hot": Thresholds(3, 5),
    "throttled": Thresholds(3, 5),
    "link_down": Thresholds(2, 3, probe=True),
    "link_errors": Thresholds(1, 1, probe=True),
    "pcie_narrow": Thresholds(2, 3),
    "pcie_slow": Thresholds(3, 5),
    "pcie_replays": Thresholds(1, 1),
    "lemon": Thresholds(1, 1, probe=True),
    "site": Thresholds(1, 1),
    "nic_down": Thresholds(2, 3),
    "nic_slow": Thresholds(2, 3),
    "nic_errors": Thresholds(1, 1),
    "disk_full": Thresholds(2, 3),
    "disk_read_only": Thresholds(1, 1),
    "disk_fault": Thresholds(2, 3),
    "disk_slow": Thresholds(3, 5),
    "memory_low": Thresholds(3, 5),
    "load": Thresholds(5, 5),
    "clock_jump": Thresholds(1, 1),
    "clock_loose": Thresholds(5, 5),
    "silent": Thresholds(1, 1),
}


def terms_of(code: str) -> Thresholds:
    return TERMS[code.partition(" ")[0]]


class CounterRule(Struct, frozen=True, gc=False):
    """How much a counter has grown within the present hour."""

    last: int
    since_ms: int
    grown: int = 0


def metered(meter: CounterRule | None, value: int, now_ms: int) -> CounterRule:
    """A counter that is smaller than before was reset: all of it is new."""
    if meter is None:
        return CounterRule(value, now_ms)
    news = value - meter.last if value >= meter.last else value
    if now_ms - meter.since_ms >= HOUR_MS:
        return CounterRule(value, now_ms, news)
    return CounterRule(value, meter.since_ms, meter.grown + news)


class Observation(Struct, frozen=True, gc=False):
    """What is remembered of earlier checks: counters, links that were up, the best speed of each network card."""

    meters: dict[str, CounterRule] = {}
    links_up: tuple[int, ...] = ()
    nic_speeds: dict[str, int] = {}


class Look(Struct, frozen=True, gc=False):
    """The input of a rule. ``grown``: by counter, the increase and its time in ms; ``news``: since the last check."""

    settings: HealthSettings
    seen: Observation
    grown: dict[str, tuple[int, int]]
    news: dict[str, int]


# ---- GPUs ----------------------------------------------------------------------------------------------------------


def gpu_symptoms(
    reading: GpuReading, seen: Observation, now_ms: int, settings: HealthSettings
) -> tuple[list[Symptom], Observation]:
    """All that is wrong with a GPU, and what to remember of it."""
    counters = {
        "corrected": reading.corrected,
        "uncorrected": reading.uncorrected,
        "pcie_replays": reading.pcie_replays,
        **{f"link {link.number}": link.errors for link in reading.links or ()},
    }
    up = {link.number for link in reading.links or () if link.is_up}
    look, seen = _looked(counters, seen, now_ms, settings)
    seen = Observation(seen.meters, tuple(sorted({*seen.links_up, *up})), seen.nic_speeds)
    if not reading.is_there:
        return [Symptom("lost", Health.FAILED, "the driver can no longer reach the GPU")], seen
    return [symptom for rule in GPU_RULES for symptom in rule(reading, look)], seen


def _looked(
    counters: Mapping[str, int | None], seen: Observation, now_ms: int, settings: HealthSettings
) -> tuple[Look, Observation]:
    meters = dict(seen.meters)
    news: dict[str, int] = {}
    for name, value in counters.items():
        if value is not None:
            before = meters.get(name)
            meters[name] = metered(before, value, now_ms)
            news[name] = 0 if before is None else value - before.last if value >= before.last else value
    grown = {name: (meters[name].grown, now_ms - meters[name].since_ms) for name in news}
    return Look(settings, seen, grown, news), Observation(meters, seen.links_up, seen.nic_speeds)


def _hot(reading: GpuReading, look: Look) -> Iterator[Symptom]:
    most = reading.temperature_c_max or look.settings.temperature_c_max
    if reading.temperature_c is not None and most and reading.temperature_c >= most:
        why = f"temperature {reading.temperature_c} °C; the GPU slows down from {most} °C on"
        yield Symptom("hot", Health.SUSPECT, why)


def _memory_hot(reading: GpuReading, look: Look) -> Iterator[Symptom]:
    most = reading.memory_temperature_c_max or look.settings.memory_temperature_c_max
    if reading.memory_temperature_c is not None and most and reading.memory_temperature_c >= most:
        why = f"memory temperature {reading.memory_temperature_c} °C; the limit is {most} °C"
        yield Symptom("memory_hot", Health.SUSPECT, why)


def _throttled(reading: GpuReading, _look: Look) -> Iterator[Symptom]:
    reasons = [THROTTLES[reason] for reason in reading.throttle or () if reason in THROTTLES]
    if reasons:
        yield Symptom("throttled", Health.SUSPECT, reasons[0])


def _uncorrected(_reading: GpuReading, look: Look) -> Iterator[Symptom]:
    if look.news.get("uncorrected"):
        why = f"{_errors(look.news['uncorrected'], 'uncorrectable memory error')}"
        yield Symptom("uncorrected", Health.DRAINING, why)


def _corrected(_reading: GpuReading, look: Look) -> Iterator[Symptom]:
    grown, span_ms = look.grown.get("corrected", (0, 0))
    if _is_over(grown, look.settings.corrected_per_hour_max):
        why = f"{_errors(grown, 'corrected memory error')} within {span(span_ms)}"
        yield Symptom("corrected", Health.SUSPECT, why)


def _remap(reading: GpuReading, _look: Look) -> Iterator[Symptom]:
    if reading.has_remap_failed:
        yield Symptom(
            "remap_failed", Health.FAILED, "a bad row of memory could not be remapped: there is no spare row left"
        )
    elif reading.is_remap_pending:
        why = "a bad row of memory is to be remapped, which needs a reset of the GPU"
        yield Symptom("remap_pending", Health.SUSPECT, why)


def _links(reading: GpuReading, look: Look) -> Iterator[Symptom]:
    down = [link.number for link in reading.links or () if link.is_up is False and link.number in look.seen.links_up]
    if down:
        why = f"NVLink {_listed(down)} of {len(look.seen.links_up)} is down"
        yield Symptom("link_down", Health.DRAINING, why)
    for link in reading.links or ():
        grown, span_ms = look.grown.get(f"link {link.number}", (0, 0))
        if _is_over(grown, look.settings.link_errors_per_hour_max):
            why = f"{_errors(grown, 'error')} of NVLink {link.number} within {span(span_ms)}"
            yield Symptom("link_errors", Health.SUSPECT, why)
            return


def _pcie(reading: GpuReading, look: Look) -> Iterator[Symptom]:
    width, widest = reading.pcie_width, reading.pcie_width_max
    if width is not None and widest is not None and 0 < width < widest:
        yield Symptom("pcie_narrow", Health.SUSPECT, f"its PCIe link uses {width} of {widest} lanes")
    now, best = reading.pcie_generation, reading.pcie_generation_max
    is_busy = (reading.utilisation_percent or 0) >= _BUSY_PERCENT
    if now is not None and best is not None and 0 < now < best and is_busy:
        yield Symptom(
            "pcie_slow", Health.SUSPECT, f"its PCIe link runs at generation {now} of {best} although it is busy"
        )
    grown, span_ms = look.grown.get("pcie_replays", (0, 0))
    if _is_over(grown, look.settings.pcie_replays_per_hour_max):
        yield Symptom(
            "pcie_replays", Health.SUSPECT, f"{grown:,} transfers over PCIe were repeated within {span(span_ms)}"
        )


GpuRule = Callable[[GpuReading, Look], Iterator[Symptom]]
GPU_RULES: tuple[GpuRule, ...] = (_hot, _memory_hot, _throttled, _uncorrected, _corrected, _remap, _links, _pcie)


def symptom_of_xid(event: XidEvent) -> Symptom | None:
    """None: it is an error of the application."""
    rule = rule_of(event.xid)
    if rule.health is Health.HEALTHY:
        return None
    return Symptom(f"xid {event.xid}", rule.health, f"Xid {event.xid}: {rule.means}")


# ---- the machine ---------------------------------------------------------------------------------------------------


def host_symptoms(
    reading: HostReading, seen: Observation, now_ms: int, settings: HealthSettings
) -> tuple[list[Symptom], Observation]:
    """All that is wrong with the machine around the GPUs, and what to remember of it."""
    look, seen = _looked({f"nic {nic.name}": nic.errors for nic in reading.nics}, seen, now_ms, settings)
    speeds = dict(seen.nic_speeds)
    for nic in reading.nics:
        if nic.is_up:
            speeds[nic.name] = max(speeds.get(nic.name, 0), nic.speed_mbps or 0)
    found = [symptom for rule in HOST_RULES for symptom in rule(reading, look)]
    return found, Observation(seen.meters, seen.links_up, speeds)


def _nics(reading: HostReading, look: Look) -> Iterator[Symptom]:
    for nic in reading.nics:
        yield from _nic(nic, look)


def _nic(nic: NicReading, look: Look) -> Iterator[Symptom]:
    best = look.seen.nic_speeds.get(nic.name)
    if nic.is_up is False and best is not None:
        yield Symptom(f"nic_down {nic.name}", Health.SUSPECT, f"network card {nic.name} is down")
    elif nic.is_up and best and nic.speed_mbps is not None and nic.speed_mbps < best:
        why = f"network card {nic.name} runs at {nic.speed_mbps:,} Mbit/s instead of {best:,}"
        yield Symptom(f"nic_slow {nic.name}", Health.SUSPECT, why)
    grown, span_ms = look.grown.get(f"nic {nic.name}", (0, 0))
    if _is_over(grown, look.settings.nic_errors_per_hour_max):
        why = f"{_errors(grown, 'error')} of network card {nic.name} within {span(span_ms)}"
        yield Symptom(f"nic_errors {nic.name}", Health.SUSPECT, why)


def _disks(reading: HostReading, look: Look) -> Iterator[Symptom]:
    for disk in reading.disks:
        if disk.is_read_only:
            yield Symptom(f"disk_read_only {disk.path}", Health.DRAINING, f"{disk.path} is mounted read-only")
        elif disk.fault:
            yield Symptom(f"disk_fault {disk.path}", Health.DRAINING, f"cannot write to {disk.path}: {disk.fault}")
        elif disk.free_mib is not None and disk.free_mib < look.settings.disk_free_mib_min:
            least = look.settings.disk_free_mib_min
            why = f"only {size(disk.free_mib)} are free at {disk.path}; the minimum is {size(least)}"
            yield Symptom(f"disk_full {disk.path}", Health.SUSPECT, why)
        most_ms = look.settings.disk_write_ms_max
        if disk.write_ms is not None and most_ms and disk.write_ms > most_ms:
            why = f"a small write to {disk.path} took {span(disk.write_ms)}"
            yield Symptom(f"disk_slow {disk.path}", Health.SUSPECT, why)


def _memory(reading: HostReading, look: Look) -> Iterator[Symptom]:
    if reading.memory_mib and reading.memory_available_mib is not None:
        percent = reading.memory_available_mib * 100 // reading.memory_mib
        if percent < look.settings.memory_available_percent_min:
            left, most = size(reading.memory_available_mib), size(reading.memory_mib)
            why = f"only {left} of {most} of memory are available"
            yield Symptom("memory_low", Health.SUSPECT, why)


def _load(reading: HostReading, look: Look) -> Iterator[Symptom]:
    most = look.settings.load_percent_max
    if reading.load_percent is not None and most and reading.load_percent > most:
        why = f"the load is {reading.load_percent} % of its CPUs; the limit is {most} %"
        yield Symptom("load", Health.SUSPECT, why)


def _clock(reading: HostReading, look: Look) -> Iterator[Symptom]:
    jump, most = reading.clock.jump_ms, look.settings.clock_jump_ms_max
    if jump is not None and most and abs(jump) > most:
        why = f"the clock was set {'forward' if jump > 0 else 'back'} by {span(abs(jump))}"
        yield Symptom("clock_jump", Health.SUSPECT, why)
    if look.settings.needs_clock_sync and reading.clock.is_synchronised is False:
        yield Symptom("clock_loose", Health.SUSPECT, "the clock is not synchronised")


HostRule = Callable[[HostReading, Look], Iterator[Symptom]]
HOST_RULES: tuple[HostRule, ...] = (_nics, _disks, _memory, _load, _clock)


def symptom_of_site(reading: SiteReading) -> tuple[int | None, Symptom | None]:
    """What the operator's check means, and for which GPU: its line may start with ``gpu 3:``."""
    text = " ".join(reading.text.split())[:500]
    head, colon, rest = text.partition(":")
    words = head.split()
    of_gpu = len(words) == 2 and words[0].lower() == "gpu" and words[1].isdecimal() and bool(colon)
    slot, text = (int(words[1]), rest.strip()) if of_gpu else (None, text)
    match reading.code:
        case 0:
            return slot, None
        case 1:
            return slot, Symptom("site", Health.SUSPECT, f"the site check: {text or 'exit code 1'}")
        case 2:
            return slot, Symptom("site", Health.DRAINING, f"the site check: {text or 'exit code 2'}")
        case None:
            return None, Symptom("site", Health.SUSPECT, f"the site check failed: {text}")
        case code:
            return None, Symptom("site", Health.SUSPECT, f"the site check ended with {code}, not 0, 1 or 2: {text}")


# ---- texts ---------------------------------------------------------------------------------------------------------


def _is_over(grown: int, most: int) -> bool:
    return bool(most) and grown > most


def _errors(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
