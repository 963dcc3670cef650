"""Kinds of values for the resources of a gang: GPUs, VRAM, CPUs, number of tasks, topology.

Each accepts the short forms that users know from other tools and writes one canonical form. Does not know what is free.
"""

from __future__ import annotations

import re
from typing import Any

from corral.core.intake.refusal import Refusal
from corral.wire.document.errors import Path, Reading, Wrong, show
from corral.wire.document.key_table import Key, KeyTable
from corral.wire.document.kinds import SPAN, ValueKind, number, text
from corral.wire.sizes import parse_counts, parse_vram, write_vram

MODEL = text("a GPU model such as H100", most="name_chars", pattern=r"[A-Za-z0-9][A-Za-z0-9 ._+-]*")
LEVEL = text("a level of the topology such as node or rack", most="name_chars", pattern=r"[A-Za-z][A-Za-z0-9_-]*")

# --- the GPUs of a task --------------------------------------------------------------------------------------------

Gpus = tuple[int | None, tuple[str, ...]]  # count, models
_COUNT_FIRST = re.compile(r"(\d{1,6})\s*[x×*]\s*(\S.*)", re.ASCII)
_MODEL_FIRST = re.compile(r"([^:]+):(\d{1,6})", re.ASCII)


def _read_gpus(value: Any, path: Path, reading: Reading) -> Gpus:
    if type(value) is float and not value.is_integer():
        hint = "for a part of a GPU request some of its VRAM: vram: 20GiB, or --vram 20GiB"
        raise Wrong("wrong_type", f"{show(value)} is not a whole number of GPUs", hint)
    if type(value) is not str:
        return GPU_COUNT.read(value, path, reading), ()
    if len(value) > 200:
        raise Wrong("too_long", f"{show(value)} is not a number of GPUs")
    bare = value.strip()
    if bare.isascii() and bare.isdigit() and len(bare) < 7:
        count, model = int(bare), ""
    elif match := _COUNT_FIRST.fullmatch(bare):
        count, model = int(match[1]), match[2]
    elif match := _MODEL_FIRST.fullmatch(bare):
        count, model = int(match[2]), match[1]
    else:
        count, model = 1, bare
    if ":" in model:
        raise Wrong("wrong_type", f"{show(value)} is not a number of GPUs", "write it like 2, 2xH100 or H100:2")
    models = tuple(MODEL.read(each.strip(), path, reading) for each in model.split("|")) if model else ()
    return GPU_COUNT.read(count, path, reading), models


GPU_COUNT = number("a number of GPUs", 0, "gpus")
GPUS = ValueKind(
    _read_gpus,
    {"anyOf": [GPU_COUNT.schema, {"type": "string", "minLength": 1}]},
    "a number of GPUs, with their model if it matters: 8, 8xH100 or H100:8",
)


def _read_vram(value: Any, _path: Path, _reading: Reading) -> tuple[int, int | None]:
    if type(value) is not str or len(value) > 100:
        raise Wrong(
            "wrong_type", f"this must be a range of VRAM, not {show(value)}", "write 40GB.., 40GB..80GB or 80GB"
        )
    found = parse_vram(value)
    if isinstance(found, Refusal):
        raise Wrong.of(found)
    return found.low or 0, found.high


VRAM_RANGE = ValueKind(
    _read_vram,
    {"type": "string", "minLength": 1},
    "a range of VRAM: 40GB.., 40GB..80GB, ..48GB, or 80GB for cards of that size",
    lambda bounds: write_vram(*bounds),
)


def _read_cpus(value: Any, _path: Path, _reading: Reading) -> int:
    if type(value) not in (int, float) or not 0 < value <= 1_000_000:
        why = f"this must be a number of CPUs greater than 0, not {show(value)}"
        raise Wrong("wrong_type", why, "write it like 4 or 0.5")
    milli: int = round(value * 1000)
    if milli < 1:
        raise Wrong("out_of_range", f"{show(value)} CPUs are less than a thousandth of one")
    return milli


CPUS = ValueKind(
    _read_cpus,
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1_000_000},
    "a number of CPUs such as 4 or 0.5",
    lambda milli: milli // 1000 if milli % 1000 == 0 else milli / 1000,
)

# --- how many tasks ------------------------------------------------------------------------------------------------

Size = tuple[int, int, int]  # fewest (0: not elastic), most, step

TASK_COUNT = number("a number of tasks", 1, "tasks")
_NODE_COUNT = number("a number of nodes", 1, "tasks")
_SIZE_PATTERN = r"^\s*\d+\s*(\.\.\s*\d+\s*)?(/\d+)?$"
_STEP = number("a step of tasks", 1, "tasks")
_SIZE_KEYS = KeyTable(
    "tasks",
    [
        Key("min", TASK_COUNT, "Minimum number of tasks.", 2, required=True),
        Key("max", TASK_COUNT, "Maximum number of tasks.", 8, required=True),
        Key("step", _STEP, "Number of tasks by which it shrinks and grows.", 2, default="1"),
    ],
)


def _read_tasks(value: Any, path: Path, reading: Reading) -> Size:
    if type(value) is str and len(value) < 60:
        return _size_from_text(value, path, reading)
    if type(value) is dict:
        found = _SIZE_KEYS.read(value, path, reading)
        least, most = found.get("min", 1), found.get("max", found.get("min", 1))
        if least > most:
            raise Wrong("bad_range", f"min is {least}, but max is {most}", "min must not be more than max")
        return least, most, found.get("step", 1)
    count = _NODE_COUNT if path[-1:] == ("nodes",) else TASK_COUNT
    return 0, count.read(value, path, reading), 1


def _size_from_text(value: str, path: Path, reading: Reading) -> Size:
    body, slash, step = value.partition("/")
    range_ = parse_counts(body)
    if isinstance(range_, Refusal):
        raise Wrong("bad_range", range_.why, "write 4, or 2..8 for an elastic gang, or 2..8/2 with a step of 2")
    if range_.low is None or range_.high is None:
        raise Wrong("bad_range", f"{show(value)} has only one end", "give both: 2..8")
    least, most = (TASK_COUNT.read(each, path, reading) for each in (range_.low, range_.high))
    if slash and not (step.isascii() and step.isdigit() and len(step) < 7):
        raise Wrong("bad_range", f"{show(step)} is not a step", "write it like 2..8/2")
    return (least if ".." in body else 0), most, _STEP.read(int(step), path, reading) if slash else 1


def _write_tasks(size: Size) -> Any:
    least, most, step = size
    if not least and step == 1:
        return most
    return {"min": least, "max": most} | ({"step": step} if step != 1 else {})


TASKS = ValueKind(
    _read_tasks,
    {
        "anyOf": [
            TASK_COUNT.schema,
            {"type": "string", "pattern": r"^\s*\d+\s*(\.\.\s*\d+\s*)?(/\d+)?$"},
            _SIZE_KEYS.schema,
        ]
    },
    "a number of tasks, or 2..8 (in steps: 2..8/2) for a gang that may shrink and grow",
    _write_tasks,
)


# --- topology ------------------------------------------------------------------------------------------------------

_PREFER_KEYS = KeyTable(
    "prefer",
    [
        Key("level", LEVEL, "All tasks in one domain of this level, if possible.", "rack", required=True),
        Key("wait", SPAN, "How long to wait for such a placement.", "10m", default="0s"),
    ],
)
_SPREAD_KEYS = KeyTable(
    "spread",
    [
        Key("level", LEVEL, "Topology level: tasks are spread over its domains.", "rack", required=True),
        Key("max", number("a number of tasks", 1, "tasks"), "Maximum number of tasks in one domain.", 2, default="1"),
    ],
)


def _leveled(keys: KeyTable, other: str, default: int, says: str) -> ValueKind:
    def read(value: Any, path: Path, reading: Reading) -> tuple[str, int]:
        if type(value) is dict:
            found = keys.read(value, path, reading)
            return found.get("level", ""), found.get(other, default)
        return LEVEL.read(value, path, reading), default

    def write(pair: tuple[str, int]) -> Any:
        level, amount = pair
        return level if amount == default else {"level": level, other: keys.by_name[other].kind.write(amount)}

    return ValueKind(read, {"anyOf": [LEVEL.schema, keys.schema]}, says, write)


PREFER = _leveled(_PREFER_KEYS, "wait", 0, "a level, or {level: rack, wait: 10m}")
SPREAD = _leveled(_SPREAD_KEYS, "max", 1, "a level, or {level: rack, max: 2}")
