"""A scenario: a small cluster, its queues and what happens on it, as plain data that can be written, read and shrunk.

Knows what can be said; knows nothing of how it is played (``stage``), made (``generate``) or judged.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


class Machine(Struct, frozen=True, omit_defaults=True):
    """A node. Its GPUs are of one model."""

    name: str
    gpus: int = 4
    model: str = "H100"
    vram_mib: int = 80_000
    rack: str = "r0"
    islands: int = 1
    has: dict[str, int] = {}  # cpu_milli, memory_mib; what is absent is unknown


class Terms(Struct, frozen=True, omit_defaults=True):
    """A queue. Amounts are in the units of the engine (``gpu_milli``, ``gpu_milli:H100``, ``cpu_milli``)."""

    name: str
    guarantee: dict[str, int] = {}
    limit: dict[str, int] = {}
    lend: dict[str, int] = {}
    user_limit: dict[str, int] = {}
    weight: int = 1
    time_share: int = 0
    budget_gpu_ms: int = 0  # 0: none
    budget_window_ms: int = 0
    changes: list[
        tuple[int, int, int, int]
    ] = []  # from, until (ms after the beginning), GPU milli more guarantee, limit


class Work(Struct, frozen=True, omit_defaults=True):
    """A job of one gang. ``runs_ms`` is how long it truly runs; it says ``limit_ms`` and ``estimate_ms`` of that."""

    name: str
    queue: str
    user: str = "ann"
    priority: int = 0
    tasks: int = 1
    gpus: int = 1
    slice_mib: int = 0
    models: list[str] = []
    amounts: dict[str, int] = {}
    tasks_min: int = 0
    spares: int = 0
    tp: int = 1
    within: str = ""
    spread: str = ""
    spread_max: int = 1
    prefer: str = ""
    prefer_wait_ms: int = 0
    limit_ms: int | None = None
    estimate_ms: int | None = None
    runs_ms: int = HOUR_MS
    grace_ms: int = 30_000
    min_runtime_ms: int = 0
    restart_ms: int = 60_000
    checkpoints: bool = False
    preemptible: bool = True


class Step(Struct, frozen=True, omit_defaults=True):
    """Something that happens: ``do`` says what, to ``what``, by how much.

    submit (work), wait (ms; what was placed comes up, what was told to leave leaves unless it is less than 5 s, what is
    done ends), plan, save, fail, lose, back, drain, undrain, gpu (number, health), terms, priority, cancel, hold,
    release.
    """

    do: str
    what: str = ""
    number: int = 0
    health: str = ""
    work: Work | None = None
    terms: Terms | None = None


class Scenario(Struct, frozen=True, omit_defaults=True):
    nodes: list[Machine]
    queues: list[Terms]
    steps: list[Step]
    half_life_ms: int = 24 * HOUR_MS
    patience_ms: int = 24 * HOUR_MS
    depth: int = 1
    shows: str = ""  # a sentence, for those that are kept
    judge: str = ""  # the judge that saw it
    seed: str = ""  # where it came from


def written(scenario: Scenario) -> str:
    """As JSON, one machine, queue or step on each line."""
    told: dict[str, Any] = _plain(scenario)
    lines = [f' "{key}": {_json(told.pop(key))}' for key in ("shows", "judge", "seed") if key in told]
    lists = {key: told.pop(key, []) for key in ("nodes", "queues", "steps")}
    lines += [f' "{key}": {_json(value)}' for key, value in told.items()]
    for key, items in lists.items():
        inner = ",\n  ".join(_json(item) for item in items)
        lines.append(f' "{key}": [\n  {inner}]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _plain(value: Any) -> Any:
    """As built-in types, without what is as it is by default."""
    if isinstance(value, Struct):
        kind = type(value)
        names, defaults = kind.__struct_fields__, kind.__struct_defaults__
        fields = zip(names, [NODEFAULT] * (len(names) - len(defaults)) + list(defaults), strict=True)
        stated = {name: getattr(value, name) for name, default in fields if getattr(value, name) != default}
        return {name: _plain(each) for name, each in stated.items() if each not in ({}, [])}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def read(text: str) -> Scenario:
    return msgspec.json.decode(text, type=Scenario)
