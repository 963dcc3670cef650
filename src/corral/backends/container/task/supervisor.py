"""The life of one container: made, listened to, warned, ended, and what became of it written down.

As for plain processes, and mostly by the same code: the same state directory, logs, deadlines and records, outliving
the server. The engine makes and starts the container and tells its exit code; its end at a deadline does not depend
on the engine, because the supervisor holds the container's first process by a pidfd. Knows one task.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os
import select
import signal
import time

from corral.backends.container.task import evidence, verdicts
from corral.backends.container.task.api import NO_ANSWER, Engine, EngineFault, quoted
from corral.backends.container.task.image import bring
from corral.backends.container.task.launcher import FAILED
from corral.backends.container.task.mounts import Sources
from corral.backends.container.task.output import Output
from corral.backends.container.task.telling import Telling
from corral.backends.local.task import scratch, system
from corral.backends.local.task.cgroups import TaskGroups
from corral.backends.local.task.records import Record
from corral.backends.local.task.request import Request
from corral.backends.local.task.start import START_FAILED, Account, StartFault
from corral.backends.local.task.supervisor import Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_INSIDE, _TMP = "/corral", "/tmp"
_END_S = 10.0  # how long the engine may take to notice an end
_RETRY_S = 1.0
_LOOKS, _LOOK_AGAIN_MS = 5, 40
NODE_LOST = "node_lost"


class ContainerSupervisor(Supervisor):
    def __init__(self, request: Request, control: int, own_groups: TaskGroups) -> None:
        super().__init__(request, control, own_groups)
        assert request["container"] is not None
        self.told = request["container"]
        self.engine = Engine(self.told["socket"])
        self.id = ""  # of the container, once it is made
        self.first = 0  # its first process
        self.pidfd = -1
        self.output: Output | None = None
        self.counter = ""
        self.kills = 0
        self.signals: list[int] = []  # that nobody was there to hear yet
        self.sources = Sources(request["run"], self.told["socket"])
        self.telling = Telling()
        self.is_asked_for = self.is_launched = self.was_killed = False
        self.is_certain = True  # that nothing of it runs that is not held by the pidfd
        self.lost: StartFault | None = None

    # --- the start ----------------------------------------------------------------------------------------------------

    def _start_programs(self, account: Account, private: scratch.Scratch) -> None:
        for stream in self.streams:
            self.poll.unregister(stream.source)
            os.close(stream.sink)
        try:
            self._hold_mounts(account)
            bring(self.engine, self.told["image"], self.told["pull"], self._is_wanted)
            if self._is_wanted(0):
                self._make(self._body(account, private))
            if self._is_wanted(0):
                self._launch()
        except StartFault:
            if not self._is_past_deadline():
                raise
        finally:
            self.sources.release()

    def _is_wanted(self, patience_ms: int, fd: int = -1) -> bool:
        """Wait a moment, for this descriptor if one is given; False: the task is to end."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        if fd >= 0:
            poll.register(fd, select.POLLIN)
        for ready, _ in poll.poll(patience_ms):
            if ready == self.control:
                self._obey(os.read(self.control, 65536))
        self._keep_lease()
        return not self._is_past_deadline()

    def _hold_mounts(self, account: Account) -> None:
        self.sources.clear()
        for mount in self.told["body"]["HostConfig"]["Mounts"]:
            source = mount["Source"]
            if source.startswith("~/"):
                source = account.home + source[1:]
            mount["Source"] = self.sources.hold(source, account, self.told["allowed"])

    def _body(self, account: Account, private: scratch.Scratch) -> dict[str, object]:
        """What is only known here: who it runs as, and where its private directory is."""
        body, host = self.told["body"], self.told["body"]["HostConfig"]
        env = {"USER": account.name, "LOGNAME": account.name, "TMPDIR": _TMP}
        if account.uid != 0:
            targets = [mount["Target"] for mount in host["Mounts"]]
            is_there = any(account.home == target or account.home.startswith(target + "/") for target in targets)
            env["HOME"] = account.home if is_there else _TMP
        env |= self.request["env"]
        env["NVIDIA_VISIBLE_DEVICES"] = "void"  # GPUs come by CDI, not by what an image says to NVIDIA's runtime
        env["CORRAL_CHECKPOINT_FILE"] = f"{_INSIDE}/{scratch.CHECKPOINT}"
        env["CORRAL_WARNING_FILE"] = f"{_INSIDE}/{scratch.WARNING}"
        env["CORRAL_FAILED_FILE"] = f"{_INSIDE}/{FAILED}"
        if len(self.request["processes"]) == 1:
            env |= self.request["processes"][0]
        body["Env"] = [f"{name}={value}" for name, value in env.items()]
        if self.told["has_own_users"]:  # a rootless Docker: its root is this account, everyone else is nobody
            body["User"] = "0:0"
        else:
            body["User"] = f"{account.uid}:{account.gid}"
            host["GroupAdd"] = [str(gid) for gid in account.groups() if gid != account.gid] if account.changes else []
        ours = ((private.path, _INSIDE), (f"{private.path}/{scratch.TEMPORARY}", _TMP))
        taken = {mount["Target"] for mount in host["Mounts"]}
        host["Mounts"] += [
            _bind(self.sources.hold(source, account, []), target) for source, target in ours if target not in taken
        ]
        return dict(body)

    def _make(self, body: dict[str, object]) -> None:
        """Once: a container of this name that is there already was made for the same key, and this one is refused."""
        path = f"/containers/create?name={quoted(self.told['name'])}"
        if self.told["is_libpod"]:
            from corral.backends.container.task.libpod import create_path, specification

            path, body = create_path(), specification(body, self.told["name"], self.told["devices"])
        try:
            self.is_asked_for = True
            self.id = self.engine.call("POST", path, body, wait=self._is_wanted)["Id"]
        except EngineFault as fault:
            if fault.status == 409 and "name" in fault.why:
                self.is_asked_for = False
                why = f"a container of this task is there already: {self.told['name']}"
                raise StartFault(START_FAILED, why) from fault
            raise self._no_container(fault) from fault

    def _launch(self) -> None:
        try:
            self.output = Output(self.engine, self.id, self.streams, self._is_wanted)
            self.is_certain = False
            self.engine.call("POST", f"/containers/{self.id}/start", wait=self._is_wanted)
            self.is_launched = True
            state = self._inspect()
        except EngineFault as fault:
            self.is_certain = self.is_certain or (fault.status != NO_ANSWER and not self.is_launched)
            raise self._no_container(fault) from fault
        self.first = int(state["Pid"] or 0)
        if self.first:
            self._hold(self.first)
        self.is_certain = True
        if self.running:
            self._check_devices()
        self._record_start()

    def _hold(self, first: int) -> None:
        self.counter = evidence.memory_counter(first)
        try:
            self.pidfd = os.pidfd_open(first)
        except ProcessLookupError:
            if not self._is_over_soon():
                why = "the container runs where this machine does not see it; the engine must be on this machine"
                raise StartFault(START_FAILED, why) from None
            return  # it is over already
        self.running[first] = self.pidfd
        self.poll.register(self.pidfd, select.POLLIN)
        if self.output is not None and self.output.is_open:
            self.poll.register(self.output.fileno(), select.POLLIN)

    def _is_over_soon(self) -> bool:
        """Its first process is gone: over already, and the engine learns of it in a moment (Docker, when busy)."""
        until = time.monotonic() + _END_S
        while self._inspect()["Running"]:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def _check_devices(self) -> None:
        """A container that ends meanwhile has no devices either, a moment before it is seen to have ended."""
        missing: list[str] = []
        for _ in range(_LOOKS):
            try:
                missing = evidence.missing_devices(self.first, self.told["nodes"])
            except PermissionError:
                self.request["unenforced"].append("gpus: whether the container has its GPUs could not be looked up")
                return
            if not missing or self._has_ended(_LOOK_AGAIN_MS):
                return
        why = f"the engine started the container without its GPUs {', '.join(missing)}: see its CDI specification"
        raise StartFault(START_FAILED, why)

    def _no_container(self, fault: EngineFault) -> StartFault:
        return verdicts.no_container(self.told["image"], self.request["command"][0], fault)

    # --- while it runs ------------------------------------------------------------------------------------------------

    def _on_output(self, fd: int) -> None:
        output = self.output
        if output is not None and output.is_open and fd == output.fileno() and not output.take():
            self.poll.unregister(fd)
            output.close()

    def _reap(self) -> None:
        self.kills = max(self.kills, evidence.oom_kills(self.counter))
        self._look_for_failed()
        self.telling.look()
        waiting, self.signals = self.signals, []
        for number in waiting:
            self._signal_group(number)
        if not self.running:
            return
        if self._has_ended():
            self._let_go()
        elif self.output is not None and not self.output.is_open and self.output.reopen():
            self.poll.register(self.output.fileno(), select.POLLIN)

    def _look_for_failed(self) -> None:
        """One of several processes has failed: the others are ended soon."""
        if len(self.request["processes"]) == 1 or self.first_failure is not None:
            return
        code = _first_number(f"{self.request['scratch']}/{FAILED}")
        if code:
            self.first_failure = _status(code)
            if self.running:
                self._end_peers()

    def _has_ended(self, patience_ms: int = 0) -> bool:
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(patience_ms))

    def _let_go(self) -> None:
        self.poll.unregister(self.pidfd)
        os.close(self.pidfd)
        self.running.clear()

    def _call_listeners(self, number: int) -> None:
        if not self.first:
            self._end_by(0.0, self.warn_why or "asked to leave before it had begun")
            return
        members = evidence.main_group(self.first)
        if not members:  # its init has not begun the command yet: there will be another look
            return
        try:
            self.telling.tell_listeners(members, number)
        except PermissionError:
            self._ask_softly("POST", f"/containers/{self.id}/kill?signal={number}")

    def _signal_group(self, number: int) -> None:
        if not self.first:
            self._end_by(0.0, self.warn_why or "asked to leave before it had begun")
            return
        members = evidence.main_group(self.first)
        if not members:  # its init has not begun the command yet, and would not hear either
            self.signals.append(number)
            return
        try:
            self.telling.tell(members, number)
        except PermissionError:
            self._ask_softly("POST", f"/containers/{self.id}/kill?signal={number}")

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end_all(self, ended: dict[int, int]) -> None:  # noqa: ARG002  nothing of it is a child
        self._look_for_failed()
        if not self.is_certain:
            self._make_certain()
        if self.running:
            self._kill()
            self._let_go()
        self.kills = max(self.kills, evidence.oom_kills(self.counter))
        if self.output is not None:
            self.output.drain(_END_S if self.is_launched else 0)
        if self.is_launched:
            self._read_exit()
        elif self._is_past_deadline():
            self.first_failure = system.SIGKILL

    def _make_certain(self) -> None:
        """The engine was asked to start it and gave no answer: what the task holds is not free until it does."""
        while True:
            try:
                self._ask_softly("POST", f"/containers/{self.id}/kill?signal=9")
                if not self._inspect()["Running"]:
                    return
            except EngineFault as fault:
                if fault.status != NO_ANSWER:
                    return
            time.sleep(_RETRY_S)

    def _kill(self) -> None:
        """Its first process takes all others with it: the kernel ends a process namespace with its first."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        self.was_killed = True
        while True:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                self._ask_softly("POST", f"/containers/{self.id}/kill?signal=9")
            if poll.poll(int(_RETRY_S * 1000)):
                return

    def _read_exit(self) -> None:
        """The engine needs a moment to learn of the end."""
        until = time.monotonic() + _END_S
        pause_s = 0.005
        while time.monotonic() < until:
            try:
                state = self._inspect()
            except EngineFault as fault:
                if self.was_killed:
                    self.first_failure = self.first_failure or system.SIGKILL
                    return
                if fault.status != NO_ANSWER:
                    break  # somebody has removed it
                state = {"Running": True}
            if not state["Running"] and state.get("Status") != "stopping":
                self.kills = max(self.kills, int(bool(state.get("OOMKilled"))))
                code = int(state["ExitCode"])
                if code and self.first_failure is None:
                    self.first_failure = _status(code)
                return
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.2)
        if self.first_failure is None:
            why = "the container has ended, but its engine does not tell with which exit code"
            self.lost = StartFault(NODE_LOST, why, 125)

    def _exit_record(self, fault: StartFault | None, is_late: bool) -> Record:
        spoken = self.telling.end
        if spoken is not None and self.first_failure is not None and self._is_by_warning(self.first_failure):
            self.first_failure = spoken or None  # of the program, for the shell that ran it
        if fault is None and self.first_failure is not None and not is_late and not self.warn_why:
            fault = verdicts.from_init(self._last_words(), self._program(), self.told["image"])
        return super()._exit_record(fault or self.lost, is_late)

    def _program(self) -> str:
        return str(self.told["body"]["Entrypoint"][0])

    def _oom_kills(self) -> int:
        return self.kills

    def _tidy(self) -> None:
        """The container goes before the directory that is mounted in it. What the engine cannot do now, the server's
        sweep does."""
        if self.is_asked_for:
            self._ask_softly("DELETE", f"/containers/{self.id or self.told['name']}?force=1&v=1")
        super()._tidy()

    def _inspect(self) -> dict[str, Any]:
        state: dict[str, Any] = self.engine.call("GET", f"/containers/{self.id}/json")["State"]
        return state

    def _ask_softly(self, method: str, path: str) -> None:
        try:
            self.engine.call(method, path)
        except EngineFault:
            pass


def _bind(source: str, target: str) -> dict[str, object]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": False}


def _status(code: int) -> int:
    """As wait would tell it. A container that was ended by a signal is told as 128 + n, as shells do."""
    return code - 128 if 128 < code < 128 + 65 else (code & 255) << 8


def _first_number(path: str) -> int:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        line, found, _ = os.read(fd, 16).partition(b"\n")
        return int(line) if found and line.isdigit() else 0
    except OSError:
        return 0
    finally:
        os.close(fd)
