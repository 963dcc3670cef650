"""Queues as people write them: the body of ``PUT /v1/queues/{name}`` and a part of the configuration file.

Amounts are in people's units (whole GPUs, CPUs, sizes) and become those of the engine. Whether parents exist and
children fit into them is not known here.
"""

from __future__ import annotations

from typing import Any

from corral.core.cluster.resources import CPU_MILLI, GPU_MILLI, MEMORY_MIB, Amounts
from corral.core.model import Budget, QueueSpec, QuotaChange
from corral.wire.document.faults import Enough, Fault, Path, Reading, Wrong, show
from corral.wire.document.kinds import (
    FLAG,
    NUMBER_MAX,
    SPAN,
    SPAN_OVER_ZERO,
    Kind,
    bounded,
    listing,
    number,
    text,
)
from corral.wire.document.table import Key, Table, table_kind
from corral.wire.job.keys import DISK_MIB, QUEUE
from corral.wire.job.limits import LIMITS, Limits
from corral.wire.job.terms import MOMENT, PRIORITY_MOST
from corral.wire.sizes import parse_size, write_size

PAGE = "docs/configuration.md"
HOUR_MS = 3_600_000
GPU_HOURS_MAX = 100_000_000
_MILLI = {"gpus": GPU_MILLI, "cpus": CPU_MILLI}
_MIB = {"memory": MEMORY_MIB, "disk": DISK_MIB}
_NAME = text("a name of a resource", most="name_chars", pattern=r"[A-Za-z][A-Za-z0-9._/:-]*")
_MILLI_MAX = 1_000_000_000

# --- amounts ---------------------------------------------------------------------------------------------------------


def _amounts(*, signed: bool) -> Kind:
    """A number of GPUs, or a mapping of names and amounts. ``gpus:H100`` are GPUs of one model."""

    def read(value: Any, path: Path, reading: Reading) -> Amounts:
        if type(value) is not dict:
            return ((GPU_MILLI, _milli(value, signed)),)
        bounded(value, reading.limits.resources)
        found: dict[str, int] = {}
        for name, each in value.items():
            here = (*path, name if isinstance(name, str) else show(name))
            try:
                found.update([_amount(_NAME.read(name, here, reading), each, signed)])
            except Wrong as wrong:
                reading.wrong(here, wrong)
        return tuple(sorted(found.items()))

    least: dict[str, Any] = {} if signed else {"minimum": 0}
    schema = {
        "anyOf": [
            {"type": "number", **least},
            {"type": "object", "additionalProperties": {"type": ["number", "string"], **least}},
        ]
    }
    return Kind(read, schema, "a number of GPUs, or {gpus: 8, gpus:H100: 4, cpus: 64, memory: 1TiB}", _write_amounts)


def _amount(name: str, value: Any, signed: bool) -> tuple[str, int]:
    if name in _MIB:
        return _MIB[name], _mib(value, signed)
    if name in _MILLI:
        return _MILLI[name], _milli(value, signed)
    if name.startswith("gpus:"):
        return f"{GPU_MILLI}:{name.removeprefix('gpus:')}", _milli(value, signed)
    if name in (*_MILLI.values(), *_MIB.values()) or name.startswith(f"{GPU_MILLI}:"):
        raise Wrong(
            "bad_choice", f"{show(name)} is the engine's word", f"use {', '.join((*_MILLI, *_MIB))} or gpus:H100"
        )
    if type(value) is not int or abs(value) > NUMBER_MAX or (value < 0 and not signed):
        raise Wrong("wrong_type", f"this must be a whole number that is not negative, not {show(value)}")
    return name, value


def _milli(value: Any, signed: bool) -> int:
    if type(value) not in (int, float) or not abs(value) <= _MILLI_MAX or (value < 0 and not signed):
        raise Wrong("wrong_type", f"this must be an amount such as 8 or 0.5, not {show(value)}")
    milli: int = round(value * 1000)
    return milli


def _mib(value: Any, signed: bool) -> int:
    if type(value) is not str:
        raise Wrong("wrong_type", f"this must be a size such as 64GiB, not {show(value)}")
    is_less = signed and value.startswith("-")
    found = parse_size(value[1:] if is_less else value)
    if not isinstance(found, int):
        raise Wrong.of(found)
    return -found if is_less else found


def _write_amounts(stated: Amounts) -> dict[str, Any]:
    words = {engine: word for word, engine in (_MILLI | _MIB).items()}
    written: dict[str, Any] = {}
    for name, amount in stated:
        kind, colon, model = name.partition(":")
        if name in _MIB.values():
            written[words[name]] = ("-" if amount < 0 else "") + write_size(abs(amount))
        elif name in words or (colon and kind == GPU_MILLI):
            word = words[kind] + (f":{model}" if colon else "")
            written[word] = amount // 1000 if amount % 1000 == 0 else amount / 1000
        else:
            written[name] = amount
    return written


AMOUNTS, CHANGED = _amounts(signed=False), _amounts(signed=True)

# --- budgets and changes --------------------------------------------------------------------------------------------


def _read_gpu_hours(value: Any, _path: Path, _reading: Reading) -> int:
    if type(value) not in (int, float) or not 0 < value <= GPU_HOURS_MAX:
        raise Wrong("wrong_type", f"this must be a number of GPU-hours over 0, not {show(value)}")
    gpu_ms: int = round(value * HOUR_MS)
    return gpu_ms


_GPU_HOURS = Kind(
    _read_gpu_hours,
    {"type": "number", "exclusiveMinimum": 0, "maximum": GPU_HOURS_MAX},
    "a number of GPU-hours",
    lambda ms: ms // HOUR_MS if ms % HOUR_MS == 0 else ms / HOUR_MS,
)
BUDGET_KEYS = Table(
    "budget",
    [
        Key("gpu_hours", _GPU_HOURS, "How much GPU time in each window.", 5000, required=True),
        Key("window", SPAN_OVER_ZERO, "How long a window is; windows follow one another.", "30d", required=True),
        Key("anchor", MOMENT, "When some window begins.", "2026-01-01T00:00:00Z", default="1970-01-01T00:00:00Z"),
    ],
)
CHANGE_KEYS = Table(
    "changes",
    [
        Key("from", MOMENT, "From when.", "2026-05-01T00:00:00Z", required=True),
        Key("until", MOMENT, "Until when.", "2026-05-15T00:00:00Z", required=True),
        Key("guarantee", CHANGED, "Added to the guarantee meanwhile; negative takes away.", {"gpus": 16}),
        Key("limit", CHANGED, "Added to the limit meanwhile.", {"gpus": 16}),
    ],
)


def _budget(found: dict[str, Any]) -> Budget:
    return Budget(found["gpu_hours"], found["window"], found.get("anchor", 0))


def _write_budget(budget: Budget) -> dict[str, Any]:
    kinds = {key.name: key.kind for key in BUDGET_KEYS.keys}
    written = {"gpu_hours": kinds["gpu_hours"].write(budget.gpu_ms), "window": kinds["window"].write(budget.window_ms)}
    return written | ({"anchor": MOMENT.write(budget.anchor_ms)} if budget.anchor_ms else {})


def _change(found: dict[str, Any]) -> QuotaChange:
    if found["until"] <= found["from"]:
        raise Wrong("bad_range", "the change ends before it begins", "until must be later than from")
    return QuotaChange(found["from"], found["until"], found.get("guarantee", ()), found.get("limit", ()))


def _write_change(change: QuotaChange) -> dict[str, Any]:
    written: dict[str, Any] = {"from": MOMENT.write(change.from_ms), "until": MOMENT.write(change.until_ms)}
    stated = {"guarantee": change.guarantee, "limit": change.limit}
    return written | {name: CHANGED.write(amounts) for name, amounts in stated.items() if amounts}


_BUDGET = table_kind(BUDGET_KEYS, "a mapping of gpu_hours and window", _budget, _write_budget)
_CHANGES = listing(
    table_kind(CHANGE_KEYS, "a change of quota", _change, _write_change), "a list of changes", "quota_changes"
)
_JOBS = number("a number of jobs", 0)

#: Words of other tools, and what to say to them.
ELSEWHERE = {
    "nominalquota": "did you mean guarantee?",
    "quota": "did you mean guarantee?",
    "borrowinglimit": "did you mean limit? It counts what is borrowed and what is owned together",
    "lendinglimit": "did you mean lend?",
    "overquotaweight": "did you mean weight?",
    "preemptminruntime": "a job says it itself: min_runtime",
    "grptres": "did you mean limit?",
    "grptresmins": "did you mean budget?",
    "maxtresperuser": "did you mean user_limit?",
    "grpjobs": "did you mean max_jobs?",
    "maxjobs": "did you mean max_jobs_per_user?",
    "fairshare": "did you mean weight?",
}

QUEUE_KEYS = Table(
    "queue",
    [
        Key("guarantee", AMOUNTS, "Always obtainable, taken back from borrowers if need be. A number means GPUs.",
            {"gpus": 16}, default="none", into="guarantee"),
        Key("limit", AMOUNTS, "The most it may have, borrowed or not.",
            {"gpus": 64, "gpus:H100": 16}, default="no bound", into="limit"),
        Key("lend", AMOUNTS, "The most of its guarantee that it gives away while idle.",
            {"gpus": 8}, default="all of it", into="lend"),
        Key("weight", number("a weight", 1, 1_000_000), "Its part of what is free, relative to its siblings.",
            2, default="1", into="weight"),
        Key("user_limit", AMOUNTS, "The most that one user may have here.",
            {"gpus": 8}, default="no bound", into="user_limit"),
        Key("max_jobs", _JOBS, "The most unfinished jobs, here and below; each element of an array counts.",
            1000, default="no bound", into="max_jobs"),
        Key("max_jobs_per_user", _JOBS, "The same for each user.", 100, default="no bound", into="max_jobs_per_user"),
        Key("budget", _BUDGET, "GPU time in each window.",
            {"gpu_hours": 5000, "window": "30d"}, default="no bound", into="budget"),
        Key("changes", _CHANGES, "Changes of quota from one time to another.",
            [{"from": "2026-05-01T00:00:00Z", "until": "2026-05-15T00:00:00Z", "guarantee": 16}], into="changes"),
        Key("priority_ceiling", number("a priority", -PRIORITY_MOST, PRIORITY_MOST),
            "No job here has more than this priority.",
            100, default="what `jobs` allows", into="priority_ceiling"),
        Key("grace_max", SPAN, "The longest grace of a job here.", "10m",
            default="what `jobs` allows", into="grace_max_ms"),
        Key("preemptible", FLAG, "Whether a job here that does not say so may be preempted.", False,
            default="as the queue above it, or what `jobs` says", into="preemptible"),
        Key("time_share", number("a multiple", 0, 1_000_000),
            "Time sharing among equals: a turn lasts so many times what a switch costs; 0: off.",
            10, default="0", into="time_share"),
    ],
    ELSEWHERE,
    PAGE,
)  # fmt: skip
_WITH_NAME = Table(
    "queue", (Key("name", QUEUE, "Its path.", "lab/vision", into="name"), *QUEUE_KEYS.keys), ELSEWHERE, PAGE
)


def parse_queue(
    document: object, name: str = "", *, now_ms: int = 0, limits: Limits = LIMITS
) -> QueueSpec | list[Fault]:
    """A queue by its document. The name may be given, or stand in the document; not two different ones."""
    reading = Reading(limits, now_ms, limits.faults)
    try:
        found = _WITH_NAME.read(document, (), reading)
        if name:
            QUEUE.read(name, ("name",), reading)
        if name and found.get("name", name) != name:
            reading.fault(("name",), "conflict", f"the queue is called {name} already", "remove name")
        if not name and not (isinstance(document, dict) and "name" in document):
            reading.fault(("name",), "missing", "the queue has no name", "give its path: lab/vision")
        if not reading.faults:
            return queue_of(found, name or found["name"])
    except Wrong as wrong:
        reading.faults.append(Fault((), wrong.code, wrong.why, wrong.hint))
    except Enough:
        pass
    return reading.faults


def queue_of(found: dict[str, Any], name: str) -> QueueSpec:
    """The spec of what ``QUEUE_KEYS`` has read."""
    return QueueSpec(name=name, **{key.into: found[key.name] for key in QUEUE_KEYS.keys if key.name in found})


def write_queue(spec: QueueSpec) -> dict[str, Any]:
    """Its canonical document: ``parse_queue`` gives the same spec back."""
    usual = QueueSpec(name="")
    written: dict[str, Any] = {"name": spec.name}
    for key in QUEUE_KEYS.keys:
        value = getattr(spec, key.into)
        if value != getattr(usual, key.into):
            written[key.name] = key.kind.write(value)
    return written


def queue_schema() -> dict[str, Any]:
    return _WITH_NAME.schema
