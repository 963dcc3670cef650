"""Notices that the ranks of a task make no progress, and finds by their stacks which rank holds the others up.

A rank that hangs makes all others wait in their next collective, so no rank makes a step. Those that wait can be seen
by where they are: in a communication library. Knows the files that `corral_training` writes, in a directory of the
task's account, which may put anything there. Light to import: it runs in the supervisor of every task.
"""

from __future__ import annotations

import os

from corral.runtime.local.task.records import read_start

PROGRESS = "progress."  # and the rank
STACKS = "stacks."
LOOK_S = 2.0
#: Without a `stall_timeout`, stacks are collected after this time without a step, and after this many usual steps.
NOTICE_MS = 60_000
STEPS = 3
_ANSWER_S = 1.0  # for processes to write their stacks
_RANKS_MAX = 64
_PROGRESS_BYTES, _STACKS_BYTES = 4096, 1 << 16
_LINES_MAX = 60  # of one rank, in the log
_FRAMES = 10  # innermost ones, in which a communication library is looked for
_WAITING = (
    "/torch/distributed/", "/torch/autograd/graph.py", "/torch/_tensor.py", "/horovod/", "/mpi4py/", "/deepspeed/comm/",
    "/nccl/",
)  # fmt: skip


class Stall:
    """``lines``: for the log, with the stacks. ``suspect``: the rank that holds the others up; None: unknown."""

    def __init__(self, why: str, lines: list[str], suspect: int | None) -> None:
        self.why = why
        self.lines = lines
        self.suspect = suspect


class StallWatch:
    """``timeout_ms``: after which the task is ended; 0: never. All times in seconds of one clock, except those in
    files, which are milliseconds of CLOCK_BOOTTIME."""

    def __init__(self, folder: str, timeout_ms: int) -> None:
        self._folder = folder
        self._timeout_ms = timeout_ms
        self._steps_ms: list[int] = []  # usual times of a step, as reported
        self._asked_s: float | None = None
        self._mark: tuple[tuple[int, int], ...] = ()  # rank and time of the last report: what was stalled already
        self._next_s = 0.0

    def is_due(self, now_s: float) -> bool:
        return now_s >= self._next_s

    def is_stalled(self, now_s: float, boot_ms: int) -> bool:
        """Whether stacks should be collected now: no rank has made a step for too long. True once for each stall."""
        self._next_s = now_s + LOOK_S
        ranks = self._progress()
        if not ranks or self._asked_s is not None:
            return False
        mark = tuple(sorted((rank, at_ms) for rank, (at_ms, _, _) in ranks.items()))
        self._steps_ms = (self._steps_ms + [ms for _, _, ms in ranks.values() if ms])[-100:]
        since_ms = min(boot_ms - at_ms for at_ms, _, _ in ranks.values())
        if mark == self._mark or since_ms < self._threshold_ms():
            return False
        self._mark, self._asked_s = mark, now_s
        self._next_s = now_s + _ANSWER_S
        return True

    def stall(self, now_s: float, boot_ms: int) -> Stall | None:
        """What was found, once the processes have had time to write their stacks."""
        if self._asked_s is None or now_s < self._asked_s + _ANSWER_S:
            return None
        self._asked_s = None
        ranks = self._progress()
        since_ms = min((boot_ms - at_ms for at_ms, _, _ in ranks.values()), default=0)
        stacks = {rank: _main_stack(read_start(f"{self._folder}/{STACKS}{rank}", _STACKS_BYTES)) for rank in ranks}
        working = [rank for rank, stack in sorted(stacks.items()) if stack and not _waits(stack)]
        suspect = working[0] if len(working) == 1 or (working and len(working) < len(stacks)) else None
        usual = f"; a step usually takes {self._usual_ms() / 1000:.1f} s" if self._steps_ms else ""
        step = max((step for _, step, _ in ranks.values()), default=0)
        why = f"no step for {since_ms // 1000} s after step {step}{usual}"
        if suspect is not None:
            why += f"; rank {suspect} holds the others up, {_place(stacks[suspect])}"
        elif stacks and not working and any(stacks.values()):
            why += "; all ranks here wait for other ranks"
        return Stall(why, _lines(stacks), suspect)

    def _threshold_ms(self) -> int:
        return max(self._timeout_ms or NOTICE_MS, STEPS * self._usual_ms())

    def _usual_ms(self) -> int:
        ordered = sorted(self._steps_ms)
        return ordered[len(ordered) // 2] if ordered else 0

    def _progress(self) -> dict[int, tuple[int, int, int]]:
        """Of each rank: when it last reported, its step, and how long a step takes; 0: unknown."""
        try:
            names = [name for name in os.listdir(self._folder)[:10_000] if name.startswith(PROGRESS)]
        except OSError:
            return {}
        found = {}
        for name in sorted(names)[:_RANKS_MAX]:
            rank = name[len(PROGRESS) :]
            said = _said(read_start(f"{self._folder}/{name}", _PROGRESS_BYTES)) if rank.isdecimal() else None
            if said is not None:
                found[int(rank)] = said
        return found


def _said(text: bytes) -> tuple[int, int, int] | None:
    import json  # only for tasks that report steps

    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or type(record.get("boot_ms")) is not int or type(record.get("step")) is not int:
        return None
    step_ms = record.get("step_ms")
    return record["boot_ms"], record["step"], step_ms if type(step_ms) is int and step_ms >= 0 else 0


def _main_stack(text: bytes) -> list[str]:
    """The frames of the main thread, innermost first. It is listed last; of several dumps the last one counts."""
    frames: list[str] = []
    for line in text.decode("utf-8", "replace").splitlines():
        if "most recent call first" in line:
            frames = []
        elif line.startswith("  File "):
            frames.append(line.strip())
    return frames


def _waits(stack: list[str]) -> bool:
    return any(part in frame for frame in stack[:_FRAMES] for part in _WAITING)


def _place(stack: list[str]) -> str:
    return "at " + stack[0].removeprefix("File ") if stack else ""


def _lines(stacks: dict[int, list[str]]) -> list[str]:
    found = []
    for rank, stack in sorted(stacks.items()):
        kind = "waits for other ranks" if _waits(stack) else "does not wait for other ranks"
        found.append(f"stack of rank {rank}, which {kind}:" if stack else f"rank {rank} has written no stack")
        found += [f"  {frame}" for frame in stack[:_LINES_MAX]]
    return found
