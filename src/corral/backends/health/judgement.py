"""From symptoms to verdicts, with memory: what must be seen several times, how long it must be gone, what a probe owes.

Pure: a sheet and what was found go in, a sheet comes out; its ``health`` and ``why`` are the verdict. The words of a
verdict stay the same as long as the verdict does, so that numbers that go up and down are not told again and again.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from corral.backends.health.readings import ProbeReading
from corral.backends.health.rules import Seen, Symptom, terms_of
from corral.core.model import Health
from corral.wire.health import HealthSettings
from corral.wire.spans import write_span

_WORSE = {health: n for n, health in enumerate(Health)}  # as they are listed: healthy, suspect, draining, failed
_BAD = (Health.DRAINING, Health.FAILED)
_PROBE_FAILED = "a probe failed"


class Track(Struct, frozen=True, gc=False):
    """One symptom over time. ``hits``: in which of the last looks it was there, the newest in the lowest bit."""

    hits: int = 0
    is_active: bool = False
    health: Health = Health.HEALTHY
    why: str = ""
    since_ms: int = 0
    seen_ms: int = 0


class Sheet(Struct, frozen=True, gc=False):
    """What is known of one GPU, or of the machine. Kept on disk: a restart forgives nothing.

    ``owes_probe``: something was wrong that only a probe makes good. ``falls``: when it became unfit for work.
    ``is_latched``: it fell too often, and only an operator makes it good. ``pardoned_ms``: what happened before does
    not count against it any more. ``best_*``: the best that probes have measured.
    """

    health: Health = Health.HEALTHY
    why: str = ""
    tracks: dict[str, Track] = {}
    seen: Seen = Seen()
    owes_probe: bool = False
    probed_ms: int = 0
    retry_ms: int = 0  # what could not be made good by a probe is not tried again before
    falls: tuple[int, ...] = ()
    is_latched: bool = False
    pardoned_ms: int = 0
    best_gflops: int = 0
    best_mib_per_s: int = 0

    @property
    def is_quiet(self) -> bool:
        """Nothing is wrong at the moment, whatever was before."""
        return not any(track.is_active for track in self.tracks.values())


def judge(
    sheet: Sheet, symptoms: Iterable[Symptom], now_ms: int, settings: HealthSettings, *, is_look: bool = True
) -> Sheet:
    """What follows from a look (or, between looks, from something that was heard)."""
    found: dict[str, Symptom] = {}
    for symptom in symptoms:
        known = found.get(symptom.code)
        if known is None or _WORSE[symptom.health] > _WORSE[known.health]:
            found[symptom.code] = symptom
    tracks: dict[str, Track] = {}
    for code in {**sheet.tracks, **found}:
        if is_look or code in found:
            track = _followed(code, sheet.tracks.get(code, Track()), found.get(code), now_ms, settings)
        else:
            track = sheet.tracks[code]
        if track.is_active or track.hits:
            tracks[code] = track
    active = {code: track for code, track in tracks.items() if track.is_active}
    owes = sheet.owes_probe or any(terms_of(code).probe for code in active)
    sheet = replace(sheet, tracks=tracks, owes_probe=owes)
    if sheet.is_latched:
        return sheet
    if active:
        worst = min(active.values(), key=lambda track: (-_WORSE[track.health], track.since_ms))
        return _verdict(sheet, worst.health, worst.why, now_ms, settings)
    if sheet.owes_probe or sheet.health is Health.HEALTHY:
        return sheet
    return replace(sheet, health=Health.HEALTHY, why=f"well again{_before(sheet)}")


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


def _verdict(sheet: Sheet, health: Health, why: str, now_ms: int, settings: HealthSettings) -> Sheet:
    falls = tuple(at for at in sheet.falls if now_ms - at < settings.relapse_window_ms)
    if health in _BAD and sheet.health not in _BAD:
        falls = (*falls, now_ms)
        if settings.relapses_max and len(falls) > settings.relapses_max:
            within = write_span(settings.relapse_window_ms)
            why = f"{why}; {len(falls)} times within {within}: it stays out until an operator clears it"
            return replace(sheet, health=Health.FAILED, why=why, falls=falls, is_latched=True)
    return replace(sheet, health=health, why=why, falls=falls)


def probed(sheet: Sheet, reading: ProbeReading, now_ms: int, settings: HealthSettings) -> Sheet:
    """What follows from having tried it."""
    retry_ms = 0 if reading.passed else now_ms + settings.probe_retry_ms
    sheet = replace(sheet, probed_ms=now_ms, retry_ms=retry_ms)
    if reading.passed is None:
        # a GPU that was only suspected is believed; one that failed waits for an operator
        if sheet.health is Health.SUSPECT and sheet.is_quiet and not sheet.is_latched:
            why = f"well again, though not tried: {reading.told}{_before(sheet)}"
            return replace(sheet, owes_probe=False, health=Health.HEALTHY, why=why, pardoned_ms=now_ms)
        return sheet
    told = _too_slow(sheet, reading, settings) if reading.passed else reading.told
    if told and sheet.why.startswith(_PROBE_FAILED):
        return replace(sheet, retry_ms=now_ms + settings.probe_retry_ms)  # the same again is no news
    if told:
        failed = _verdict(sheet, Health.FAILED, f"{_PROBE_FAILED}: {told}{_before(sheet)}", now_ms, settings)
        return replace(failed, owes_probe=True, retry_ms=now_ms + settings.probe_retry_ms)
    sheet = replace(
        sheet,
        best_gflops=max(sheet.best_gflops, reading.gflops or 0),
        best_mib_per_s=max(sheet.best_mib_per_s, reading.mib_per_s or 0),
    )
    if not sheet.is_quiet or sheet.is_latched:
        return sheet
    if sheet.health is Health.HEALTHY:
        return replace(sheet, owes_probe=False)
    why = f"a probe passed{_before(sheet)}"
    return replace(sheet, owes_probe=False, health=Health.HEALTHY, why=why, pardoned_ms=now_ms)


def _before(sheet: Sheet) -> str:
    """What began it, however much was said since."""
    if sheet.health is Health.HEALTHY or not sheet.why:
        return ""
    return f"; before: {sheet.why.rpartition('; before: ')[2]}"


def _too_slow(sheet: Sheet, reading: ProbeReading, settings: HealthSettings) -> str:
    share = settings.probe_share_percent_min
    for what, unit, now, best in (
        ("matrices", "GFLOP/s", reading.gflops, sheet.best_gflops),
        ("memory", "MiB/s", reading.mib_per_s, sheet.best_mib_per_s),
    ):
        if now is not None and best and share and now * 100 < best * share:
            return f"{what} at {now:,} {unit}, {now * 100 // best} % of the best that was measured ({best:,})"
    return ""


def wants_probe(sheet: Sheet, now_ms: int, settings: HealthSettings) -> bool:
    """Whether it should be tried as soon as it is idle: because it owes it, or because it is time."""
    if not settings.probes or sheet.is_latched or not sheet.is_quiet:
        return False
    if sheet.owes_probe:
        return now_ms >= sheet.retry_ms
    return bool(settings.probe_every_ms) and now_ms - sheet.probed_ms >= settings.probe_every_ms


def cleared(sheet: Sheet, now_ms: int) -> Sheet:
    """An operator says that it is mended."""
    why = f"cleared by an operator{_before(sheet)}" if sheet.why else ""
    return Sheet(why=why, pardoned_ms=now_ms, probed_ms=sheet.probed_ms)
