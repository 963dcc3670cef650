"""What a training script needs to know of Corral: who it is among its ranks, when to stop, and how to say "saved".

Standard library only. Outside Corral everything still works and does nothing: rank 0 of 1, never asked to stop. As
``corral.training`` in scripts, for example::

    import os, sys, time
    from corral import training

    checkpoint = f"checkpoint-{training.rank()}"    # of this process, in the directory of the job
    step = int(open(checkpoint).read()) if os.path.exists(checkpoint) else 0
    print("begins at step", step, flush=True)

    while step < 1_000:
        time.sleep(0.02)                            # a step of training
        step += 1
        if training.should_stop():                  # asked to leave: save, say so, and go
            with open(checkpoint + ".new", "w") as file:
                file.write(str(step))
            os.replace(checkpoint + ".new", checkpoint)
            if training.rank() == 0:
                training.checkpoint_saved(step)
            print("saved step", step, flush=True)
            sys.exit(training.SAVED)

Within Corral, importing this makes SIGTERM harmless in a program that does not handle it: the signal is noted, and
`should_stop` says so. A handler that the program installs itself, before or later, is the one that counts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time

_PACE_EVERY_S = 5.0

CHECKPOINT_FILE, WARNING_FILE = "CORRAL_CHECKPOINT_FILE", "CORRAL_WARNING_FILE"


REQUEUE_EXIT = "CORRAL_REQUEUE_EXIT"


def is_managed() -> bool:
    """Whether this process is a task of Corral."""
    return "CORRAL_JOB_ID" in os.environ


def job_id() -> str | None:
    return os.environ.get("CORRAL_JOB_ID")


def attempt() -> int:
    """Which run of the job this is, from 1. Above 1: there may be a checkpoint to go on from."""
    return _number("CORRAL_ATTEMPT", 1)


def rank() -> int:
    """This process among all of the gang, from 0."""
    return _number("RANK", 0)


def world_size() -> int:
    """How many processes the gang has in this run. It may be another number in the next one."""
    return _number("WORLD_SIZE", 1)


def local_rank() -> int:
    """This process among those of its task, from 0."""
    return _number("LOCAL_RANK", 0)


def local_world_size() -> int:
    return _number("LOCAL_WORLD_SIZE", 1)


def array_index() -> int | None:
    """Which element of an array this is; None: it is not of an array."""
    stated = os.environ.get("CORRAL_ARRAY_INDEX")
    return int(stated) if stated else None


def checkpoint_saved(step: int) -> None:
    """Say that a checkpoint is complete and durable at this step. What comes after it is all an eviction can cost.

    To be called by one process of the gang, after every rank has written its part.
    """
    path = os.environ.get(CHECKPOINT_FILE)
    if not path:
        return
    line = json.dumps({"step": int(step), "at_ms": time.time_ns() // 1_000_000}) + "\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line.encode())  # one write: a line is never torn
    finally:
        os.close(descriptor)


def step_done(busy_s: float) -> None:
    """Say how long this process was busy with a step: computing, loading data; *not* waiting for other ranks.

    So machines are found that slow a gang down. To be called by every rank after every step; cheap: the mean is written
    down every few seconds.
    """
    path = os.environ.get(CHECKPOINT_FILE)
    if not path:
        return
    _pace.steps, _pace.busy_s = _pace.steps + 1, _pace.busy_s + busy_s
    now_s = time.monotonic()
    if now_s < _pace.next_s:
        return
    mean_ms = round(_pace.busy_s / _pace.steps * 1000)
    _pace.steps, _pace.busy_s, _pace.next_s = 0, 0.0, now_s + _PACE_EVERY_S
    target = os.path.join(os.path.dirname(path), f"pace.{rank()}")
    with contextlib.suppress(OSError), open(f"{target}.new", "w", encoding="ascii") as file:  # it is only advice
        file.write(str(mean_ms))
        file.close()
        os.replace(f"{target}.new", target)


class _Pace:
    """Since it was last written down."""

    steps, busy_s, next_s = 0, 0.0, 0.0


_pace = _Pace()


def should_stop() -> bool:
    """Whether this task was asked to save and leave. Cheap: one look at a file that is usually not there."""
    path = os.environ.get(WARNING_FILE)
    return _noted.is_terminated or (bool(path) and os.path.exists(path or ""))


def deadline() -> float | None:
    """By when to have left, in seconds since 1970; None: nobody asked. After it comes SIGKILL."""
    warning = _warning()
    at_ms = warning.get("deadline_ms") if warning else None
    return at_ms / 1000 if isinstance(at_ms, int | float) else None


def seconds_left() -> float | None:
    """How long is left to save; None: nobody asked. By a clock that nobody can set, where the warning says so."""
    warning = _warning()
    at_ms = warning.get("boot_ms") if warning else None
    if isinstance(at_ms, int | float) and hasattr(time, "CLOCK_BOOTTIME"):
        return max(0.0, at_ms / 1000 - time.clock_gettime(time.CLOCK_BOOTTIME))
    at_s = deadline()
    return None if at_s is None else max(0.0, at_s - time.time())


def why_stop() -> str:
    """Why it was asked to leave (priority, reclaim, drain, time_limit, ...); empty: nobody asked."""
    warning = _warning()
    return str(warning.get("why", "")) if warning else ""


def _warning() -> dict[str, object] | None:
    path = os.environ.get(WARNING_FILE)
    try:
        with open(path or "", encoding="utf-8") as file:
            told = json.load(file)
    except (OSError, ValueError):
        return None  # not there, or not yet whole
    return told if isinstance(told, dict) else None


def _number(name: str, otherwise: int) -> int:
    stated = os.environ.get(name, "")
    return int(stated) if stated.isdecimal() else otherwise


#: The exit code that means: saved, run me again. That of the job (``requeue_exit``), if it names another one.
SAVED = _number(REQUEUE_EXIT, 85)


class _Noted:
    """What signals have said."""

    is_terminated = False


_noted = _Noted()


def _note_termination(*_: object) -> None:
    _noted.is_terminated = True


def _restore_in_child() -> None:
    """`multiprocessing` ends its processes by SIGTERM, and waits for them."""
    _noted.is_terminated = False
    if signal.getsignal(signal.SIGTERM) is _note_termination:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _make_termination_harmless() -> None:
    """In the program itself, not in a helper that `multiprocessing` has started for it, which imports the same."""
    if _is_helper():
        return
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return
    signal.signal(signal.SIGTERM, _note_termination)
    os.register_at_fork(after_in_child=_restore_in_child)


def _is_helper() -> bool:
    """One that is being started imports the program before it knows its parent, and is marked meanwhile."""
    known = sys.modules.get("multiprocessing.process")
    if known is None:
        return False
    return known.parent_process() is not None or getattr(known.current_process(), "_inheriting", False)


if is_managed():
    _make_termination_harmless()
