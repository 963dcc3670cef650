"""Kinds of values for when a job may run and what follows a failure.

Each accepts the short forms that users know from other tools and writes one canonical form.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from corral.core.intake.refusal import Refusal
from corral.core.model import DEFAULT_RETRIES, After, Dependency, FailureClass, RetryRule
from corral.wire.document.errors import Path, Reading, Wrong, show
from corral.wire.document.key_table import Key, KeyTable
from corral.wire.document.kinds import FLAG, SPAN, ValueKind, choice, meant, number, text
from corral.wire.durations import parse_span
from corral.wire.job.arrays import parse_array, write_array

# --- order and time ------------------------------------------------------------------------------------------------

PRIORITIES = {"low": -100, "normal": 0, "high": 100}
PRIORITY_MOST = 1_000_000


def _read_priority(value: Any, path: Path, reading: Reading) -> int:
    if type(value) is str:
        if value in PRIORITIES:
            return PRIORITIES[value]
        raise Wrong("bad_choice", f"{show(value)} is not a priority", f"{meant(value, list(PRIORITIES))}, or a number")
    return int(_PRIORITY.read(value, path, reading))


_PRIORITY = number("a priority: a number, or low, normal or high", -PRIORITY_MOST, PRIORITY_MOST)
PRIORITY = ValueKind(_read_priority, {"anyOf": [{"enum": list(PRIORITIES)}, _PRIORITY.schema]}, _PRIORITY.says)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST_MS = 253_402_300_799_999  # the last millisecond of the year 9999
_MOMENT_HINT = "write 2026-05-01T08:00:00Z, or +2h for two hours from now"


def _read_moment(value: Any, _path: Path, reading: Reading) -> int:
    if type(value) is not str or not 1 < len(value) < 60:
        raise Wrong("bad_time", f"{show(value)} is not a time", _MOMENT_HINT)
    if value[0] == "+":
        span = parse_span(value[1:])
        if isinstance(span, Refusal):
            raise Wrong("bad_time", span.why, span.hint)
        return reading.now_ms + span
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise Wrong("bad_time", f"{show(value)} has no time zone", "add Z for UTC, or an offset such as +02:00")
        ms = (moment - EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        raise Wrong("bad_time", f"{show(value)} is not a time", _MOMENT_HINT) from None
    if not 0 <= ms <= LATEST_MS:
        raise Wrong("bad_time", f"{show(value)} is before 1970 or after 9999", _MOMENT_HINT)
    return ms


def write_moment(ms: int) -> str:
    written = (EPOCH + timedelta(milliseconds=min(ms, LATEST_MS))).isoformat(timespec="milliseconds")
    return written.replace("+00:00", "Z")


MOMENT = ValueKind(
    _read_moment,
    {"type": "string", "minLength": 2},
    "a time with its zone such as 2026-05-01T08:00:00Z, or +2h from now",
    write_moment,
)

# --- arrays and dependencies ---------------------------------------------------------------------------------------

ArraySpec = tuple[tuple[int, ...], int | None]
_PARALLEL = number("a number of elements", 1, "array_size")


def _read_range(value: Any, _path: Path, reading: Reading) -> ArraySpec:
    most = reading.limits.array_size
    if type(value) is list and value and all(type(each) is int for each in value[: most + 1]):
        value = ",".join(str(each) if 0 <= each < 10**9 else "?" for each in value[: most + 1])
    if type(value) is not str:
        hint = f'write "0-{value - 1}" for {value} elements' if type(value) is int and 0 < value < 10**6 else ""
        raise Wrong("bad_array", f"this must be indices, not {show(value)}", hint or 'write it like "0-99%10"')
    found = parse_array(value, most)
    if isinstance(found, Refusal):
        raise Wrong.of(found)
    return found


_RANGE = ValueKind(
    _read_range,
    {"anyOf": [{"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "integer", "minimum": 0}}]},
    "indices such as 0-99 or 1,3,5-9:2",
)
_ARRAY_KEYS = KeyTable(
    "array",
    [
        Key("range", _RANGE, "Indices, as in sbatch.", "0-99", required=True),
        Key("parallel", _PARALLEL, "Maximum number of elements that run at a time.", 10, default="all"),
    ],
)


def _read_array(value: Any, path: Path, reading: Reading) -> ArraySpec:
    if type(value) is not dict:
        return _read_range(value, path, reading)
    found = _ARRAY_KEYS.read(value, path, reading)
    indices, parallel = found.get("range", ((), None))
    if parallel is not None and "parallel" in found:
        raise Wrong("conflict", "the number of parallel elements is given twice", "give %10 or parallel, not both")
    return indices, found.get("parallel", parallel)


ARRAY = ValueKind(
    _read_array,
    {"anyOf": [*_RANGE.schema["anyOf"], _ARRAY_KEYS.schema]},
    'indices such as "0-99", "0-99%10" (ten at once), or {range: 0-99, parallel: 10}',
    lambda array: write_array(*array),
)

#: ``#0``: the first job of the same submission, and so on
_JOB_ID = text("the id of a job", most="name_chars", pattern=r"#?[A-Za-z0-9][A-Za-z0-9_.-]*")
_WHEN_WORDS = [each.value for each in After]
_WHEN = choice(_WHEN_WORDS)
_AFTER_KEYS = KeyTable(
    "after",
    [
        Key("job", _JOB_ID, "Job to wait for.", "12", required=True),
        Key("when", _WHEN, "How it must have ended: ok (succeeded), any, or not_ok (failed).", "any", default="ok"),
    ],
)


def _read_after(value: Any, path: Path, reading: Reading) -> Dependency:
    if type(value) is dict:
        found = _AFTER_KEYS.read(value, path, reading)
        return Dependency(found.get("job", ""), After(found.get("when", "ok")))
    if type(value) is int and 0 <= value < 10**15:
        value = str(value)
    if type(value) is not str:
        raise Wrong("wrong_type", f"this must be a job, not {show(value)}", "write 12, any:12 or {job: 12, when: any}")
    when, colon, job = value.rpartition(":")
    if not colon and value.startswith("after"):
        raise Wrong("bad_job", f"{show(value)} names no job", f"write it like {value}:12")
    if colon and when not in _WHEN_WORDS:
        hint = "write ok:12, any:12 or not_ok:12; or as in sbatch afterok:12, afterany:12 or afternotok:12"
        raise Wrong("bad_value", f"{show(when)} is not a condition on a job", hint)
    when = when if colon else "ok"
    return Dependency(_JOB_ID.read(job, path, reading), After(when))


AFTER = ValueKind(
    _read_after,
    {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "minLength": 1}, _AFTER_KEYS.schema]},
    "a job to wait for: 12, ok:12, any:12, not_ok:12 or {job: 12, when: any}",
    lambda each: f"{each.after.value}:{each.job}",
)

# --- failure -------------------------------------------------------------------------------------------------------

FOREVER = "forever"
RETRIES_MAX = 1_000_000


def _read_retry_count(value: Any, path: Path, reading: Reading) -> int | None:
    return None if value == FOREVER else int(_RETRY_NUMBER.read(value, path, reading))


def _read_percent(value: Any, _path: Path, _reading: Reading) -> int:
    if type(value) is str and re.fullmatch(r"\d{1,5}\s*%", value, re.ASCII):
        return int(value.rstrip("% "))
    raise Wrong("wrong_type", f"this must be a percentage, not {show(value)}", 'write it like "50%"')


_RETRY_NUMBER = number("a number of retries, or forever", 0, RETRIES_MAX)
_RETRY_COUNT = ValueKind(
    _read_retry_count,
    {"anyOf": [_RETRY_NUMBER.schema, {"const": FOREVER}]},
    _RETRY_NUMBER.says,
    lambda count: FOREVER if count is None else count,
)
_PERCENT = ValueKind(
    _read_percent, {"type": "string", "pattern": r"^\d{1,5}\s*%$"}, "a percentage such as 50%", "{}%".format
)
RETRY_KEYS = KeyTable(
    "retries",
    [
        Key("count", _RETRY_COUNT, "Number of retries, or `forever`.", 3, default="1", into="count"),
        Key("backoff", SPAN, "Delay before a retry.", "30s", default="10s", into="backoff_ms"),
        Key("avoid_node", FLAG, "Do not use the same node again.", True, default="false", into="avoid_node"),
        Key(
            "grow_memory",
            _PERCENT,
            "Increase the memory request by this percentage.",
            "50%",
            default="0%",
            into="grow_memory_percent",
        ),
    ],
)
_RETRY = ValueKind(
    lambda value, _path, _reading: value,
    {"anyOf": [*_RETRY_COUNT.schema["anyOf"], RETRY_KEYS.schema]},
    "a number, forever, or {count, backoff, avoid_node, grow_memory}",
)
_CLASSES = KeyTable(
    "retries",
    [Key(each.value, _RETRY, f"After a failure of the class {each.value}.", 2) for each in DEFAULT_RETRIES],
)
Retries = tuple[tuple[FailureClass, RetryRule], ...]


def _read_retries(value: Any, path: Path, reading: Reading) -> Retries:
    if type(value) is not dict:
        return ((FailureClass.USER_ERROR, RetryRule(_read_retry_count(value, path, reading))),)
    found: list[tuple[FailureClass, RetryRule]] = []
    for name, stated in _CLASSES.read(value, path, reading).items():
        try:
            found.append((FailureClass(name), _retry_rule(FailureClass(name), stated, (*path, name), reading)))
        except Wrong as wrong:
            reading.wrong((*path, name), wrong)
    return tuple(found)


def _retry_rule(failure: FailureClass, stated: Any, path: Path, reading: Reading) -> RetryRule:
    """Keys that are not given have the defaults of the class; a rule means at least one retry."""
    usual = DEFAULT_RETRIES[failure]
    said = RETRY_KEYS.read(stated, path, reading) if type(stated) is dict else {}
    count = usual.count if usual.count != 0 else 1
    if type(stated) is not dict:
        count = _read_retry_count(stated, path, reading)
    return RetryRule(
        said.get("count", count),
        said.get("backoff", usual.backoff_ms),
        said.get("avoid_node", usual.avoid_node),
        said.get("grow_memory", usual.grow_memory_percent),
    )


def _write_retries(retries: Retries) -> Any:
    return {failure.value: _write_rule(DEFAULT_RETRIES.get(failure, RetryRule()), rule) for failure, rule in retries}


def _write_rule(usual: RetryRule, rule: RetryRule) -> Any:
    written: dict[str, Any] = {
        key.name: key.kind.write(getattr(rule, key.into))
        for key in RETRY_KEYS.keys
        if key.name == "count" or getattr(rule, key.into) != getattr(usual, key.into)
    }
    return written if len(written) > 1 else written["count"]


RETRIES = ValueKind(
    _read_retries,
    {"anyOf": [*_RETRY_COUNT.schema["anyOf"], _CLASSES.schema]},
    "a number (after errors of the user's program), or a rule for each class of failure",
    _write_retries,
)
