"""What a training script needs from Corral: its rank, when to stop, and how to report a checkpoint.

One file, standard library only, Python 3.9 or newer. Every job finds it as ``corral_training``, whatever Python it has;
where Corral is installed, it is also ``corral.training``; alone it is the package ``corral-training``. Outside Corral
everything works and does nothing: rank 0 of 1, never preempted. For example::

    import os, sys, time
    import corral_training as training

    checkpoint = f"checkpoint-{training.rank()}"    # of this process, in the directory of the job
    step = int(open(checkpoint).read()) if os.path.exists(checkpoint) else 0
    print("begins at step", step, flush=True)

    while step < 1_000:
        time.sleep(0.02)                            # a step of training
        step += 1
        if training.should_stop(step):              # preempted: save, report it, and exit
            with open(checkpoint + ".new", "w") as file:
                file.write(str(step))
            os.replace(checkpoint + ".new", checkpoint)
            if training.rank() == 0:
                training.checkpoint_saved(step)
            print("saved step", step, flush=True)
            sys.exit(training.SAVED)

All ranks of a gang get the same answer at the same step, also on different nodes: none is left alone in a collective.

In a job, importing this module installs a handler for SIGTERM if the program has none: the signal is recorded, and
`should_stop` returns True. A handler that the program installs itself, before or later, takes precedence.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import json
import math
import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

_PACE_EVERY_S = 5.0
_METRICS_MAX = 16
_POLL_S = 0.005  # between two looks for the step to stop at
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

CHECKPOINT_FILE, WARNING_FILE = "CORRAL_CHECKPOINT_FILE", "CORRAL_WARNING_FILE"
RESUME_STEP, RESUME_PATH = "CORRAL_RESUME_STEP", "CORRAL_RESUME_PATH"
REQUEUE_EXIT = "CORRAL_REQUEUE_EXIT"
#: The signal that makes a process write the stacks of its threads. It ends nothing: Corral sends it only to processes
#: that handle it.
STACKS_SIGNAL = getattr(signal, "SIGRTMIN", 34) + 5


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


class Checkpoint(NamedTuple):
    """A checkpoint that was reported as saved. ``path``: as it was reported; empty: the program knows where."""

    step: int
    path: str


def resume_from() -> Checkpoint | None:
    """The newest checkpoint that this job has reported in any earlier attempt; None: start from the beginning.

    All ranks get the same one. Whether it is complete is up to the program that reported it.
    """
    step = _number(RESUME_STEP, -1)
    return Checkpoint(step, os.environ.get(RESUME_PATH, "")) if step >= 0 else None


def checkpoint_saved(
    step: int, path: str | os.PathLike[str] = "", *, took_s: float | None = None, stall_s: float = 0.0
) -> None:
    """Report that the checkpoint of this step is complete and durable. A preemption costs only the work after it.

    Call it in one process of the gang, after every rank has written its part. ``path``: where it is; the next attempt
    gets it from `resume_from`. ``took_s``: how long saving took; by default the time since `should_stop` returned True.
    A job that cannot save within its grace time is not preempted for others. ``stall_s``: for how much of that time
    training stopped, if the rest was in the background.
    """
    target = os.environ.get(CHECKPOINT_FILE)
    if not target:
        return
    if took_s is None and _noted.asked_s is not None:
        took_s = time.monotonic() - _noted.asked_s
    said: dict[str, object] = {"step": int(step), "at_ms": time.time_ns() // 1_000_000}
    if os.fspath(path):
        said["path"] = os.fspath(path)
    if took_s is not None:
        said["save_ms"] = max(round(took_s * 1000), 0)
    if stall_s > 0:
        said["stall_ms"] = round(stall_s * 1000)
    descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, (json.dumps(said) + "\n").encode())  # one write, so that a line is never split
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


def report(
    step: int | None = None,
    loss: float | None = None,
    *,
    busy_s: float | None = None,
    data_s: float | None = None,
    parameters: str | None = None,
    **metrics: float,
) -> None:
    """Report that a step is done, for ``corral top`` and ``corral show``, which also notice a rank that hangs.

    ``step``: its number; by default steps are counted. ``loss`` and up to 16 other metrics: the last values are shown.
    ``busy_s``: how long this process worked on the step, *without* waiting for other ranks; by default the time that
    `busy` has measured. ``data_s``: the part of it that went into loading data. Slow ranks are found by them.
    ``parameters``: what `fingerprint` returns; ranks that should have equal parameters and do not are pointed out.
    Call it in every rank after every step; it is cheap: everything is written every few seconds, and only then is a
    tensor converted to a number.
    """
    _report(step, loss, busy_s, data_s, parameters, metrics)


def step_done(
    busy_s: float | None = None,
    *,
    step: int | None = None,
    loss: float | None = None,
    metrics: Mapping[str, float] | None = None,
) -> None:
    """`report`, as it was called in earlier versions."""
    _report(step, loss, busy_s, None, None, metrics or {})


def _report(
    step: int | None,
    loss: float | None,
    busy_s: float | None,
    data_s: float | None,
    parameters: str | None,
    metrics: Mapping[str, float],
) -> None:
    path = os.environ.get(CHECKPOINT_FILE)
    if not path:
        return
    now_s = time.monotonic()
    _pace.steps += 1
    _pace.step = _pace.step + 1 if step is None else int(step)
    measured_s, _pace.measured_s = _pace.measured_s, None
    busy_s = measured_s if busy_s is None else busy_s
    if busy_s is not None:
        _pace.busy_steps, _pace.busy_s = _pace.busy_steps + 1, _pace.busy_s + busy_s
    _pace.data_s += data_s or 0.0
    if parameters is not None:
        _pace.parameters = _pace.step, parameters
    if now_s < _pace.next_s:
        return
    folder = os.path.dirname(path)
    stated = {**({} if loss is None else {"loss": loss}), **metrics}
    if _pace.busy_steps:
        mean_ms = round(_pace.busy_s / _pace.busy_steps * 1000)
        _write_soft(os.path.join(folder, f"pace.{rank()}"), b"%d" % mean_ms)
    _write_soft(os.path.join(folder, f"progress.{rank()}"), _progress(now_s, stated))
    _pace.written_s, _pace.next_s = now_s, now_s + _PACE_EVERY_S
    _pace.steps = _pace.busy_steps = 0
    _pace.busy_s = _pace.data_s = 0.0


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Measure work of this process on a step, for `report`: ``with training.busy(): loss = model(batch)``. Put in it
    what computes, and not what waits for other ranks; on a GPU, wait for its results inside (``loss.item()``)."""
    began_s = time.monotonic()
    try:
        yield
    finally:
        _pace.measured_s = (_pace.measured_s or 0.0) + time.monotonic() - began_s


def fingerprint(parameters: Iterable[Any], values_max: int = 4096) -> str:
    """A short text that differs if the first values of tensors differ, for `report`: of ``model.parameters()``, for
    example. Ranks that replicate a model have the same one after every step."""
    found = 0
    for parameter in parameters:
        values = parameter.detach().reshape(-1)[:values_max].float().cpu().numpy()
        found = zlib.crc32(values.tobytes(), found)
    return f"{found:08x}"


def _progress(now_s: float, stated: Mapping[str, float]) -> bytes:
    """JSON has no nan: a number that is not finite is written as text."""
    numbers = {name: float(value) for name, value in list(stated.items())[:_METRICS_MAX]}
    took_ms = None if _pace.written_s is None else round((now_s - _pace.written_s) / _pace.steps * 1000)
    said: dict[str, object] = {
        "boot_ms": _boot_ms(),
        "step": _pace.step,
        "step_ms": took_ms,
        "metrics": {name: value if math.isfinite(value) else str(value) for name, value in numbers.items()},
    }
    if _pace.data_s:
        said["data_ms"] = round(_pace.data_s / _pace.steps * 1000)
    if _pace.parameters:
        said["parameters"] = _pace.parameters
    return json.dumps(said).encode()


def _boot_ms() -> int:
    return round(time.clock_gettime(_CLOCK) * 1000)


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
    data_s = 0.0
    measured_s: float | None = None  # by `busy`, in this step
    parameters: tuple[int, str] | None = None  # the last fingerprint, and the step that it was taken after
    written_s: float | None = None


_pace = _Pace()


def should_stop(step: int | None = None) -> bool:
    """Whether this process must save and exit. All ranks of the gang get the same answer for the same step.

    Call it in every rank after every step, or at the same steps in every rank. ``step``: its number; by default calls
    are counted, and then every rank must call it equally often. Cheap: a file that usually does not exist is looked
    for, and in gangs a few bytes are written. When the file is there, a call takes as long as nodes need to agree.
    """
    path = os.environ.get(WARNING_FILE)
    if world_size() == 1 or not path:
        answer = _noted.is_terminated or (bool(path) and os.path.exists(path or ""))
    else:
        answer = _stop.is_due(path, step)
    _noted.has_been_asked, _noted.uses_should_stop = answer, True
    if answer and _noted.asked_s is None:
        _noted.asked_s = time.monotonic()
    return answer


class _Stop:
    """At which step this rank stops, together with all others.

    Every rank marks in a file which step it asks about, before it looks for the warning, and what it was answered. When
    the warning is there, every rank that asks waits. So the supervisor of each node can read how far its ranks can have
    come, and the largest of these steps, over all nodes, is the same however often it is computed. No rank has passed
    it, and each reaches it without waiting for a rank that has stopped.
    """

    ASKING = 0
    CONTINUES = 1
    WAITS = 2

    def __init__(self) -> None:
        self.step = 0
        self.at: int | None = None  # the step at which all stop; None: not known
        self.file: int | None = None
        self.began_ms = _boot_ms()

    def is_due(self, warning: str, step: int | None) -> bool:
        self.step = self.step + 1 if step is None else int(step)
        self._mark(self.ASKING)
        if self.at is None and os.path.exists(warning):
            self._mark(self.WAITS)
            self.at = self._agreed(is_counted=step is None)
        if self.at is None and _noted.is_terminated:
            self.at = self.step  # not by Corral: no answer will come
        if self.at is not None and self.step >= self.at:
            return True
        self._mark(self.CONTINUES)
        return False

    def _agreed(self, is_counted: bool) -> int:
        """Wait for the step. If no answer comes, half of the time that is left is for saving."""
        left_s = seconds_left()
        end_s = time.monotonic() + (10.0 if left_s is None else left_s / 2)
        while True:
            warning = _warning() or {}
            at, agreed_ms = warning.get("stop_at"), warning.get("agreed_boot_ms")
            if isinstance(at, int):
                is_earlier = isinstance(agreed_ms, int) and agreed_ms < self.began_ms
                return self.step if is_counted and is_earlier else at  # calls of a process that was restarted since
            if not warning.get("is_agreed") or time.monotonic() > end_s:
                return self.step
            time.sleep(_POLL_S)

    def _mark(self, answer: int) -> None:
        with contextlib.suppress(OSError):
            if self.file is None:
                folder = os.path.dirname(os.environ.get(WARNING_FILE, ""))
                name, flags = f"at.{rank()}", os.O_WRONLY | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
                self.file = os.open(os.path.join(folder, name), flags, 0o644)
            os.pwrite(self.file, (max(self.step, 0) << 2 | answer).to_bytes(8, "little"), 0)


_stop = _Stop()


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
        return max(0.0, at_ms / 1000 - time.clock_gettime(_CLOCK))
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
    """What this process knows: whether it got SIGTERM, and whether and when `should_stop` has returned True."""

    is_terminated = False
    has_been_asked = False
    uses_should_stop = False
    asked_s: float | None = None


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
    """Python removes its handlers at exit: a SIGTERM at that time would replace the exit code. If a program
    uses `should_stop` and has not called it since the signal, it has not stopped because of it: its work is complete.
    One that never calls it may have stopped by a handler of its framework."""
    if signal.getsignal(signal.SIGTERM) is _note_termination:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if _noted.is_terminated and _noted.uses_should_stop and not _noted.has_been_asked:
            with contextlib.suppress(OSError):
                finished()


def _is_helper() -> bool:
    """A starting process imports the program before it knows its parent; a mark tells it apart until then."""
    known = sys.modules.get("multiprocessing.process")
    if known is None:
        return False
    return known.parent_process() is not None or getattr(known.current_process(), "_inheriting", False)


# --- frameworks -------------------------------------------------------------------------------------------------------


def leave(step: int, path: str | os.PathLike[str] = "") -> NoReturn:
    """Exit so that the job is run again, after all ranks have saved this step. Rank 0 reports the checkpoint."""
    if rank() == 0:
        checkpoint_saved(step, path)
    sys.exit(SAVED)


def stop_accelerate(accelerator: Any, step: int, folder: str | os.PathLike[str]) -> None:
    """For loops with Hugging Face Accelerate, after every step: save with ``save_state`` and exit, if it is due.

    Resume with ``accelerator.load_state(checkpoint.path)`` of `resume_from`.
    """
    if should_stop(step):
        path = os.path.join(os.fspath(folder), f"step-{step}")
        accelerator.save_state(path)
        accelerator.wait_for_everyone()
        leave(step, path)


def lightning_callback(folder: str | os.PathLike[str] = "") -> Any:
    """For Lightning: ``Trainer(callbacks=[training.lightning_callback()])``. ``folder``: for the checkpoint; by default
    the root directory of the trainer. Resume with ``trainer.fit(..., ckpt_path=training.resume_path())``."""
    is_old = "pytorch_lightning" in sys.modules and "lightning" not in sys.modules
    base: Any = importlib.import_module("pytorch_lightning" if is_old else "lightning.pytorch").Callback

    class CorralCallback(base):  # type: ignore[misc]
        def on_train_start(self, *_: Any) -> None:
            if is_managed() and threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, _note_termination)  # Lightning's handler would leave without saving

        def on_train_batch_end(self, trainer: Any, _module: Any, outputs: Any, *_: Any) -> None:
            step = trainer.global_step
            report(step, outputs.get("loss") if isinstance(outputs, dict) else outputs)
            if should_stop(step):
                path = os.path.join(os.fspath(folder) or trainer.default_root_dir, "corral.ckpt")
                trainer.save_checkpoint(path)
                trainer.strategy.barrier()
                leave(step, path)

    return CorralCallback()


def huggingface_callback() -> Any:
    """For the Trainer of Hugging Face: ``Trainer(callbacks=[training.huggingface_callback()])``. Resume with
    ``trainer.train(resume_from_checkpoint=training.resume_path())``."""
    base: Any = importlib.import_module("transformers").TrainerCallback

    class CorralCallback(base):  # type: ignore[misc]
        is_stopping = False

        def on_step_end(self, _arguments: Any, state: Any, control: Any, **_: Any) -> None:
            report(state.global_step)
            if should_stop(state.global_step):
                self.is_stopping = control.should_save = control.should_training_stop = True

        def on_save(self, arguments: Any, state: Any, _control: Any, **_: Any) -> None:
            if rank() == 0:
                checkpoint_saved(state.global_step, f"{arguments.output_dir}/checkpoint-{state.global_step}")

        def on_train_end(self, *_: Any, **__: Any) -> None:
            if self.is_stopping:
                sys.exit(SAVED)

    return CorralCallback()


def resume_path() -> str | None:
    """The path of the checkpoint to `resume_from`; None: there is none."""
    checkpoint = resume_from()
    return checkpoint.path or None if checkpoint is not None else None


def resume_step() -> int:
    """The step of the checkpoint to `resume_from`; 0: there is none."""
    checkpoint = resume_from()
    return 0 if checkpoint is None else checkpoint.step


def _write_stacks_on_signal() -> None:
    """Have the stacks of all threads written to a file when Corral asks, also if the program hangs in a library."""
    folder = os.path.dirname(os.environ.get(CHECKPOINT_FILE, ""))
    if not folder or not hasattr(faulthandler, "register") or _is_helper():
        return
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        if signal.getsignal(STACKS_SIGNAL) == signal.SIG_DFL:
            descriptor = os.open(
                os.path.join(folder, f"stacks.{rank()}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            faulthandler.register(STACKS_SIGNAL, file=descriptor, all_threads=True)


if is_managed():
    _make_termination_harmless()
    _write_stacks_on_signal()
