"""What a training script needs from Corral: its rank, when to stop, and how to report a checkpoint.

One file, standard library only, Python 3.8 or newer. Every job finds it as ``corral_training``, whatever Python it has;
where Corral is installed, it is also ``corral.training``. Outside Corral everything works and does nothing: rank 0 of
1, never preempted. For example::

    import os, sys, time
    import corral_training as training

    checkpoint = f"checkpoint-{training.rank()}"    # of this process, in the directory of the job
    step = int(open(checkpoint).read()) if os.path.exists(checkpoint) else 0
    print("begins at step", step, flush=True)

    while step < 1_000:
        time.sleep(0.02)                            # a step of training
        step += 1
        if training.should_stop():                  # preempted: save, report it, and exit
            with open(checkpoint + ".new", "w") as file:
                file.write(str(step))
            os.replace(checkpoint + ".new", checkpoint)
            if training.rank() == 0:
                training.checkpoint_saved(step)
            print("saved step", step, flush=True)
            sys.exit(training.SAVED)

In a job, importing this module installs a handler for SIGTERM if the program has none: the signal is recorded, and
`should_stop` returns True. A handler that the program installs itself, before or later, takes precedence.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping

_PACE_EVERY_S = 5.0
_METRICS_MAX = 16

CHECKPOINT_FILE, WARNING_FILE = "CORRAL_CHECKPOINT_FILE", "CORRAL_WARNING_FILE"


REQUEUE_EXIT = "CORRAL_REQUEUE_EXIT"


def is_managed() -> bool:
    """Whether this process is a task of Corral."""
    return "CORRAL_JOB_ID" in os.environ


def job_id() -> str | None:
    return os.environ.get("CORRAL_JOB_ID")


def attempt() -> int:
    """The number of this attempt, from 1. Above 1: there may be a checkpoint to resume from."""
    return _number("CORRAL_ATTEMPT", 1)


def rank() -> int:
    """The rank of this process in the gang, from 0."""
    return _number("RANK", 0)


def world_size() -> int:
    """The number of processes of the gang in this attempt. It may differ in the next one."""
    return _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """The rank of this process in its task, from 0."""
    return _number("LOCAL_RANK", 0)


def local_world_size() -> int:
    return _number("LOCAL_WORLD_SIZE", 1)


def array_index() -> int | None:
    """The index of this job in its array; None: not an array."""
    stated = os.environ.get("CORRAL_ARRAY_INDEX")
    return int(stated) if stated else None


def checkpoint_saved(step: int) -> None:
    """Report that the checkpoint of this step is complete and durable. A preemption costs only the work after it.

    Call it in one process of the gang, after every rank has written its part.
    """
    path = os.environ.get(CHECKPOINT_FILE)
    if not path:
        return
    line = json.dumps({"step": int(step), "at_ms": time.time_ns() // 1_000_000}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())  # one write, so that a line is never split
    finally:
        os.close(descriptor)


def finished() -> None:
    """Report that the work is complete. An exit with 0 is then a success, also if the job was asked to stop meanwhile.

    Without this, a program that handles SIGTERM and exits with 0 after it is run again: most frameworks exit with 0
    when they are asked to stop. A loop that uses `should_stop` need not call it.
    """
    path = os.environ.get(CHECKPOINT_FILE)
    if path:
        descriptor = os.open(os.path.join(os.path.dirname(path), "finished"), os.O_WRONLY | os.O_CREAT, 0o644)
        os.close(descriptor)


def step_done(
    busy_s: float | None = None,
    *,
    step: int | None = None,
    loss: float | None = None,
    metrics: Mapping[str, float] | None = None,
) -> None:
    """Report that a step is done, for ``corral top`` and ``corral show``, which also notice a rank that hangs.

    ``busy_s``: how long this process worked on it: computing and loading data, *not* waiting for other ranks. Corral
    uses it to find nodes that slow a gang down. ``step``: its number; by default steps are counted. ``loss`` and up to
    16 other ``metrics``: their last values are shown. Call it in every rank after every step; it is cheap: everything
    is written every few seconds, and only then is a tensor converted to a number.
    """
    path = os.environ.get(CHECKPOINT_FILE)
    if not path:
        return
    now_s = time.monotonic()
    _pace.steps += 1
    _pace.step = _pace.step + 1 if step is None else int(step)
    if busy_s is not None:
        _pace.busy_steps, _pace.busy_s = _pace.busy_steps + 1, _pace.busy_s + busy_s
    if now_s < _pace.next_s:
        return
    folder = os.path.dirname(path)
    stated = {**({} if loss is None else {"loss": loss}), **(metrics or {})}
    if _pace.busy_steps:
        mean_ms = round(_pace.busy_s / _pace.busy_steps * 1000)
        _write_soft(os.path.join(folder, f"pace.{rank()}"), b"%d" % mean_ms)
    _write_soft(os.path.join(folder, f"progress.{rank()}"), _progress(now_s, stated))
    _pace.written_s, _pace.next_s = now_s, now_s + _PACE_EVERY_S
    _pace.steps = _pace.busy_steps = 0
    _pace.busy_s = 0.0


def _progress(now_s: float, stated: Mapping[str, float]) -> bytes:
    """JSON has no nan: a number that is not finite is written as text."""
    numbers = {name: float(value) for name, value in list(stated.items())[:_METRICS_MAX]}
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    took_ms = None if _pace.written_s is None else round((now_s - _pace.written_s) / _pace.steps * 1000)
    said = {
        "boot_ms": round(time.clock_gettime(clock) * 1000),
        "step": _pace.step,
        "step_ms": took_ms,
        "metrics": {name: value if math.isfinite(value) else str(value) for name, value in numbers.items()},
    }
    return json.dumps(said).encode()


def _write_soft(target: str, content: bytes) -> None:
    with contextlib.suppress(OSError):  # the report is optional
        _replace(target, content)


def _replace(path: str, content: bytes) -> None:
    """A reader sees the old or the new content."""
    beside = f"{path}.{os.getpid()}.new"
    with open(beside, "wb") as file:
        file.write(content)
    os.replace(beside, path)


class _Pace:
    """Steps and times since the last write, and the number of the last step."""

    steps = 0
    busy_steps = 0
    busy_s = 0.0
    next_s = 0.0
    step = 0
    written_s: float | None = None


_pace = _Pace()


def should_stop() -> bool:
    """Whether this task must save and exit. Cheap: tests for a file that usually does not exist."""
    path = os.environ.get(WARNING_FILE)
    _noted.has_been_asked = _noted.is_terminated or (bool(path) and os.path.exists(path or ""))
    return _noted.has_been_asked


def deadline() -> float | None:
    """The time by which to exit, in seconds since 1970; None: not preempted. SIGKILL follows."""
    warning = _warning()
    at_ms = warning.get("deadline_ms") if warning else None
    return at_ms / 1000 if isinstance(at_ms, (int, float)) else None


def seconds_left() -> float | None:
    """Seconds left to save; None: not preempted. By the monotonic clock if the warning has its time."""
    warning = _warning()
    at_ms = warning.get("boot_ms") if warning else None
    if isinstance(at_ms, (int, float)) and hasattr(time, "CLOCK_BOOTTIME"):
        return max(0.0, at_ms / 1000 - time.clock_gettime(time.CLOCK_BOOTTIME))
    at_s = deadline()
    return None if at_s is None else max(0.0, at_s - time.time())


def why_stop() -> str:
    """Why it must exit (priority, reclaim, drain, time_limit, ...); empty: not preempted."""
    warning = _warning()
    return str(warning.get("why", "")) if warning else ""


def _warning() -> dict[str, object] | None:
    path = os.environ.get(WARNING_FILE)
    try:
        with open(path or "", encoding="utf-8") as file:
            warning = json.load(file)
    except (OSError, ValueError):
        return None  # missing, or not complete yet
    return warning if isinstance(warning, dict) else None


def _number(name: str, otherwise: int) -> int:
    stated = os.environ.get(name, "")
    return int(stated) if stated.isdecimal() else otherwise


#: Exit code that means: saved, requeue. The ``requeue_exit`` of the job, if it is set.
SAVED = _number(REQUEUE_EXIT, 85)


class _Noted:
    """What this process knows: whether it got SIGTERM, and whether `should_stop` has returned True."""

    is_terminated = False
    has_been_asked = False


_noted = _Noted()


def _note_termination(*_: object) -> None:
    _noted.is_terminated = True


def _restore_in_child() -> None:
    """`multiprocessing` ends its processes with SIGTERM and waits for them."""
    _noted.is_terminated = False
    if signal.getsignal(signal.SIGTERM) is _note_termination:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _make_termination_harmless() -> None:
    """Install only in the program itself, not in a process of `multiprocessing`, which imports the same modules."""
    if _is_helper():
        return
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _note_termination)
    os.register_at_fork(after_in_child=_restore_in_child)
    atexit.register(_ignore_at_exit)


def _ignore_at_exit() -> None:
    """Python removes its handlers at exit: a SIGTERM at that time would replace the exit code. If `should_stop` was not
    called since the signal, the program has not stopped because of it: its work is complete."""
    if signal.getsignal(signal.SIGTERM) is _note_termination:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if _noted.is_terminated and not _noted.has_been_asked:
            with contextlib.suppress(OSError):
                finished()


def _is_helper() -> bool:
    """A starting process imports the program before it knows its parent; a mark tells it apart until then."""
    known = sys.modules.get("multiprocessing.process")
    if known is None:
        return False
    return known.parent_process() is not None or getattr(known.current_process(), "_inheriting", False)


if is_managed():
    _make_termination_harmless()
