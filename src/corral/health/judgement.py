"""From symptoms to verdicts over time: how often a symptom must be seen, how long it must be gone, when to probe.

Pure: a record and the findings go in, a record comes out; its ``health`` and ``why`` are the verdict. The text of a
verdict stays the same as long as the verdict does, so that changing numbers are not reported again and again.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from corral.core.model import Health
from corral.duration_text import span
from corral.health.readings import ProbeReading
from corral.health.rules import Observation, Symptom, terms_of
from corral.wire.health import HealthSettings

_WORSE = {health: n for n, health in enumerate(Health)}  # in the order of severity: healthy, suspect, draining, failed
_BAD = (Health.DRAINING, Health.FAILED)
_PROBE_FAILED = "a probe failed"


class Track(Struct, frozen=True, gc=False):
    """One symptom over time. ``hits``: in which of the last checks it was seen, the newest in the lowest bit."""

    hits: int = 0
    is_active: bool = False
    health: Health = Health.HEALTHY
    why: str = ""
    since_ms: int = 0
    seen_ms: int = 0


class HealthRecord(Struct, frozen=True, gc=False):
    """What is known of one GPU, or of the machine. Kept on disk: a restart does not clear faults.

    ``owes_probe``: a fault was seen that only a passed probe clears. ``falls``: when it became unfit for work.
    ``is_latched``: that happened too often, and only an operator can clear it. ``pardoned_ms``: earlier events no
    longer count. ``best_*``: the best results of probes.
    """

    health: Health = Health.HEALTHY
    why: str = ""
    tracks: dict[str, Track] = {}
    seen: Observation = Observation()
    owes_probe: bool = False
    probed_ms: int = 0
    retry_ms: int = 0  # after a failed probe, no other one before this time
    falls: tuple[int, ...] = ()
    is_latched: bool = False
    pardoned_ms: int = 0
    best_gflops: int = 0
    best_mib_per_s: int = 0

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is wrong now, whatever was before."""
        return not any(track.is_active for track in self.tracks.values())


def judge(
    record: HealthRecord, symptoms: Iterable[Symptom], now_ms: int, settings: HealthSettings, *, is_look: bool = True
) -> HealthRecord:
    """The record after a check (or, between checks, after an event)."""
    found: dict[str, Symptom] = {}
    for symptom in symptoms:
        known = found.get(symptom.code)
        if known is None or _WORSE[symptom.health] > _WORSE[known.health]:
            found[symptom.code] = symptom
    tracks: dict[str, Track] = {}
    for code in {**record.tracks, **found}:
        if is_look or code in found:
            track = _followed(code, record.tracks.get(code, Track()), found.get(code), now_ms, settings)
        else:
            track = record.tracks[code]
        if track.is_active or track.hits:
            tracks[code] = track
    active = {code: track for code, track in tracks.items() if track.is_active}
    owes = record.owes_probe or any(terms_of(code).probe for code in active)
    record = replace(record, tracks=tracks, owes_probe=owes)
    if record.is_latched:
        return record
    if active:
        worst = min(active.values(), key=lambda track: (-_WORSE[track.health], track.since_ms))
        return _verdict(record, worst.health, worst.why, now_ms, settings)
    if record.owes_probe or record.health is Health.HEALTHY:
        return record
    return replace(record, health=Health.HEALTHY, why=f"healthy again{_before(record)}")


def _followed(code: str, track: Track, symptom: Symptom | None, now_ms: int, settings: HealthSettings) -> Track:
    terms = terms_of(code)
    hits = (track.hits << 1 | (symptom is not None)) & ((1 << terms.of) - 1)
    if symptom is not None and (track.is_active or hits.bit_count() >= terms.needs):
        if track.is_active and _WORSE[symptom.health] <= _WORSE[track.health]:
            return replace(track, hits=hits, seen_ms=now_ms)
        since_ms = track.since_ms if track.is_active else now_ms
        return Track(hits, True, symptom.health, symptom.why, since_ms, now_ms)
    seen_ms = min(track.seen_ms, now_ms)  # the clock may have been set back
    if track.is_active and now_ms - seen_ms < settings.quiet_ms:
        return replace(track, hits=hits, seen_ms=seen_ms)
    return replace(track, hits=hits, is_active=False)


def _verdict(record: HealthRecord, health: Health, why: str, now_ms: int, settings: HealthSettings) -> HealthRecord:
    falls = tuple(at for at in record.falls if now_ms - at < settings.relapse_window_ms)
    if health in _BAD and record.health not in _BAD:
        falls = (*falls, now_ms)
        if settings.relapses_max and len(falls) > settings.relapses_max:
            within = span(settings.relapse_window_ms)
            why = f"{why}; {len(falls)} times within {within}: out of service until an operator clears it"
            return replace(record, health=Health.FAILED, why=why, falls=falls, is_latched=True)
    return replace(record, health=health, why=why, falls=falls)


def probed(record: HealthRecord, reading: ProbeReading, now_ms: int, settings: HealthSettings) -> HealthRecord:
    """The record after a probe."""
    retry_ms = 0 if reading.passed else now_ms + settings.probe_retry_ms
    record = replace(record, probed_ms=now_ms, retry_ms=retry_ms)
    if reading.passed is None:
        # A GPU that was only suspect is trusted again; one that failed waits for an operator.
        if record.health is Health.SUSPECT and record.is_quiet and not record.is_latched:
            why = f"healthy again, but not probed: {reading.text}{_before(record)}"
            return replace(record, owes_probe=False, health=Health.HEALTHY, why=why, pardoned_ms=now_ms)
        return record
    problem = _too_slow(record, reading, settings) if reading.passed else reading.text
    if problem and record.why.startswith(_PROBE_FAILED):
        return replace(record, retry_ms=now_ms + settings.probe_retry_ms)  # the same failure is not reported again
    if problem:
        failed = _verdict(record, Health.FAILED, f"{_PROBE_FAILED}: {problem}{_before(record)}", now_ms, settings)
        return replace(failed, owes_probe=True, retry_ms=now_ms + settings.probe_retry_ms)
    record = replace(
        record,
        best_gflops=max(record.best_gflops, reading.gflops or 0),
        best_mib_per_s=max(record.best_mib_per_s, reading.mib_per_s or 0),
    )
    if not record.is_quiet or record.is_latched:
        return record
    if record.health is Health.HEALTHY:
        return replace(record, owes_probe=False)
    why = f"a probe passed{_before(record)}"
    return replace(record, owes_probe=False, health=Health.HEALTHY, why=why, pardoned_ms=now_ms)


def _before(record: HealthRecord) -> str:
    """The first cause, whatever came after it."""
    if record.health is Health.HEALTHY or not record.why:
        return ""
    return f"; before: {record.why.rpartition('; before: ')[2]}"


def _too_slow(record: HealthRecord, reading: ProbeReading, settings: HealthSettings) -> str:
    share = settings.probe_share_percent_min
    for what, unit, now, best in (
        ("matrices", "GFLOP/s", reading.gflops, record.best_gflops),
        ("memory", "MiB/s", reading.mib_per_s, record.best_mib_per_s),
    ):
        if now is not None and best and share and now * 100 < best * share:
            return f"{what} at {now:,} {unit}, {now * 100 // best} % of the best result ({best:,})"
    return ""


def wants_probe(record: HealthRecord, now_ms: int, settings: HealthSettings) -> bool:
    """Whether to probe it as soon as it is idle: because of an earlier fault, or because a probe is due."""
    if not settings.probes or record.is_latched or not record.is_quiet:
        return False
    if record.owes_probe:
        return now_ms >= record.retry_ms
    return bool(settings.probe_every_ms) and now_ms - record.probed_ms >= settings.probe_every_ms


def cleared(record: HealthRecord, now_ms: int) -> HealthRecord:
    """The record after an operator has cleared it."""
    why = f"cleared by an operator{_before(record)}" if record.why else ""
    return HealthRecord(why=why, pardoned_ms=now_ms, probed_ms=record.probed_ms)
