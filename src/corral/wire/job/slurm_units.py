"""How Slurm writes durations, times, sizes and counts. Each function returns Corral's value, or raises ``Wrong``.

Facts from the manual page of sbatch 22.05. Local times are in the time zone of the caller.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo

from corral.wire.document.errors import Wrong, show

_SPANS = (
    re.compile(r"(?P<m>\d+)(?::(?P<s>\d+))?"),
    re.compile(r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)"),
    re.compile(r"(?P<d>\d+)-(?P<h>\d+)(?::(?P<m>\d+)(?::(?P<s>\d+))?)?"),
)
#: How a job must have ended, in the words of sbatch and in Corral's.
SLURM_AFTER = {"afterok": "ok", "afterany": "any", "afternotok": "not_ok"}
_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000}
_LONGEST_MS = 1_000 * 365 * _UNIT_MS["d"]
_SPAN_HINT = "Slurm writes minutes, minutes:seconds, hours:minutes:seconds, days-hours or days-hours:minutes:seconds"
_SIZE = re.compile(r"(\d{1,15})\s*([KMGT]?)B?", re.IGNORECASE)
_FROM_NOW = re.compile(r"now(?:\+(\d{1,9})\s*(second|minute|hour|day|week)?s?)?", re.IGNORECASE)
_OF_DAY = {"midnight": (0, 0), "elevenses": (11, 0), "noon": (12, 0), "fika": (15, 0), "teatime": (16, 0)}
_WORD_MS = {"": 1000, "second": 1000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000, "week": 604_800_000}
_TIME_HINT = "write it like 2026-05-01T08:00:00, 16:30, tomorrow or now+2hours"


def slurm_span(text: str) -> int | None:
    """Milliseconds; None for no limit."""
    if text.upper() in ("UNLIMITED", "INFINITE", "-1"):
        return None
    for pattern in _SPANS:
        if len(text) < 40 and (match := pattern.fullmatch(text)):
            span = sum(int(number) * _UNIT_MS[unit] for unit, number in match.groupdict().items() if number)
            if span > _LONGEST_MS:
                break
            return span
    raise Wrong("bad_span", f"{show(text)} is not a valid Slurm time", _SPAN_HINT)


def slurm_mib(text: str) -> int:
    """MiB; a number without unit is in MiB, K rounds up. Units are powers of 1024."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise Wrong("bad_size", f"{show(text)} is not a valid Slurm size", "write it like 64G, 512M or 4096 (MiB)")
    number, unit = int(match[1]), match[2].upper()
    if unit == "K":
        return -(-number // 1024)
    return number * {"": 1, "M": 1, "G": 1 << 10, "T": 1 << 20}[unit]


def slurm_count(text: str, says: str) -> int:
    """A whole number over 0; k and m are thousands and millions, as in Slurm for nodes and tasks."""
    match = re.fullmatch(r"(\d{1,9})([kKmM]?)", text)
    if match is None or not int(match[1]):
        raise Wrong("bad_number", f"{show(text)} is not {says}", "give a whole number greater than 0")
    return int(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()]


def slurm_moment(text: str, now_ms: int, zone: tzinfo) -> int:
    """Milliseconds since 1970. A time of day that has passed means tomorrow."""
    word = text.strip()
    if match := _FROM_NOW.fullmatch(word):
        return now_ms + int(match[1] or 0) * _WORD_MS[(match[2] or "").lower()]
    now = datetime.fromtimestamp(now_ms / 1000, tz=zone)
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if word.lower() in ("today", "tomorrow"):
        return _ms(today + timedelta(days=word.lower() == "tomorrow")) if word.lower() != "today" else now_ms
    if (clock := _clock(word)) is not None:
        moment = today + clock
        return _ms(moment if moment > now else moment + timedelta(days=1))
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%m/%d/%y", "%m/%d/%y-%H:%M", "%m/%d/%y-%H:%M:%S"):
        try:
            return _ms(datetime.strptime(word[:30], form).replace(tzinfo=zone))
        except (ValueError, OverflowError):
            continue
    raise Wrong("bad_time", f"{show(text)} is not a valid Slurm time", _TIME_HINT)


def _clock(word: str) -> timedelta | None:
    if word.lower() in _OF_DAY:
        hour, minute = _OF_DAY[word.lower()]
        return timedelta(hours=hour, minutes=minute)
    match = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*(am|pm)?", word, re.IGNORECASE)
    if match is None:
        return None
    hour = int(match[1]) % 12 + 12 * (match[4].lower() == "pm") if match[4] else int(match[1])
    if hour > 23 or int(match[2]) > 59 or int(match[3] or 0) > 59:
        return None
    return timedelta(hours=hour, minutes=int(match[2]), seconds=int(match[3] or 0))


def _ms(moment: datetime) -> int:
    ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    if ms < 0:
        raise Wrong("bad_time", "the time is before 1970", _TIME_HINT)
    return ms
