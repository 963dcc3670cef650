"""The supervisor of one task: has it started, stores its output, warns it and ends it, and records the result.

Every task has one supervisor, in its own session. It is detached, so it outlives the server and the spawner. It obeys
lines in the task's control FIFO and never asks the server anything. Knows the life of one task, not how it runs: that
is up to a `Runner`.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os
import select
import time

from corral.amount_text import size
from corral.io.files import sync, write_file
from corral.runtime.last_words import last_words, signal_text
from corral.runtime.local.activity.stall_watch import StallWatch
from corral.runtime.local.step_marks import StopMarks
from corral.runtime.local.task import records, scratch, system
from corral.runtime.local.task.classify import by_rules, symptom
from corral.runtime.local.task.lease import WHY, TaskLease
from corral.runtime.local.task.lease import now_ms as boot_ms
from corral.runtime.local.task.processes import Processes, rank_of
from corral.runtime.local.task.start import NODE_LOST, START_FAILED, USER_ERROR, Account, Acting, StartFault
from corral.runtime.local.task.streams import STDERR, STDOUT, Stream, open_copy
from corral.runtime.steps.task_files import open_steps, put_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from corral.runtime.local.task.task_request import Request
    from corral.runtime.steps.seat_host import StepHost

    #: Waits up to this many milliseconds for a descriptor (-1: none). Returns whether the task is still wanted.
    Wait = Callable[[int, int], bool]
    #: How processes ended: the wait status of each, whether it was an orphan, started by another process, and its
    #: number in the task; -1: unknown.
    Ends = list[tuple[int, bool, int]]

    class Runner(Protocol):
        """How a task runs: as processes, or in a container. It knows neither warnings nor deadlines."""

        group: str  # the cgroup that the task shares with its supervisor; empty: none
        running: dict[int, int]  # those of its processes whose end ends the task, and their pidfds
        has_orphans: bool  # all of them have ended, but not all that they started

        @property
        def has_heard(self) -> bool:
            """Whether a process that handles a signal has got one."""
            ...

        def start(self, account: Account, streams: list[Stream], poll: select.poll, wait: Wait) -> bool:
            """Return when it runs. Output goes to ``streams``; descriptors are registered with ``poll``. Whatever takes
            long is waited for with ``wait``. False: it is no longer wanted. Raises `StartFault`."""

        def handle(self, fd: int) -> None:
            """Read once from a descriptor that it has registered."""

        def ends(self) -> Ends:
            """What has ended since the last call. Called in every turn. Raises `StartFault` if the command was never
            executed, or if it is not known how it ended."""

        def last_output(self, number: int) -> tuple[bytes, bytes]:
            """The end of stdout and stderr of a process that has ended, by its number in the task; -1: of all."""
            ...

        def signal_listeners(self, number: int, audience: str = "") -> None:
            """Signal the processes that handle it and have not got it. Called repeatedly."""

        def signal_all(self, number: int) -> None:
            """Signal all that have not got it."""

        def kill(self) -> Ends:
            """Kill what is left. Returns when no process can be left, also of a task that was never started."""

        def has_exceeded_memory(self) -> bool:
            """Whether the kernel has killed one of its processes for that."""

        def clean_up(self) -> None:
            """Remove what it has created, after `kill`."""


_LOOK_MS = 200  # between two reads of the checkpoint file
_STALL_PATIENCE_S = 20.0  # on a node where ranks only wait: for the node of the rank that they wait for
_STOP_LOOK_MS = 10  # while ranks wait for the step to stop at
_LAST_WORDS_MS = 5_000  # between SIGTERM and the deadline, if an earlier signal has warned before
_LATE_S_MIN, _LATE_S_MAX = 2.0, 10.0
#: Causes for which nothing needs to be saved: a process without a handler gets SIGTERM at once, as usual.
_LEAVE_NOW = frozenset(("cancel", "failure", "start_timeout", "unrepairable"))
#: Causes after which the job is requeued: one that handles the signal and exits with 0 has not finished its work.
_COME_BACK = frozenset(("reclaim", "priority", "time_share", "shrink", "grow", "move", "drain", "requeue"))
_TAIL = 1 << 14
_SAVED_S = 1.0  # until a program is killed that has saved and asked to be run again: what it still does is lost
OUT_OF_MEMORY = "out_of_memory"
KILLED = "killed"
STALLED = "stalled"
_BY_SIGKILL = 128 + system.SIGKILL


class Supervisor:
    def __init__(self, request: Request, control: int, runner: Runner) -> None:
        self.request, self.control = request, control
        self.runner = runner
        self.streams: list[Stream] = []
        self.poll = select.poll()
        self.steps: StepHost | None = None  # None: it has no job steps
        self.is_up = False
        self.is_stop_requested = False  # the server has asked it to stop
        self.lease = TaskLease(request["lease"])
        self.is_lease_over = False
        self.first_failure: int | None = None  # a wait status
        self.failed_number = 0  # of the process that failed first, in the task; -1: unknown
        self.failed_rank: int | None = None  # if it is known otherwise
        self.failed_ms = 0  # when; 0: none has failed, or only after the task was asked to stop
        self.is_outlived = False  # a process died of the warning; the others may still save
        self.deadline: float | None = None  # all on the monotonic clock, seconds
        self.early_at: float | None = None
        self.term_at: float | None = None
        self.until_ms = 0  # the deadline of the next warning
        self.calling = 0  # a signal for processes as soon as they handle it; 0: none
        self.audience = ""  # of an early signal
        self.look_at = 0.0
        self.kill_why = ""  # of the deadline
        self.warn_why = ""
        self.is_to_come_back = False  # after the last warning the job is requeued
        self.stalls = StallWatch(request["scratch"], request["stall_ms"])
        self.stall_why = ""  # it was ended because it made no progress
        self.is_requeued = False  # it has asked to be run again, and is ended
        self.is_stop_known = False  # at which step all ranks of the gang stop
        self.marks: StopMarks | None = None  # while it is not known at which step its ranks can stop
        self.saved: records.Record | None = None
        self.scratch: scratch.Scratch | None = None
        self.account: Account | None = None

    def run(self) -> None:
        fault: StartFault | None = None
        try:
            self._start()
            while self._is_alive() and not self._is_past_deadline():
                self._turn()
            self._hold_seat()
        except StartFault as this:
            fault = this
        except Exception as this:
            fault = StartFault(START_FAILED, f"the supervisor of the task failed: {this!r}")
        self._finish(fault)

    # --- the start ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        request = self.request
        self.poll.register(self.control, select.POLLIN)
        for name in (STDOUT, STDERR):
            self.streams.append(Stream(request["logs"], name, request["log_bytes_max"], request["user"]))
        if request["refusal"]:
            raise StartFault(USER_ERROR, request["refusal"])
        if request["failure"]:
            raise StartFault(START_FAILED, request["failure"])
        account = self.account = Account(request["account"])
        self.scratch = scratch.Scratch(request["scratch"], account.uid, account.gid)
        self.scratch.make()
        self._open_copies(account)
        self._open_steps(account)
        put_files(self.request, self.scratch, account)
        if self.runner.start(account, self.streams, self.poll, self._wait):
            self._record_start()
            self._note_ends(self.runner.ends())  # a short one is already over

    def _open_steps(self, account: Account) -> None:
        if isinstance(self.runner, Processes):
            try:
                self.steps = open_steps(self.request, self.poll, self.runner, account, self._notify)
            except OSError as fault:
                self._note(f"job steps are not possible in this task: {fault}")

    def _open_copies(self, account: Account) -> None:
        for stream, path in zip(self.streams, (self.request["output"], self.request["error"]), strict=True):
            if path:
                try:
                    with Acting(account):
                        place = os.path.join(self.request["directory"] or account.home, path)
                        stream.copy_to(open_copy(place, self.request["kept"], self.request["umask"]))
                except OSError as fault:
                    self.streams[1].note(f"{stream.name} is not copied to {path!r}: {fault.strerror}")

    def _record_start(self) -> None:
        self.is_up = True
        record: records.Record = {
            "at_ms": _now_ms(),
            "supervisor": os.getpid(),
            "pids": list(self.runner.running),
            "unenforced": self.request["unenforced"],
            "group": self.runner.group,
        }
        records.add(self.request["state"], records.STARTED, records.to_json(record))
        self._notify()

    # --- while it runs ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._wait(_LOOK_MS)
        self._note_ends(self.runner.ends())
        self._look_for_checkpoint()
        self._look_for_requeue()
        self._find_stop()
        self._watch_progress()

    def _wait(self, patience_ms: int, fd: int = -1) -> bool:
        """Wait for the first event, also on this descriptor, and handle it. Every source is read once, so that none can
        starve the others. False: the task must end now."""
        if fd >= 0:
            self.poll.register(fd, select.POLLIN)
        events = self.poll.poll(min(patience_ms, self._patience_ms()))
        if fd >= 0:
            self.poll.unregister(fd)
        for ready, event in events:
            if ready == self.control:
                self._handle_control(os.read(ready, 65536))
            elif self.steps is not None and self.steps.owns(ready):
                self.steps.handle(ready, event)
            elif ready != fd:
                self.runner.handle(ready)
        if self.steps is not None:
            self.steps.tick(time.monotonic())
        self._check_lease()
        self._send_due_signals(time.monotonic())
        return not self._is_past_deadline()

    def _patience_ms(self) -> int:
        lease_ms = self.lease.left_ms()
        look_ms = _LOOK_MS if self.marks is None else _STOP_LOOK_MS
        most_ms = look_ms if lease_ms is None else min(lease_ms, look_ms)
        times = [at for at in (self.deadline, self.early_at, self.term_at) if at is not None]
        if not times:
            return most_ms
        return min(max(int((min(times) - time.monotonic()) * 1000) + 1, 0), most_ms)

    def _check_lease(self) -> None:
        """When the lease has expired, the task must end at once, whatever its deadline was."""
        if self.lease.left_ms() == 0:
            self.is_lease_over = self.is_stop_requested = True
            self.deadline, self.kill_why = 0.0, WHY

    def _is_alive(self) -> bool:
        """Children of a shell that did not die of the warning as it did have until the deadline."""
        is_held = not self.request["processes"]
        return is_held or bool(self.runner.running) or (self.is_outlived and self.runner.has_orphans)

    def _note_ends(self, ends: Ends) -> None:
        for status, is_orphan, number in ends:
            if is_orphan:
                if self.first_failure is not None and self._is_by_warning(self.first_failure):
                    self.first_failure = status or None  # it counts instead of the shell that ran it
                continue
            self.is_outlived |= self._is_by_warning(status)
            if status != 0 and self.first_failure is None:
                self.first_failure = status
                self.failed_number, self.failed_ms = number, 0 if self.warn_why else _now_ms()
                if self.runner.running:
                    self._end_peers()

    def _is_by_warning(self, status: int) -> bool:
        early = self.request["early"]
        signals = (system.SIGTERM,) if early is None else (system.SIGTERM, early[0])
        return bool(self.warn_why) and os.WIFSIGNALED(status) and os.WTERMSIG(status) in signals

    def _end_peers(self) -> None:
        """One process has failed: stop the others, and kill them soon after. After a warning they get no other signal,
        and have until its deadline: one has saved and ended, and another may still be saving."""
        if not self.warn_why:
            self.runner.signal_all(system.SIGTERM)
            self._end_by(time.monotonic() + self.request["peer_grace_ms"] / 1000, "a process of the task had failed")

    def _hold_seat(self) -> None:
        """After a failure, keep the seat of the task for a while for inspection, or until it is asked to stop."""
        stays_ms, failed = self.request["hold_on_fail_ms"], self.first_failure
        if not stays_ms or failed is None or os.waitstatus_to_exitcode(failed) == self.request["requeue_exit"]:
            return
        self.streams[1].note(f"the task has failed; its seat is held for {stays_ms // 1000} s (hold_on_fail)")
        until = time.monotonic() + stays_ms / 1000
        while not self.is_stop_requested and time.monotonic() < until:
            if self.poll.poll(_LOOK_MS):
                self._turn()
            self._check_lease()

    def _end_by(self, at: float, why: str) -> None:
        if self.deadline is None or at < self.deadline:
            self.deadline, self.kill_why = at, why

    def _handle_control(self, lines: bytes) -> None:
        for line in lines.decode("utf-8", "replace").splitlines():
            verb, _, rest = line.partition(" ")
            self.is_stop_requested |= verb in ("kill", "warn")
            if verb == "say":
                self._note(rest)
            elif verb == "kill":
                self._end_by(0.0, rest)
            elif verb == "warn":
                deadline_ms, _, why = rest.partition(" ")
                self._warn(self.until_ms - boot_ms() if self.until_ms else int(deadline_ms) - _now_ms(), why)
            elif verb == "stop-at":
                self._stop_at(int(rest))
            elif verb == "limit-logs":
                for stream in self.streams:
                    stream.limit(int(rest) // len(self.streams))
            elif verb == "until":
                self.until_ms = int(rest)  # the deadline of the next warning by CLOCK_BOOTTIME

    def _warn(self, left_ms: int, why: str) -> None:
        """Write the file, then signal the processes that handle it. The others get the signal shortly before the
        deadline: by then they have had time to read the file. A job with an early signal gets that one first."""
        now = time.monotonic()
        deadline = now + max(left_ms, 0) / 1000
        is_first, self.warn_why = not self.warn_why, f"asked to stop: {why}"
        if self.scratch is not None and self.account is not None:
            with Acting(self.account):
                self.scratch.warn(max(left_ms, 0), why)
            self.marks = StopMarks(self.scratch.path, now) if is_first else self.marks
        self.is_to_come_back = why in _COME_BACK
        self._end_by(deadline, f"killed at its deadline ({why})")
        is_idle = not self.runner.running and (not self.is_up or why in _LEAVE_NOW) and not self._has_job_steps
        if is_idle:
            self._end_by(0.0, self.warn_why)  # nothing has started that could save
        early = self.request["early"]
        if early is not None:
            begun = now if self.is_to_come_back else max(now, deadline - early[1] / 1000)
            self.early_at = begun if is_first else self.early_at
            self.term_at = max(deadline - _LAST_WORDS_MS / 1000, (begun + deadline) / 2)
            return
        self.calling = self.calling or system.SIGTERM
        late_at = now if why in _LEAVE_NOW else deadline - _late_s(deadline - now)
        if is_first or self.term_at is not None:
            self.term_at = late_at if self.term_at is None else min(self.term_at, late_at)
        self._send_due_signals(now)

    @property
    def _has_job_steps(self) -> bool:
        return self.steps is not None and bool(self.steps.leaders)

    def _send_due_signals(self, now: float) -> None:
        early = self.request["early"]
        if early is not None and self.early_at is not None and now >= self.early_at:
            self.early_at, self.calling = None, early[0]
            self.audience = early[2]
        if self.term_at is not None and now >= self.term_at:
            self.term_at, self.calling = None, 0
            self.runner.signal_all(system.SIGTERM)
        elif self.calling and now >= self.look_at:
            self.look_at = now + _LOOK_MS / 1000
            self.runner.signal_listeners(self.calling, self.audience)

    def _watch_progress(self) -> None:
        """Collect the stacks of ranks that make no step, and end a task with a `stall_timeout`. The rank that holds
        the others up is ended; on nodes where all ranks only wait for others, they fail by themselves then."""
        now = time.monotonic()
        if self.warn_why or self.stall_why or not self.stalls.is_due(now):
            return
        if self.stalls.is_stalled(now, boot_ms()):
            self.runner.signal_listeners(system.STACKS_SIGNAL)
        stall = self.stalls.stall(now, boot_ms())
        if stall is None:
            return
        for line in (stall.why, *stall.lines):
            self._note(line)
        if self.request["stall_ms"]:
            self.stall_why = stall.why
            self.failed_rank = stall.suspect
            patience_s = 0.0 if stall.suspect is not None or self.request["tasks"] == 1 else _STALL_PATIENCE_S
            self._end_by(now + patience_s, stall.why)

    def _find_stop(self) -> None:
        """Find the step at which the ranks of this task can stop. With tasks on other nodes, the server combines what
        all of them found and answers with `stop-at`; until then the ranks wait."""
        step = None if self.marks is None else self.marks.step(time.monotonic())
        if step is None:
            return
        self.marks = None
        if self.request["tasks"] == 1:
            self._stop_at(step)
        else:
            self._record_stop(step)

    def _stop_at(self, step: int) -> None:
        """The first answer counts; a later one can only be the same."""
        if self.warn_why and not self.is_stop_known and self.scratch is not None and self.account is not None:
            self.is_stop_known = True
            self.marks = None
            with Acting(self.account):
                self.scratch.stop_at(step)
            self._record_stop(step)

    def _record_stop(self, step: int) -> None:
        try:
            write_file(f"{self.request['state']}/{records.STOP}", str(step).encode(), durable=False)
        except OSError:
            return  # a full disk: the ranks stop by themselves before the deadline
        self._notify()

    def _is_past_deadline(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _note(self, text: str) -> None:
        for stream in self.streams[1:]:
            stream.note(text)

    def _look_for_checkpoint(self) -> None:
        saved = self.scratch.saved(self._note) if self.scratch is not None else None
        if saved is not None and saved != self.saved:
            self.saved = saved
            try:
                write_file(f"{self.request['state']}/{records.STEP}", records.to_json(saved), durable=False)
            except OSError:
                return  # a full disk: it is written with the next step
            self._notify()

    def _look_for_requeue(self) -> None:
        """End a task that has run `scontrol requeue`, as Slurm does: SIGTERM, and SIGKILL soon after."""
        if self.is_requeued or self.scratch is None or not self.scratch.wants_requeue():
            return
        self.is_requeued = True
        self._note("the task has asked to be run again (scontrol requeue)")
        self.runner.signal_all(system.SIGTERM)
        left_s = _SAVED_S if self.scratch.has_saved_before_requeue() else self.request["peer_grace_ms"] / 1000
        self._end_by(time.monotonic() + left_s, "killed to be run again")

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, fault: StartFault | None) -> None:
        """Kill all processes before the exit is recorded: when the server sees it, the task's resources are free."""
        is_late = self._is_past_deadline()
        try:
            self._note_ends(self.runner.kill())
        except StartFault as this:
            fault = fault or this
        if self.steps is not None:
            self.steps.close()
        self._look_for_checkpoint()
        if fault is not None and self.streams:
            self.streams[1].note(fault.note or fault.why)
        for stream in self.streams:
            stream.drain()
        self._record_exit(self._exit_record(fault, is_late))
        self._notify()
        try:
            sync(f"{self.request['state']}/{records.RECORD}")
        except OSError:
            pass  # the server has already forgotten the task
        self.runner.clean_up()
        if self.scratch is not None:
            self.scratch.put_away()

    def _exit_record(self, fault: StartFault | None, is_late: bool) -> records.Record:
        code = 0
        number = 0
        failure = None
        why = ""
        if fault is not None:
            code = fault.code
            failure = fault.failure
            why = fault.why
            self.failed_ms = _now_ms()
        elif self.is_requeued:
            code = self.request["requeue_exit"]
            why = "asked to be run again (scontrol requeue)"
        elif self.first_failure is not None:
            code = os.waitstatus_to_exitcode(self.first_failure)
            if code < 0:
                code, number = 128 - code, -code
            failure, why = self._judge(code, number, is_late)
        elif self._is_unfinished():
            code = self.request["requeue_exit"]
            why = "exited with 0 when it was asked to stop, so it is run again"
        return {
            "at_ms": _now_ms(),
            "exit_code": code,
            "signal": number,
            "failure": failure,
            "why": why,
            "failed_ms": self.failed_ms,
            "rank": self._failed_rank(),
            "said": "" if why or not self.failed_ms else self._said(number),
        }

    def _failed_rank(self) -> int | None:
        if self.failed_rank is not None:
            return self.failed_rank
        processes = self.request["processes"]
        return rank_of(processes[self.failed_number]) if 0 <= self.failed_number < len(processes) else None

    def _said(self, number: int) -> str:
        """Why it failed, as far as its signal or its last output says it."""
        if number:
            return signal_text(number)
        return last_words(*self.runner.last_output(self.failed_number))

    def _is_unfinished(self) -> bool:
        """Whether an exit with 0 means that the task has stopped because of a signal, and not that its work is done.
        Frameworks exit with 0 when they are asked to stop, whether or not they have saved."""
        if not (self.is_to_come_back and self.runner.has_heard and self.request["rerun_after_exit_0"]):
            return False
        return self.scratch is None or not self.scratch.is_finished()

    def _judge(self, code: int, number: int, is_late: bool) -> tuple[str | None, str]:
        """The failure class and the reason, where the exit code does not say them."""
        if code == self.request["requeue_exit"]:
            return None, ""
        if self.is_lease_over and number == system.SIGKILL:
            return NODE_LOST, WHY
        if self.runner.has_exceeded_memory():
            limit = size(self.request["memory_mib"] or 0)
            return OUT_OF_MEMORY, f"the task exceeded its memory limit of {limit}, so the kernel killed a process"
        if self.stall_why and is_late:
            return STALLED, self.stall_why
        if code == _BY_SIGKILL:  # also as the exit code of a shell
            by_others = "killed by SIGKILL, not by Corral: the machine may have run out of memory"
            return (None, self.kill_why) if is_late else (KILLED, by_others)
        if self.warn_why:
            return None, self.warn_why
        tail = self.streams[1].tail(_TAIL)
        of_site = by_rules(self.request["failure_rules"], code, tail)
        if of_site[0] is not None:
            return of_site
        return (None, "") if number not in (0, system.SIGABRT) else symptom(tail)  # libraries of GPUs abort

    def _record_exit(self, record: records.Record) -> None:
        """On a full disk, delete the oldest part of the log; if there is none, wait for space."""
        while True:
            try:
                records.add(self.request["state"], records.EXIT, records.to_json(record))
                return
            except FileNotFoundError:
                return  # the state directory was removed: the result is no longer needed
            except OSError:
                if not any(stream.drop_oldest() for stream in self.streams):
                    time.sleep(1)

    def _notify(self) -> None:
        records.notify(self.request["run"], self.request["name"])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _late_s(grace_s: float) -> float:
    """How long before the deadline processes without a handler get SIGTERM: a tenth of the grace time."""
    return min(max(grace_s / 10, _LATE_S_MIN), _LATE_S_MAX, grace_s / 2)
