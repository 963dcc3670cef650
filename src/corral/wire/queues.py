"""Queues as users write them: the body of ``PUT /v1/queues/{name}`` and a part of the configuration file.

Amounts are in users' units (whole GPUs, CPUs, sizes) and are converted to those of the engine. Does not know whether
parents exist and children fit into them.
"""

from __future__ import annotations

from typing import Any

from corral.core.cluster.resources import CPU_MILLI, GPU_MILLI, MEMORY_MIB, Amounts
from corral.core.model import Budget, QueueSpec, QuotaChange
from corral.wire.document.errors import Enough, Fault, Path, Reading, Wrong, show
from corral.wire.document.key_table import Key, KeyTable, table_kind
from corral.wire.document.kinds import (
    FLAG,
    NUMBER_MAX,
    SPAN,
    SPAN_OVER_ZERO,
    ValueKind,
    bounded,
    listing,
    number,
    text,
)
from corral.wire.job.document_limits import LIMITS, DocumentLimits
from corral.wire.job.keys import DISK_MIB, QUEUE
from corral.wire.job.timing import MOMENT, PRIORITY_MOST
from corral.wire.sizes import parse_size, write_size

PAGE = "docs/configuration.md"
HOUR_MS = 3_600_000
GPU_HOURS_MAX = 100_000_000
_MILLI = {"gpus": GPU_MILLI, "cpus": CPU_MILLI}
_MIB = {"memory": MEMORY_MIB, "disk": DISK_MIB}
_NAME = text("the name of a resource", most="name_chars", pattern=r"[A-Za-z][A-Za-z0-9._/:-]*")
_MILLI_MAX = 1_000_000_000

# --- amounts ---------------------------------------------------------------------------------------------------------


def _amounts(*, signed: bool) -> ValueKind:
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
    return ValueKind(
        read, schema, "a number of GPUs, or {gpus: 8, gpus:H100: 4, cpus: 64, memory: 1TiB}", _write_amounts
    )


def _amount(name: str, value: Any, signed: bool) -> tuple[str, int]:
    if name in _MIB:
        return _MIB[name], _mib(value, signed)
    if name in _MILLI:
        return _MILLI[name], _milli(value, signed)
    if name.startswith("gpus:"):
        return f"{GPU_MILLI}:{name.removeprefix('gpus:')}", _milli(value, signed)
    if name in (*_MILLI.values(), *_MIB.values()) or name.startswith(f"{GPU_MILLI}:"):
        raise Wrong(
            "bad_choice", f"{show(name)} is an internal name", f"use {', '.join((*_MILLI, *_MIB))} or gpus:H100"
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
        raise Wrong("wrong_type", f"this must be a number of GPU-hours greater than 0, not {show(value)}")
    gpu_ms: int = round(value * HOUR_MS)
    return gpu_ms


_GPU_HOURS = ValueKind(
    _read_gpu_hours,
    {"type": "number", "exclusiveMinimum": 0, "maximum": GPU_HOURS_MAX},
    "a number of GPU-hours",
    lambda ms: ms // HOUR_MS if ms % HOUR_MS == 0 else ms / HOUR_MS,
)
BUDGET_KEYS = KeyTable(
    "budget",
    [
        Key("gpu_hours", _GPU_HOURS, "GPU-hours per window.", 5000, required=True),
        Key("window", SPAN_OVER_ZERO, "Length of a window; the next begins when it ends.", "30d", required=True),
        Key("anchor", MOMENT, "Start of one of the windows.", "2026-01-01T00:00:00Z", default="1970-01-01T00:00:00Z"),
    ],
)
CHANGE_KEYS = KeyTable(
    "changes",
    [
        Key("from", MOMENT, "Start.", "2026-05-01T00:00:00Z", required=True),
        Key("until", MOMENT, "End.", "2026-05-15T00:00:00Z", required=True),
        Key("guarantee", CHANGED, "Added to the guarantee in this period; may be negative.", {"gpus": 16}),
        Key("limit", CHANGED, "Added to the limit in this period; may be negative.", {"gpus": 16}),
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

#: Keys of other tools, with a hint for each.
ELSEWHERE = {
    "nominalquota": "did you mean guarantee?",
    "quota": "did you mean guarantee?",
    "borrowinglimit": "did you mean limit? It includes what is borrowed",
    "lendinglimit": "did you mean lend?",
    "overquotaweight": "did you mean weight?",
    "preemptminruntime": "it is a key of a job: min_runtime",
    "grptres": "did you mean limit?",
    "grptresmins": "did you mean budget?",
    "maxtresperuser": "did you mean user_limit?",
    "grpjobs": "did you mean max_jobs?",
    "maxjobs": "did you mean max_jobs_per_user?",
    "fairshare": "did you mean weight?",
}

QUEUE_KEYS = KeyTable(
    "queue",
    [
        Key("guarantee",
            AMOUNTS, "Always available to the queue; reclaimed from borrowers if needed. A number means GPUs.",
            {"gpus": 16}, default="none", into="guarantee"),
        Key("limit", AMOUNTS, "Maximum that the queue may use, including what it borrows.",
            {"gpus": 64, "gpus:H100": 16}, default="no limit", into="limit"),
        Key("lend", AMOUNTS, "Maximum of its unused guarantee that other queues may borrow.",
            {"gpus": 8}, default="all of it", into="lend"),
        Key("weight", number("a weight", 1, 1_000_000), "Share of free capacity, relative to its sibling queues.",
            2, default="1", into="weight"),
        Key("user_limit", AMOUNTS, "Maximum that one user may use in this queue.",
            {"gpus": 8}, default="no limit", into="user_limit"),
        Key("max_jobs", _JOBS,
            "Maximum number of unfinished jobs in the queue and its children; each array element counts.",
            1000, default="no limit", into="max_jobs"),
        Key("max_jobs_per_user", _JOBS, "Maximum number of unfinished jobs of each user.", 100, default="no limit",
            into="max_jobs_per_user"),
        Key("budget", _BUDGET, "GPU-hours per window.",
            {"gpu_hours": 5000, "window": "30d"}, default="no limit", into="budget"),
        Key("changes", _CHANGES, "Scheduled changes of guarantee and limit.",
            [{"from": "2026-05-01T00:00:00Z", "until": "2026-05-15T00:00:00Z", "guarantee": 16}], into="changes"),
        Key("priority_ceiling", number("a priority", -PRIORITY_MOST, PRIORITY_MOST),
            "Highest priority of jobs in this queue.",
            100, default="`jobs.priority_ceiling`", into="priority_ceiling"),
        Key("grace_max", SPAN, "Longest grace period of jobs in this queue.", "10m",
            default="`jobs.grace_max`", into="grace_max_ms"),
        Key("preemptible", FLAG, "Default of `preemptible` for jobs in this queue that do not state it.", False,
            default="that of its parent, else `jobs.preemptible`", into="preemptible"),
        Key("time_share", number("a multiple", 0, 1_000_000),
            "How long a job that saves its work runs before it may yield to an equal that will probably end sooner, in "
            "multiples of the cost of a switch; 0: never yields.",
            10, default="8", into="time_share"),
    ],
    ELSEWHERE,
    PAGE,
)  # fmt: skip
_WITH_NAME = KeyTable(
    "queue", (Key("name", QUEUE, "Path of the queue.", "lab/vision", into="name"), *QUEUE_KEYS.keys), ELSEWHERE, PAGE
)


def parse_queue(
    document: object, name: str = "", *, now_ms: int = 0, limits: DocumentLimits = LIMITS
) -> QueueSpec | list[Fault]:
    """A queue from its document. The name is an argument or in the document; the two must not differ."""
    reading = Reading(limits, now_ms, limits.faults)
    try:
        found = _WITH_NAME.read(document, (), reading)
        if name:
            QUEUE.read(name, ("name",), reading)
        if name and found.get("name", name) != name:
            reading.fault(("name",), "conflict", f"the request is for the queue {name}", "remove name")
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
    """The spec from values that ``QUEUE_KEYS`` has read."""
    return QueueSpec(name=name, **QUEUE_KEYS.fields(found))


def write_queue(spec: QueueSpec) -> dict[str, Any]:
    """Its canonical document: ``parse_queue`` reads it back."""
    usual = QueueSpec(name="")
    written: dict[str, Any] = {"name": spec.name}
    for key in QUEUE_KEYS.keys:
        value = getattr(spec, key.into)
        if value != getattr(usual, key.into):
            written[key.name] = key.kind.write(value)
    return written


def queue_schema() -> dict[str, Any]:
    return _WITH_NAME.schema
