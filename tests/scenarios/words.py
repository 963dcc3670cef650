"""The words of a scenario line, turned into the specs of the engine. README.md is their reference.

Knows how things are written; does not know what happens to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import (
    CPU_MILLI,
    GPU_MILLI,
    MEMORY_MIB,
    Demand,
    Gpu,
    Seat,
    TaskDemand,
    amounts,
)
from corral.core.cluster.topology import NodeSpec
from corral.core.model import After, Budget, Dependency, GangSpec, JobSpec, QueueSpec, QuotaChange

UNITS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
RANGE = re.compile(r"^(?P<stem>\D*)(?P<lo>\d+)\.\.(?P=stem)?(?P<hi>\d+)$")


class Words:
    """The words of one line, read from left to right."""

    def __init__(self, line: str) -> None:
        self.line, self.tokens, self.at = line, line.split(), 0

    @property
    def left(self) -> int:
        return len(self.tokens) - self.at

    def next(self) -> str:
        if not self.left:
            raise ValueError(f"a word is missing at the end of: {self.line}")
        self.at += 1
        return self.tokens[self.at - 1]

    def peek(self) -> str:
        return self.tokens[self.at] if self.left else ""

    def skip(self, *words: str) -> None:
        """Words that only make the line read well."""
        if self.peek() in words:
            self.at += 1

    def rest(self) -> list[str]:
        found, self.at = self.tokens[self.at :], len(self.tokens)
        return found

    def clone(self) -> Words:
        twin = Words(self.line)
        twin.at = self.at
        return twin

    def duration(self) -> int:
        """``90s``, ``10m``, ``1h30m``; a leading + or - is read too."""
        word = self.next()
        parts = re.findall(r"(\d+)(ms|[smhd])", word)
        if not parts:
            raise ValueError(f"{word!r} is not a duration, in: {self.line}")
        total = sum(int(number) * UNITS[unit] for number, unit in parts)
        return -total if word.startswith("-") else total

    def duration_after(self, word: str) -> int:
        while self.next() != word:
            pass
        return self.duration()

    def size_mib(self) -> int:
        return mib(self.next())


def mib(word: str) -> int:
    """``80G`` or ``500M``."""
    return int(word[:-1]) * {"G": 1024, "M": 1}[word[-1]]


def names(word: str) -> Iterator[str]:
    """``a1`` or ``a1..a4``."""
    found = RANGE.match(word)
    if found is None:
        yield word
    else:
        yield from (f"{found['stem']}{n}" for n in range(int(found["lo"]), int(found["hi"]) + 1))


# ---- nodes and queues ------------------------------------------------------------------------------------


def node_specs(words: Words, levels: Sequence[str]) -> Iterator[NodeSpec]:
    called: list[str] = []
    while words.left and words.peek() not in levels and not words.peek().isdigit():
        called += names(words.next())
    path = dict.fromkeys(levels, "only")
    count, model, vram, islands = 0, "H100", 80 * 1024, 1
    has: dict[str, int] = {}
    while words.left:
        word = words.next()
        if word in levels:
            path[word] = words.next()
        elif word.isdigit():
            count = int(word)
            words.skip("gpus", "gpu")
        elif word == "of":
            model = words.next()
        elif word == "vram":
            vram = words.size_mib()
        elif word == "islands":
            islands = int(words.next())
        else:
            name, value = _amount(word, words)
            has[name] = value
    for name in called:
        gpus = tuple(Gpu(f"{name}-{i}", model, vram, i * islands // count) for i in range(count))
        yield NodeSpec(name, gpus, amounts(has), tuple(path[level] for level in levels))


def _amount(word: str, words: Words) -> tuple[str, int]:
    if word == "cpu":
        return CPU_MILLI, int(words.next()) * 1000
    if word == "memory":
        return MEMORY_MIB, words.size_mib()
    if word == "amount":
        return words.next(), int(words.next())
    raise ValueError(f"what is {word!r} in: {words.line}")


def queue_spec(words: Words, now_ms: int) -> QueueSpec:
    spec: dict[str, Any] = {"name": words.next(), "changes": ()}
    while words.left:
        word = words.next()
        if word in ("guarantee", "limit", "lend", "user_limit"):
            spec[word] = amounts({GPU_MILLI: int(words.next()) * 1000})
        elif word in ("weight", "max_jobs", "max_jobs_per_user", "time_share"):
            spec[word] = int(words.next())
        elif word == "ceiling":
            spec["priority_ceiling"] = int(words.next())
        elif word == "budget":  # budget 16 gpu-hours per 24h
            hours = int(words.next())
            words.skip("gpu-hours")
            words.skip("per")
            spec["budget"] = Budget(hours * 3_600_000, words.duration(), now_ms - 3_600_000)
        elif word == "extra":  # extra 8 from -1h until +2h
            more = amounts({GPU_MILLI: int(words.next()) * 1000})
            words.skip("from")
            begin = now_ms + words.duration()
            words.skip("until")
            spec["changes"] += (QuotaChange(begin, now_ms + words.duration(), more, more),)
        else:
            raise ValueError(f"what is {word!r} in: {words.line}")
    return QueueSpec(**spec)


# ---- gangs -----------------------------------------------------------------------------------------------


@dataclass
class Told:
    """What a line says of a gang: what was submitted, and what became of it so far."""

    spec: JobSpec
    user: str = "ann"
    on: list[str] = field(default_factory=list)
    waited_ms: int = 0
    ran_ms: int = 600_000
    saved_ms: int | None = None
    leaving_ms: int | None = None


#: words of a gang line with a number or a duration, and the field of the spec that they set
NUMBERS = {"priority": "priority", "parallel": "array_parallel", "requeue_exit": "requeue_exit"}
DURATIONS = {
    "limit": "time_limit_ms",
    "estimate": "estimate_ms",
    "grace": "grace_ms",
    "min_runtime": "min_runtime_ms",
    "restart": "restart_cost_ms",
    "start_timeout": "start_timeout_ms",
}
MOMENTS = {"begin": "begin_ms", "deadline": "deadline_ms"}
FLAGS = {"held": ("held", True), "checkpoints": ("checkpoints", True), "fixed": ("preemptible", False)}


def job_spec(words: Words, default_queue: str, now_ms: int) -> Told:
    demand: dict[str, Any] = {"tasks": int(words.next())}
    words.skip("x")
    each = words.next()
    task: dict[str, Any] = {"gpus": int(each)} if each.isdigit() else {"slice_mib": mib(each)}
    job: dict[str, Any] = {"queue": default_queue}
    wanted: dict[str, int] = {}
    told: dict[str, Any] = {}
    while words.left:
        word = words.next()
        if word in NUMBERS:
            job[NUMBERS[word]] = int(words.next())
        elif word in DURATIONS:
            job[DURATIONS[word]] = words.duration()
        elif word in MOMENTS:
            job[MOMENTS[word]] = now_ms + words.duration()
        elif word in FLAGS:
            job.update([FLAGS[word]])
        elif not (_of_job(word, words, job) or _of_demand(word, words, demand, task) or _of_life(word, words, told)):
            name, value = _amount(word, words)
            wanted[name] = value
    gang = GangSpec(Demand(task=TaskDemand(**task, amounts=amounts(wanted)), **demand))
    return Told(JobSpec(gangs=(gang,), **job), **told)


def _of_job(word: str, words: Words, job: dict[str, Any]) -> bool:
    match word:
        case "queue":
            job["queue"] = words.next()
        case "after":
            parent = words.next()
            after = After(words.next()) if words.peek() in list(After) else After.OK
            job["after"] = (*job.get("after", ()), Dependency(parent, after))
        case "singleton":
            job["name"], job["singleton"] = words.next(), True
        case "array":
            job["array"] = tuple(int(name) for name in names(words.next()))
        case _:
            return False
    return True


def _of_demand(word: str, words: Words, demand: dict[str, Any], task: dict[str, Any]) -> bool:
    match word:
        case "within":
            demand["within"] = words.next()
        case "prefer":  # prefer rack for 10m
            demand["prefer"] = words.next()
            words.skip("for")
            demand["prefer_wait_ms"] = words.duration()
        case "spread":  # spread rack 2
            demand["spread"] = words.next()
            demand["spread_max"] = int(words.next()) if words.peek().isdigit() else 1
        case "tp" | "spares" | "step":
            demand[word] = int(words.next())
        case "elastic":  # elastic 1..4
            fewest, _, most = words.next().partition("..")
            demand["tasks_min"], demand["tasks"] = int(fewest), int(most)
        case "of":
            task["models"] = tuple(words.next().split("|"))
        case "vram":  # vram 40G or vram 40G..80G
            least, _, most = words.next().partition("..")
            task["vram_mib_min"] = mib(least)
            task["vram_mib_max"] = mib(most) if most else None
        case _:
            return False
    return True


def _of_life(word: str, words: Words, told: dict[str, Any]) -> bool:
    match word:
        case "user":
            told["user"] = words.next()
        case "on":
            told["on"] = []
            while words.left and not _is_word(words.peek()):
                told["on"] += names(words.next())
        case "for":
            told["ran_ms"] = words.duration()
        case "waited":
            told["waited_ms"] = words.duration()
        case "saved" | "leaving":  # saved 5m ago
            told[f"{word}_ms"] = words.duration()
            words.skip("ago")
        case "ended":
            words.duration()
            words.skip("ago")
        case _:
            return False
    return True


_LIFE = {"for", "waited", "saved", "leaving", "user", "ended", "on"}
_SHAPE = {"within", "prefer", "spread", "tp", "spares", "step", "elastic", "of", "vram"}
_WORDS = {*NUMBERS, *DURATIONS, *MOMENTS, *FLAGS, *_LIFE, *_SHAPE}
_WORDS |= {"queue", "after", "singleton", "array", "cpu", "memory", "amount"}


def _is_word(token: str) -> bool:
    return token in _WORDS


def seats_on(capacity: Capacity, demand: Demand, places: Sequence[str]) -> tuple[Seat, ...]:
    """One seat for each place: ``a1`` takes the lowest GPUs free there, ``a1:4-7`` just those."""
    taken: dict[str, int] = {}
    found = []
    task = demand.task
    for place in places:
        node, _, which = place.partition(":")
        if which:
            mask = sum(1 << gpu for part in which.split(",") for gpu in _span(part))
        else:
            mask = _lowest(capacity.free[capacity.topology.number[node]] & ~taken.get(node, 0), task.gpus)
        taken[node] = taken.get(node, 0) | mask
        found.append(Seat(node, mask, task.slice_mib))
    return tuple(found)


def _span(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def _lowest(mask: int, count: int) -> int:
    picked = 0
    for _ in range(count):
        assert mask, "a running gang sits on GPUs that are not there"
        picked |= mask & -mask
        mask &= mask - 1
    return picked
