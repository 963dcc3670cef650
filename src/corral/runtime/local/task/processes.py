"""A task as plain processes: children of its supervisor, in one process group.

The supervisor is a subreaper: when it has no children, the task has no processes, whatever sessions and groups they
created. Does not know why the task ends.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os
import select
import sys
import time

from corral.runtime.gpu_visibility import visibility
from corral.runtime.local.task import device_access
from corral.runtime.local.task.cgroups import DEVICES, TaskGroups
from corral.runtime.local.task.isolation import Namespaces
from corral.runtime.local.task.scratch import TEMPORARY, files_in
from corral.runtime.local.task.signal_audience import Audience, descendants, in_group, kill
from corral.runtime.local.task.start import START_FAILED, Account, Program, StartFault, fault_from, spawn, start
from corral.runtime.local.task.streams import OVER, RANKS_MAX, RankOutput, Stream
from corral.runtime.local.task.system import SIGKILL
from corral.runtime.steps import in_task
from corral.runtime.steps import step_frames as frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.runtime.local.task.supervisor import Ends, Wait
    from corral.runtime.local.task.task_request import Request
    from corral.runtime.steps.seat_host import StepHost
    from corral.runtime.steps.seat_processes import ProcessSpec

_LOOK_MS = 1_000
_TAIL = 1 << 14
_PAUSE_S = 0.002
_PAUSE_S_MAX = 0.1
#: Variables of a task that a step gets from its seat, not from its client.
_OF_SEAT = ("CORRAL_TASK", "CORRAL_NODE", "CORRAL_SHIMS", "TMPDIR")


class Processes:
    """``own_groups``: those of the supervisor; a task without limits of its own shares them."""

    def __init__(self, request: Request, own_groups: TaskGroups) -> None:
        self._request = request
        self._is_sharing = not request["cgroups"]
        self._groups = own_groups if self._is_sharing else TaskGroups(request["cgroup_version"], request["cgroups"])
        self._device_group = own_groups.folders.get(DEVICES, "") or "".join(self._groups.unique[:1])
        self.group = "".join(own_groups.unique[:1]) if self._is_sharing else ""
        self.running: dict[int, int] = {}
        self.has_orphans = False
        self._numbers: dict[int, int] = {}  # pid -> number of the process in the task
        self._outputs: list[tuple[RankOutput, RankOutput]] = []  # by number, if there are several
        self._leader = 0
        self._audience = Audience()
        self._step_namespaces: Namespaces | None = None
        self.steps: StepHost | None = None  # set by the supervisor before the start

    def start(self, account: Account, streams: list[Stream], poll: select.poll, wait: Wait) -> bool:
        request = self._request
        self._poll, self._streams = poll, streams
        self._account = account
        self._groups.make(request["memory_mib"], request["cpu_milli"], request["has_quota"], request["pids_max"])
        self._deny_devices()
        namespaces = self._make_namespaces()
        private = request["scratch"]
        env = {**account.env(), **request["env"], "TMPDIR": f"{private}/{TEMPORARY}", **files_in(private)}
        env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{private}" if env.get("PYTHONPATH") else private
        directory = request["directory"] or (account.home if os.path.isdir(account.home) else "/")
        self._env, self._directory = env, directory
        is_simple = self._is_sharing and not account.changes and not request["holds_gpus"] and namespaces is None
        begun: dict[int, Program] = {}  # by the pipe that reports its start
        is_apart = 1 < len(request["processes"]) <= RANKS_MAX
        for number, own in enumerate(request["processes"]):
            sinks = self._own_pipes(own) if is_apart else (streams[0].sink, streams[1].sink)
            program = Program(
                request["command"], {**env, **own}, directory, account, self._groups, request["umask"], namespaces
            )
            if is_simple:
                pid = spawn(program, *sinks, self._leader)
            else:
                pid, verdict = start(program, *sinks, self._leader)
                begun[verdict] = program
            self._leader = self._leader or pid
            self.running[pid] = os.pidfd_open(pid)
            self._numbers[pid] = number
            if is_apart:
                for sink in sinks:
                    os.close(sink)
        for stream in streams:
            os.close(stream.sink)
            poll.register(stream.source, select.POLLIN)
        if namespaces is not None:
            namespaces.close()
        if not all(_is_executed(verdict, program, wait) for verdict, program in begun.items()):
            return False
        for pidfd in self.running.values():
            poll.register(pidfd, select.POLLIN)
        return True

    def start_step(self, spec: ProcessSpec) -> tuple[int, int, Program]:
        """Start a process of a job step, with the account, limits and isolation of the task, in a process group of its
        own. What belongs to this seat replaces what the client has said."""
        env = dict(self._env) if spec.env is None else {**spec.env, **self._seat_env()}
        gpus = self._request["gpus"] if spec.gpus is None else spec.gpus
        env |= {**spec.more, **visibility(gpus)}
        if spec.env is not None:
            private, shims = self._request["scratch"], self._env.get("CORRAL_SHIMS", "")
            env["PYTHONPATH"] = f"{env['PYTHONPATH']}:{private}" if env.get("PYTHONPATH") else private
            env["PATH"] = f"{shims}:{env.get('PATH', '')}" if shims else env.get("PATH", self._env["PATH"])
        if self._request["hidden"] and self._step_namespaces is None:
            self._step_namespaces = self._make_namespaces()
        program = Program(
            _own_program(spec.command),
            env,
            spec.directory or self._directory,
            self._account,
            self._groups,
            self._request["umask"],
            self._step_namespaces,
            spec.stdin,
            spec.terminal,
        )
        pid, verdict = start(program, spec.stdout, spec.stderr, 0)
        return pid, verdict, program

    def signal_script(self, number: int) -> int:
        for pid in self.running:
            _send(pid, number)
        return len(self.running)

    def _seat_env(self) -> dict[str, str]:
        """The variables that differ from seat to seat."""
        own = {name: self._env[name] for name in _OF_SEAT if name in self._env}
        steps = {} if self.steps is None else self.steps.variables()
        return own | files_in(self._request["scratch"]) | steps

    def _own_pipes(self, env: dict[str, str]) -> tuple[int, int]:
        """Pipes for the output of one of several processes. Returns the ends for the process."""
        rank = rank_of(env) or 0
        out, err = RankOutput(self._streams[0], rank), RankOutput(self._streams[1], rank)
        self._outputs.append((out, err))
        for output in (out, err):
            self._poll.register(output.source, select.POLLIN)
        return out.sink, err.sink

    def last_output(self, number: int) -> tuple[bytes, bytes]:
        if not self._outputs:
            return self._streams[0].tail(_TAIL), self._streams[1].tail(_TAIL)
        out, err = self._outputs[number]
        return out.last, err.last

    def _deny_devices(self) -> None:
        """Also if nothing is to be denied: the task before may have had fewer GPUs."""
        denied, given = self._request["denied"], self._request["given"]
        if not denied and not given:
            return
        try:
            device_access.deny(self._groups.version, self._device_group, denied, given)
        except OSError as fault:
            why = f"cannot deny the task the GPUs of others: {fault.strerror or fault}"
            raise StartFault(START_FAILED, why) from fault

    def _make_namespaces(self) -> Namespaces | None:
        try:
            return Namespaces(self._request["hidden"], self._request["scratch"]) if self._request["hidden"] else None
        except OSError as fault:
            raise StartFault(START_FAILED, f"cannot separate the task from others: {fault}") from fault

    def handle(self, fd: int) -> None:
        for stream in self._streams:
            if fd == stream.source and stream.pump() == OVER:
                self._poll.unregister(fd)
        for output in self._all_outputs():
            if fd == output.source and output.pump() == OVER:
                self._poll.unregister(fd)

    def _all_outputs(self) -> list[RankOutput]:
        return [output for pair in self._outputs for output in pair]

    def ends(self) -> Ends:
        ended: dict[int, int] = {}
        for output in self._all_outputs():
            output.flush_old()
        is_alone = reap(ended)
        self._pass_on_steps(ended)
        found = self._in_order(ended)
        for pid in self.running.keys() & ended.keys():
            self._poll.unregister(self.running[pid])
            os.close(self.running.pop(pid))
        self.has_orphans = not is_alone and not self.running
        return found

    def _pass_on_steps(self, ended: dict[int, int]) -> None:
        for pid, status in list(ended.items()):
            if self.steps is not None and self.steps.take_end(pid, status):
                del ended[pid]

    def _in_order(self, ended: dict[int, int]) -> Ends:
        """Of several that ended at once, those that were killed come first: they did not follow the others."""

        def order(end: tuple[int, bool, int]) -> tuple[bool, bool]:
            status, is_orphan, _ = end
            return is_orphan, not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == SIGKILL)

        found = ((status, pid not in self.running, self._numbers.get(pid, 0)) for pid, status in ended.items())
        return sorted(found, key=order)

    @property
    def has_heard(self) -> bool:
        return self._audience.has_listener

    def signal_listeners(self, number: int, audience: str = "") -> None:
        """A shell that would continue its script ends here; its children are reaped, and count instead of it. With an
        ``audience`` no other process gets the signal, as Slurm's users expect of ``--signal``."""
        if audience and (named := self._named(audience)):
            for pid in self._audience.named(named, number):
                _send(pid, number)
            return
        receivers, shells = self._audience.listeners(self._members(), number)
        for pid in (*shells, *receivers) if receivers else ():
            _send(pid, number)

    def signal_all(self, number: int) -> None:
        for pid in self._audience.rest(self._members(), number):
            _send(pid, number)

    def _named(self, audience: str) -> list[int]:
        if audience == "script":
            return list(self.running)
        leaders = set() if self.steps is None else self.steps.leaders
        return in_group(descendants(os.getpid()), leaders)

    def _members(self) -> list[int]:
        leaders = {self._leader} | (set() if self.steps is None else self.steps.leaders)
        return in_group(descendants(os.getpid()), leaders - {0}, self.running)

    def kill(self) -> Ends:
        ended: dict[int, int] = {}
        end_all(self._groups, ended)
        self._pass_on_steps(ended)
        found = self._in_order(ended)
        self.running.clear()
        for output in self._all_outputs():
            output.drain()
        return found

    def has_exceeded_memory(self) -> bool:
        return self._groups.oom_kills() > 0

    def clean_up(self) -> None:
        self._groups.remove()


def _own_program(command: list[str]) -> list[str]:
    """One of Corral's own programs runs by the interpreter of this supervisor."""
    if command[0] != frames.OWN_PROGRAM:
        return command
    return [sys.executable, "-IS", os.path.abspath(in_task.__file__), *command[1:]]


def rank_of(env: dict[str, str]) -> int | None:
    """The rank that the server gave a process; None: it has none."""
    rank = env.get("RANK", env.get("SLURM_PROCID", ""))
    return int(rank) if rank.isdecimal() and len(rank) < 9 else None


def _is_executed(verdict: int, program: Program, wait: Wait) -> bool:
    """Wait until the child runs its program. False: it is no longer wanted."""
    while True:
        try:
            fault = os.read(verdict, 4096)
        except BlockingIOError:
            if not wait(_LOOK_MS, verdict):
                return False
            continue
        os.close(verdict)
        if fault:
            raise fault_from(fault, program)
        return True


def _send(pid: int, number: int) -> None:
    try:
        kill(pid, number)
    except PermissionError:
        pass  # it runs as another user now


def end_all(groups: TaskGroups, ended: dict[int, int]) -> None:
    """Kill and reap until no process is left. Each round kills all that it sees. A process that was forked meanwhile is
    seen in the next round, and one with a pending SIGKILL cannot fork, so the rounds end. A process that the kernel
    does not let die (a hung driver) is waited for: while it lives, its resources are not free."""
    pause_s = _PAUSE_S
    while not reap(ended):
        groups.kill()
        for pid in descendants(os.getpid()):
            kill(pid)
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, _PAUSE_S_MAX)
    groups.kill()  # processes that entered the cgroup from outside


def reap(ended: dict[int, int]) -> bool:
    """Reap all children that have ended, into ``ended`` (pid to wait status). True: no child is left."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if pid == 0:
            return False
        ended[pid] = status
