"""The life of one task: its processes are started, listened to, warned, ended, and what became of them is written down.

One supervisor for each task, in a session of its own, under nobody: it outlives the server and the spawner. It obeys
lines in the task's control FIFO and never asks the server anything. Knows one task.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os
import select
import time

from corral.backends.local.task import records, scratch, system
from corral.backends.local.task.cgroups import TaskGroups
from corral.backends.local.task.ending import descendants, end_all, reap
from corral.backends.local.task.hearing import Call, in_group, late_s
from corral.backends.local.task.isolation import Room
from corral.backends.local.task.lease import WHY, Lease
from corral.backends.local.task.lease import now_ms as boot_ms
from corral.backends.local.task.request import Request
from corral.backends.local.task.start import (
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
from corral.backends.local.task.streams import OVER, STDERR, STDOUT, Stream, open_copy
from corral.backends.local.task.symptoms import symptom

_LOOK_MS = 200  # for checkpoints
_LAST_WORDS_MS = 5_000  # between SIGTERM and the deadline, when an earlier signal has warned before
#: Nobody waits for what would be saved: who does not listen is ended at once, as everywhere.
_LEAVE_NOW = frozenset(("cancel", "failure", "start_timeout", "unrepairable"))
_TAIL = 1 << 14
OUT_OF_MEMORY, NODE_LOST, KILLED = "out_of_memory", "node_lost", "killed"
_BY_SIGKILL = 128 + system.SIGKILL


class Supervisor:
    """``own_groups``: those that the supervisor lives in; a task that asks for no limits of its own shares them."""

    def __init__(self, request: Request, control: int, own_groups: TaskGroups) -> None:
        self.request, self.control = request, control
        self.groups = TaskGroups(request["cgroup_version"], request["cgroups"]) if request["cgroups"] else own_groups
        self.is_plain = not request["cgroups"]
        self.streams: list[Stream] = []
        self.poll = select.poll()
        self.programs: dict[int, Program] = {}  # by the pipe on which its start is awaited
        self.running: dict[int, int] = {}  # pid to pidfd
        self.leader = 0
        self.is_up = False
        self.is_called = False  # away, by the server
        self.lease = Lease(request["lease"])
        self.is_lease_over = False
        self.first_failure: int | None = None  # a wait status
        self.is_outlived = False  # a process died of the warning; whoever is left may still save
        self.is_alone = False  # no process of the task is left
        self.deadline: float | None = None  # all on the monotonic clock, seconds
        self.early_at: float | None = None
        self.term_at: float | None = None
        self.until_ms = 0  # of the warning that comes next
        self.calling = 0  # a signal that those who listen hear as soon as they do; 0: none
        self.call = Call()
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
            self._stay()
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
            stream = Stream(request["logs"], name, request["log_bytes_max"])
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
        """What differs between ways of running: here, a process for each."""
        request = self.request
        env = {**account.env(), **request["env"], **private.env()}
        directory = request["directory"] or (account.home if os.path.isdir(account.home) else "/")
        room = self._room(private)
        programs = [
            Program(request["command"], {**env, **own}, directory, account, self.groups, room)
            for own in request["processes"]
        ]
        for program in programs:
            if self.is_plain and not account.changes and not request["holds_gpus"] and room is None:
                self._watch(spawn(program, self.streams[0].sink, self.streams[1].sink, self.leader))
            else:
                pid, verdict = start(program, self.streams[0].sink, self.streams[1].sink, self.leader)
                self._watch(pid)
                self.programs[verdict] = program
                self.poll.register(verdict, select.POLLIN)
        for stream in self.streams:
            os.close(stream.sink)
        if room is not None:
            room.close()
        if not self.programs:
            self._record_start()

    def _room(self, private: scratch.Scratch) -> Room | None:
        try:
            return Room(self.request["hidden"], private.path) if self.request["hidden"] else None
        except OSError as fault:
            raise StartFault(START_FAILED, f"the task could not be kept apart from others: {fault}") from fault

    def _watch(self, pid: int) -> None:
        self.leader = self.leader or pid
        self.running[pid] = os.pidfd_open(pid)
        self.poll.register(self.running[pid], select.POLLIN)

    def _open_copies(self, account: Account) -> None:
        for stream, path in zip(self.streams, (self.request["output"], self.request["error"]), strict=True):
            if path:
                try:
                    with Acting(account):
                        stream.copy_to(open_copy(os.path.join(self.request["directory"] or account.home, path)))
                except OSError as fault:
                    self.streams[1].note(f"{stream.name} is not copied to {path!r}: {fault.strerror}")

    def _on_verdict(self, verdict: int) -> None:
        """A child has come to its program, or says why it could not."""
        said = os.read(verdict, 4096)
        program = self.programs.pop(verdict)
        self.poll.unregister(verdict)
        os.close(verdict)
        if said:
            raise fault_from(said, program)
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
        self._say_news()

    # --- while it runs ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Wait for whatever comes first, and do it. Every source gets one go, so that none can starve the others."""
        for fd, _ in self.poll.poll(self._patience_ms()):
            if fd == self.control:
                self._obey(os.read(fd, 65536))
            elif fd in self.programs:
                self._on_verdict(fd)
            else:
                self._on_output(fd)
        self._keep_lease()
        self._reap()
        self._look_for_checkpoint()
        self._keep_deadline(time.monotonic())

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

    def _keep_lease(self) -> None:
        """Nobody may run on this machine any more: not a moment longer, and whatever else was agreed."""
        if self.lease.left_ms() == 0:
            self.is_lease_over = self.is_called = True
            self.deadline, self.kill_why = 0.0, WHY

    def _reap(self) -> None:
        ended: dict[int, int] = {}
        self.is_alone = reap(ended)
        self._note_ends(ended)

    def _are_saving(self) -> bool:
        """Those whom a shell has run, and who did not die of the warning as it did: they have until the deadline."""
        return self.is_outlived and not self.is_alone

    def _note_ends(self, ended: dict[int, int]) -> None:
        for pid, status in sorted(ended.items(), key=self._turn_to_speak):
            if pid not in self.running:  # an orphan of the task
                if self.first_failure is not None and self._is_by_warning(self.first_failure):
                    self.first_failure = status or None  # it speaks for the shell that ran it
                continue
            self.poll.unregister(self.running[pid])
            os.close(self.running.pop(pid))
            self.is_outlived |= self._is_by_warning(status)
            if status != 0 and self.first_failure is None:
                self.first_failure = status
                if self.running:
                    self._end_peers()

    def _turn_to_speak(self, end: tuple[int, int]) -> tuple[bool, bool]:
        """Of several that ended at once: who was killed did not follow the others."""
        pid, status = end
        return pid not in self.running, not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == system.SIGKILL)

    def _is_by_warning(self, status: int) -> bool:
        early = self.request["early"]
        signals = (system.SIGTERM,) if early is None else (system.SIGTERM, early[0])
        return bool(self.warn_why) and os.WIFSIGNALED(status) and os.WTERMSIG(status) in signals

    def _end_peers(self) -> None:
        """One process has failed: the others are told to leave, and soon made to. After a warning they are not told
        again, and have until its deadline: one has saved and left, and another may still be at it."""
        if not self.warn_why:
            self._signal_group(system.SIGTERM)
            self._end_by(time.monotonic() + self.request["peer_grace_ms"] / 1000, "a process of the task had failed")

    def _stay(self) -> None:
        """The task has failed, and somebody wants to have a look: its place is kept for a while, or until it is
        needed."""
        stays_ms, failed = self.request["hold_on_fail_ms"], self.first_failure
        if not stays_ms or failed is None or os.waitstatus_to_exitcode(failed) == self.request["requeue_exit"]:
            return
        self.streams[1].note(f"the task has failed; its place is kept for {stays_ms // 1000} s (hold_on_fail)")
        until = time.monotonic() + stays_ms / 1000
        while not self.is_called and time.monotonic() < until:
            if self.poll.poll(_LOOK_MS):
                self._turn()
            self._keep_lease()

    def _end_by(self, at: float, why: str) -> None:
        if self.deadline is None or at < self.deadline:
            self.deadline, self.kill_why = at, why

    def _obey(self, lines: bytes) -> None:
        for line in lines.decode("utf-8", "replace").splitlines():
            verb, _, rest = line.partition(" ")
            self.is_called |= verb in ("kill", "warn")
            if verb == "say":
                self._note(rest)
            elif verb == "kill":
                self._end_by(0.0, rest)
            elif verb == "warn":
                deadline_ms, _, why = rest.partition(" ")
                self._warn(self.until_ms - boot_ms() if self.until_ms else int(deadline_ms) - _now_ms(), why)
            elif verb == "until":
                self.until_ms = int(rest)  # the deadline of the next warning by CLOCK_BOOTTIME

    def _warn(self, left_ms: int, why: str) -> None:
        """The file, then a signal to those who listen to it. The others hear it only shortly before the deadline: by
        then they have had their time to read the file. A job that asked for an early signal gets that one first."""
        now = time.monotonic()
        deadline = now + max(left_ms, 0) / 1000
        if self.scratch is not None and self.account is not None:
            with Acting(self.account):
                self.scratch.warn(max(left_ms, 0), why)
        is_first, self.warn_why = not self.warn_why, f"asked to leave: {why}"
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
        self._keep_deadline(now)

    def _keep_deadline(self, now: float) -> None:
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
        """A shell that would go on with its script ends here; those it has run are reaped, and speak for it."""
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
                return  # a full disk: said again with the next one
            self._say_news()

    # --- the end ------------------------------------------------------------------------------------------------------

    def _finish(self, fault: StartFault | None) -> None:
        """Everyone is ended before the exit is told: what the task held is free when the server hears of it."""
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
        self._say_news()
        try:
            records.make_durable(f"{self.request['state']}/{records.RECORD}")
        except OSError:
            pass  # forgotten by the server already
        self._tidy()

    def _end_all(self, ended: dict[int, int]) -> None:
        end_all(self.groups, ended)

    def _tidy(self) -> None:
        if self.scratch is not None:
            self.scratch.put_away()
        self.groups.remove()

    def _exit_record(self, fault: StartFault | None, is_late: bool) -> records.Record:
        code, number, failure, why = 0, 0, None, ""
        if fault is not None:
            code, failure, why = fault.code, fault.failure, fault.why
        elif self.first_failure is not None:
            code = os.waitstatus_to_exitcode(self.first_failure)
            if code < 0:
                code, number = 128 - code, -code
            failure, why = self._judge(code, number, is_late)
        return {"at_ms": _now_ms(), "exit_code": code, "signal": number, "failure": failure, "why": why}

    def _judge(self, code: int, number: int, is_late: bool) -> tuple[str | None, str]:
        """What the exit code does not tell."""
        if code == self.request["requeue_exit"]:
            return None, ""
        if self.is_lease_over and number == system.SIGKILL:
            return NODE_LOST, WHY
        if self._oom_kills():
            limit = self.request["memory_mib"]
            return OUT_OF_MEMORY, f"the task needed more than its {limit} MiB of memory: the kernel killed a process"
        if code == _BY_SIGKILL:  # or a shell says so of what it ran
            stranger = "killed by SIGKILL, not by Corral: the machine may have run out of memory"
            return (None, self.kill_why) if is_late else (KILLED, stranger)
        if number or self.warn_why:
            return None, self.warn_why
        return symptom(self._last_words())

    def _oom_kills(self) -> int:
        return self.groups.oom_kills()

    def _last_words(self) -> bytes:
        return self.streams[1].tail(_TAIL) if self.streams else b""

    def _record_exit(self, record: records.Record) -> None:
        """On a full disk: the oldest of the log makes room for it; and if there is none, it waits for room."""
        while True:
            try:
                records.add(self.request["state"], records.EXIT, records.to_json(record))
                return
            except FileNotFoundError:
                return  # the state directory was removed under us: nobody wants to know
            except OSError:
                if not any(stream.drop_oldest() for stream in self.streams):
                    time.sleep(1)

    def _say_news(self) -> None:
        records.say_news(self.request["run"], self.request["name"])


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
