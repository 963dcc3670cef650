"""The supervisor of one task: starts its processes, copies their output, warns and ends them, and records the result.

Every task has one supervisor, in its own session. It is detached, so it outlives the server and the spawner. It obeys
lines in the task's control FIFO and never asks the server anything. Knows one task.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os
import select
import time

from corral.runtime.local.task import device_access, records, scratch, system
from corral.runtime.local.task.cgroups import DEVICES, TaskGroups
from corral.runtime.local.task.classify import symptom
from corral.runtime.local.task.isolation import Namespaces
from corral.runtime.local.task.kill_tree import descendants, end_all, reap
from corral.runtime.local.task.lease import WHY, TaskLease
from corral.runtime.local.task.lease import now_ms as boot_ms
from corral.runtime.local.task.signal_audience import SignalCall, in_group, late_s
from corral.runtime.local.task.start import (
    START_FAILED,
    USER_ERROR,
    Account,
    Acting,
    Program,
    StartFault,
    fault_from,
    spawn,
    start,
)
from corral.runtime.local.task.streams import OVER, STDERR, STDOUT, Stream, open_copy
from corral.runtime.local.task.task_request import Request

_LOOK_MS = 200  # between two reads of the checkpoint file
_LAST_WORDS_MS = 5_000  # between SIGTERM and the deadline, if an earlier signal has warned before
#: Causes for which nothing needs to be saved: a process without a handler gets SIGTERM at once, as usual.
_LEAVE_NOW = frozenset(("cancel", "failure", "start_timeout", "unrepairable"))
_TAIL = 1 << 14
OUT_OF_MEMORY = "out_of_memory"
NODE_LOST = "node_lost"
KILLED = "killed"
_BY_SIGKILL = 128 + system.SIGKILL


class Supervisor:
    """``own_groups``: those of the supervisor; a task without limits of its own shares them."""

    def __init__(self, request: Request, control: int, own_groups: TaskGroups) -> None:
        self.request, self.control = request, control
        self.groups = TaskGroups(request["cgroup_version"], request["cgroups"]) if request["cgroups"] else own_groups
        self.is_plain = not request["cgroups"]
        self.device_group = own_groups.folders.get(DEVICES, "")
        self.streams: list[Stream] = []
        self.poll = select.poll()
        self.programs: dict[int, Program] = {}  # by the pipe that reports its start
        self.running: dict[int, int] = {}  # pid to pidfd
        self.leader = 0
        self.is_up = False
        self.is_stop_requested = False  # the server has asked it to stop
        self.lease = TaskLease(request["lease"])
        self.is_lease_over = False
        self.first_failure: int | None = None  # a wait status
        self.is_outlived = False  # a process died of the warning; the others may still save
        self.is_alone = False  # no process of the task is left
        self.deadline: float | None = None  # all on the monotonic clock, seconds
        self.early_at: float | None = None
        self.term_at: float | None = None
        self.until_ms = 0  # the deadline of the next warning
        self.calling = 0  # a signal for processes as soon as they handle it; 0: none
        self.call = SignalCall()
        self.look_at = 0.0
        self.kill_why = ""  # of the deadline
        self.warn_why = ""
        self.step: int | None = None
        self.scratch: scratch.Scratch | None = None
        self.account: Account | None = None

    def run(self) -> None:
        fault: StartFault | None = None
        try:
            self._start()
            while (self.running or self._are_saving()) and not self._is_past_deadline():
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
            stream = Stream(request["logs"], name, request["log_bytes_max"], request["user"])
            self.streams.append(stream)
            self.poll.register(stream.source, select.POLLIN)
        if request["refusal"]:
            raise StartFault(USER_ERROR, request["refusal"])
        if request["failure"]:
            raise StartFault(START_FAILED, request["failure"])
        account = self.account = Account(request["account"])
        self.scratch = scratch.Scratch(request["scratch"], account.uid, account.gid)
        self.scratch.make()
        self.groups.make(request["memory_mib"], request["cpu_milli"], request["has_quota"], request["pids_max"])
        self._open_copies(account)
        self._start_programs(account, self.scratch)

    def _start_programs(self, account: Account, private: scratch.Scratch) -> None:
        """What depends on the kind of task: here, one process for each."""
        request = self.request
        env = {**account.env(), **request["env"], **private.env()}
        directory = request["directory"] or (account.home if os.path.isdir(account.home) else "/")
        self._deny_devices()
        namespaces = self._make_namespaces(private)
        programs = [
            Program(request["command"], {**env, **own}, directory, account, self.groups, namespaces)
            for own in request["processes"]
        ]
        for program in programs:
            if self.is_plain and not account.changes and not request["holds_gpus"] and namespaces is None:
                self._watch(spawn(program, self.streams[0].sink, self.streams[1].sink, self.leader))
            else:
                pid, verdict = start(program, self.streams[0].sink, self.streams[1].sink, self.leader)
                self._watch(pid)
                self.programs[verdict] = program
                self.poll.register(verdict, select.POLLIN)
        for stream in self.streams:
            os.close(stream.sink)
        if namespaces is not None:
            namespaces.close()
        if not self.programs:
            self._record_start()

    def _deny_devices(self) -> None:
        """Also if nothing is to be denied: the task before may have had fewer GPUs."""
        denied, given = self.request["denied"], self.request["given"]
        if not denied and not given:
            return
        group = self.device_group or "".join(self.groups.unique[:1])
        try:
            device_access.deny(self.groups.version, group, denied, given)
        except OSError as fault:
            why = f"cannot deny the task the GPUs of others: {fault.strerror or fault}"
            raise StartFault(START_FAILED, why) from fault

    def _make_namespaces(self, private: scratch.Scratch) -> Namespaces | None:
        try:
            return Namespaces(self.request["hidden"], private.path) if self.request["hidden"] else None
        except OSError as fault:
            raise StartFault(START_FAILED, f"cannot separate the task from others: {fault}") from fault

    def _watch(self, pid: int) -> None:
        self.leader = self.leader or pid
        self.running[pid] = os.pidfd_open(pid)
        self.poll.register(self.running[pid], select.POLLIN)

    def _open_copies(self, account: Account) -> None:
        for stream, path in zip(self.streams, (self.request["output"], self.request["error"]), strict=True):
            if path:
                try:
                    with Acting(account):
                        place = os.path.join(self.request["directory"] or account.home, path)
                        stream.copy_to(open_copy(place, self.request["kept"]))
                except OSError as fault:
                    self.streams[1].note(f"{stream.name} is not copied to {path!r}: {fault.strerror}")

    def _on_verdict(self, verdict: int) -> None:
        """A child runs its program, or reports why it cannot."""
        fault = os.read(verdict, 4096)
        program = self.programs.pop(verdict)
        self.poll.unregister(verdict)
        os.close(verdict)
        if fault:
            raise fault_from(fault, program)
        if not self.programs:
            self._record_start()

    def _record_start(self) -> None:
        self.is_up = True
        record: records.Record = {
            "at_ms": _now_ms(),
            "supervisor": os.getpid(),
            "pids": list(self.running),
            "unenforced": self.request["unenforced"],
            "group": self.groups.unique[0] if self.is_plain and self.groups.unique else "",
        }
        records.add(self.request["state"], records.STARTED, records.to_json(record))
        self._notify()

    # --- while it runs ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Wait for the first event and handle it. Every source is read once, so that none can starve the others."""
        for fd, _ in self.poll.poll(self._patience_ms()):
            if fd == self.control:
                self._handle_control(os.read(fd, 65536))
            elif fd in self.programs:
                self._on_verdict(fd)
            else:
                self._on_output(fd)
        self._check_lease()
        self._reap()
        self._look_for_checkpoint()
        self._send_due_signals(time.monotonic())

    def _on_output(self, fd: int) -> None:
        for stream in self.streams:
            if fd == stream.source and stream.pump() == OVER:
                self.poll.unregister(fd)

    def _patience_ms(self) -> int:
        lease_ms = self.lease.left_ms()
        most_ms = _LOOK_MS if lease_ms is None else min(lease_ms, _LOOK_MS)
        times = [at for at in (self.deadline, self.early_at, self.term_at) if at is not None]
        if not times:
            return most_ms
        return min(max(int((min(times) - time.monotonic()) * 1000) + 1, 0), most_ms)

    def _check_lease(self) -> None:
        """When the lease has expired, the task must end at once, whatever its deadline was."""
        if self.lease.left_ms() == 0:
            self.is_lease_over = self.is_stop_requested = True
            self.deadline, self.kill_why = 0.0, WHY

    def _reap(self) -> None:
        ended: dict[int, int] = {}
        self.is_alone = reap(ended)
        self._note_ends(ended)

    def _are_saving(self) -> bool:
        """Whether children of a shell are left that did not die of the warning as it did: they have until the
        deadline."""
        return self.is_outlived and not self.is_alone

    def _note_ends(self, ended: dict[int, int]) -> None:
        for pid, status in sorted(ended.items(), key=self._order_of_ends):
            if pid not in self.running:  # an orphan of the task
                if self.first_failure is not None and self._is_by_warning(self.first_failure):
                    self.first_failure = status or None  # it counts instead of the shell that ran it
                continue
            self.poll.unregister(self.running[pid])
            os.close(self.running.pop(pid))
            self.is_outlived |= self._is_by_warning(status)
            if status != 0 and self.first_failure is None:
                self.first_failure = status
                if self.running:
                    self._end_peers()

    def _order_of_ends(self, end: tuple[int, int]) -> tuple[bool, bool]:
        """Of several that ended at once, those that were killed come first: they did not follow the others."""
        pid, status = end
        return pid not in self.running, not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == system.SIGKILL)

    def _is_by_warning(self, status: int) -> bool:
        early = self.request["early"]
        signals = (system.SIGTERM,) if early is None else (system.SIGTERM, early[0])
        return bool(self.warn_why) and os.WIFSIGNALED(status) and os.WTERMSIG(status) in signals

    def _end_peers(self) -> None:
        """One process has failed: stop the others, and kill them soon after. After a warning they get no other signal,
        and have until its deadline: one has saved and ended, and another may still be saving."""
        if not self.warn_why:
            self._signal_group(system.SIGTERM)
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
        if self.scratch is not None and self.account is not None:
            with Acting(self.account):
                self.scratch.warn(max(left_ms, 0), why)
        is_first, self.warn_why = not self.warn_why, f"asked to stop: {why}"
        self._end_by(deadline, f"killed at its deadline ({why})")
        early = self.request["early"]
        if early is not None:
            self.early_at = max(now, deadline - early[1] / 1000) if is_first else self.early_at
            begun = max(now, deadline - early[1] / 1000)
            self.term_at = max(deadline - _LAST_WORDS_MS / 1000, (begun + deadline) / 2)
            return
        self.calling = self.calling or system.SIGTERM
        late_at = now if why in _LEAVE_NOW else deadline - late_s(deadline - now)
        if is_first or self.term_at is not None:
            self.term_at = late_at if self.term_at is None else min(self.term_at, late_at)
        self._send_due_signals(now)

    def _send_due_signals(self, now: float) -> None:
        early = self.request["early"]
        if early is not None and self.early_at is not None and now >= self.early_at:
            self.early_at, self.calling = None, early[0]
        if self.term_at is not None and now >= self.term_at:
            self.term_at, self.calling = None, 0
            self._signal_group(system.SIGTERM)
        elif self.calling and now >= self.look_at:
            self.look_at = now + _LOOK_MS / 1000
            self._call_listeners(self.calling)

    def _is_past_deadline(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def _call_listeners(self, number: int) -> None:
        """A shell that would continue its script ends here; its children are reaped, and count instead of it."""
        self.call.to_listeners(self._group(), number)

    def _signal_group(self, number: int) -> None:
        self.call.to_rest(self._group(), number)

    def _group(self) -> list[int]:
        return in_group(descendants(os.getpid()), self.leader, self.running)

    def _note(self, text: str) -> None:
        for stream in self.streams[1:]:
            stream.note(text)

    def _look_for_checkpoint(self) -> None:
        step = self.scratch.saved_step(self._note) if self.scratch is not None else None
        if step is not None and step != self.step:
            self.step = step
            try:
                records.write_whole(f"{self.request['state']}/{records.STEP}", str(step).encode())
            except OSError:
                return  # a full disk: it is written with the next step
            self._notify()

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, fault: StartFault | None) -> None:
        """Kill all processes before the exit is recorded: when the server sees it, the task's resources are free."""
        is_late = self._is_past_deadline()
        ended: dict[int, int] = {}
        self._end_all(ended)
        self._note_ends(ended)
        self._look_for_checkpoint()
        if fault is not None and self.streams:
            self.streams[1].note(fault.why)
        for stream in self.streams:
            stream.drain()
        self._record_exit(self._exit_record(fault, is_late))
        self._notify()
        try:
            records.make_durable(f"{self.request['state']}/{records.RECORD}")
        except OSError:
            pass  # the server has already forgotten the task
        self._tidy()

    def _end_all(self, ended: dict[int, int]) -> None:
        end_all(self.groups, ended)

    def _tidy(self) -> None:
        if self.scratch is not None:
            self.scratch.put_away()
        self.groups.remove()

    def _exit_record(self, fault: StartFault | None, is_late: bool) -> records.Record:
        code = 0
        number = 0
        failure = None
        why = ""
        if fault is not None:
            code = fault.code
            failure = fault.failure
            why = fault.why
        elif self.first_failure is not None:
            code = os.waitstatus_to_exitcode(self.first_failure)
            if code < 0:
                code, number = 128 - code, -code
            failure, why = self._judge(code, number, is_late)
        return {"at_ms": _now_ms(), "exit_code": code, "signal": number, "failure": failure, "why": why}

    def _judge(self, code: int, number: int, is_late: bool) -> tuple[str | None, str]:
        """The failure class and the reason, where the exit code does not say them."""
        if code == self.request["requeue_exit"]:
            return None, ""
        if self.is_lease_over and number == system.SIGKILL:
            return NODE_LOST, WHY
        if self._oom_kills():
            limit = self.request["memory_mib"]
            return OUT_OF_MEMORY, f"the task exceeded its memory limit of {limit} MiB, so the kernel killed a process"
        if code == _BY_SIGKILL:  # also as the exit code of a shell
            by_others = "killed by SIGKILL, not by Corral: the machine may have run out of memory"
            return (None, self.kill_why) if is_late else (KILLED, by_others)
        if number or self.warn_why:
            return None, self.warn_why
        return symptom(self._last_words())

    def _oom_kills(self) -> int:
        return self.groups.oom_kills()

    def _last_words(self) -> bytes:
        return self.streams[1].tail(_TAIL) if self.streams else b""

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
