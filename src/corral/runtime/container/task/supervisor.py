"""The supervisor of one container: creates it, copies its output, warns it, ends it, and records its result.

Mostly the same code as for plain processes: the same state directory, logs, deadlines and records, outliving the
server. The container runtime creates and starts the container and reports its exit code. Ending it at a deadline does
not depend on the runtime, because the supervisor holds the container's first process by a pidfd. Knows one task.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import os
import select
import signal
import time

from corral.runtime.container.task import proc, runtime_errors
from corral.runtime.container.task.api import NO_ANSWER, ContainerRuntime, ContainerRuntimeError, quoted
from corral.runtime.container.task.image_pull import bring
from corral.runtime.container.task.launcher import FAILED
from corral.runtime.container.task.mounts import Sources
from corral.runtime.container.task.output import Output
from corral.runtime.container.task.signal_relay import SignalRelay
from corral.runtime.local.task import scratch, system
from corral.runtime.local.task.cgroups import TaskGroups
from corral.runtime.local.task.records import Record
from corral.runtime.local.task.start import START_FAILED, Account, StartFault
from corral.runtime.local.task.supervisor import Supervisor
from corral.runtime.local.task.task_request import Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_INSIDE, _TMP = "/corral", "/tmp"
_END_S = 10.0  # how long the container runtime may take to notice an end
_RETRY_S = 1.0
_LOOKS, _LOOK_AGAIN_MS = 5, 40
NODE_LOST = "node_lost"


class ContainerSupervisor(Supervisor):
    def __init__(self, request: Request, control: int, own_groups: TaskGroups) -> None:
        super().__init__(request, control, own_groups)
        assert request["container"] is not None
        self.container = request["container"]
        self.engine = ContainerRuntime(self.container["socket"])
        self.id = ""  # of the container, once it is created
        self.first = 0  # its first process
        self.pidfd = -1
        self.output: Output | None = None
        self.counter = ""
        self.kills = 0
        self.signals: list[int] = []  # to send once the command has started
        self.sources = Sources(request["run"], self.container["socket"])
        self.relay = SignalRelay()
        self.is_asked_for = self.is_launched = self.was_killed = False
        self.is_certain = True  # that no process of it runs that is not held by the pidfd
        self.lost: StartFault | None = None

    # --- the start ----------------------------------------------------------------------------------------------------

    def _start_programs(self, account: Account, private: scratch.Scratch) -> None:
        for stream in self.streams:
            self.poll.unregister(stream.source)
            os.close(stream.sink)
        try:
            self._hold_mounts(account)
            bring(self.engine, self.container["image"], self.container["pull"], self._is_wanted)
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
        """Wait, for this descriptor if one is given. False: the task is to end."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        if fd >= 0:
            poll.register(fd, select.POLLIN)
        for ready, _ in poll.poll(patience_ms):
            if ready == self.control:
                self._handle_control(os.read(self.control, 65536))
        self._check_lease()
        return not self._is_past_deadline()

    def _hold_mounts(self, account: Account) -> None:
        self.sources.clear()
        for mount in self.container["body"]["HostConfig"]["Mounts"]:
            source = mount["Source"]
            if source.startswith("~/"):
                source = account.home + source[1:]
            mount["Source"] = self.sources.hold(source, account, self.container["allowed"], self.request["kept"])

    def _body(self, account: Account, private: scratch.Scratch) -> dict[str, object]:
        """Add what is only known here: the account, and the path of the private directory."""
        body, host = self.container["body"], self.container["body"]["HostConfig"]
        env = {"USER": account.name, "LOGNAME": account.name, "TMPDIR": _TMP}
        if account.uid != 0:
            targets = [mount["Target"] for mount in host["Mounts"]]
            is_there = any(account.home == target or account.home.startswith(target + "/") for target in targets)
            env["HOME"] = account.home if is_there else _TMP
        env |= self.request["env"]
        env["NVIDIA_VISIBLE_DEVICES"] = "void"  # GPUs come by CDI, not by what an image asks of NVIDIA's runtime
        env["CORRAL_CHECKPOINT_FILE"] = f"{_INSIDE}/{scratch.CHECKPOINT}"
        env["CORRAL_WARNING_FILE"] = f"{_INSIDE}/{scratch.WARNING}"
        env["CORRAL_FAILED_FILE"] = f"{_INSIDE}/{FAILED}"
        if len(self.request["processes"]) == 1:
            env |= self.request["processes"][0]
        body["Env"] = [f"{name}={value}" for name, value in env.items()]
        if self.container["has_own_users"]:  # a rootless Docker: its root is this account, all others are unmapped
            body["User"] = "0:0"
        else:
            body["User"] = f"{account.uid}:{account.gid}"
            host["GroupAdd"] = [str(gid) for gid in account.groups() if gid != account.gid] if account.changes else []
        ours = ((private.path, _INSIDE), (f"{private.path}/{scratch.TEMPORARY}", _TMP))
        taken = {mount["Target"] for mount in host["Mounts"]}
        host["Mounts"] += [
            _bind(self.sources.hold(source, account, [], []), target) for source, target in ours if target not in taken
        ]
        return dict(body)

    def _make(self, body: dict[str, object]) -> None:
        """Create it once: if the name is taken, a container for the same task already exists, and this one fails."""
        path = f"/containers/create?name={quoted(self.container['name'])}"
        if self.container["is_libpod"]:
            from corral.runtime.container.task.libpod import create_path, specification

            path, body = create_path(), specification(body, self.container["name"], self.container["devices"])
        try:
            self.is_asked_for = True
            self.id = self.engine.call("POST", path, body, wait=self._is_wanted)["Id"]
        except ContainerRuntimeError as fault:
            if fault.status == 409 and "name" in fault.why:
                self.is_asked_for = False
                why = f"a container of this task already exists: {self.container['name']}"
                raise StartFault(START_FAILED, why) from fault
            raise self._no_container(fault) from fault

    def _launch(self) -> None:
        try:
            self.output = Output(self.engine, self.id, self.streams, self._is_wanted)
            self.is_certain = False
            self.engine.call("POST", f"/containers/{self.id}/start", wait=self._is_wanted)
            self.is_launched = True
            state = self._inspect()
        except ContainerRuntimeError as fault:
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
        self.counter = proc.memory_counter(first)
        try:
            self.pidfd = os.pidfd_open(first)
        except ProcessLookupError:
            if not self._is_over_soon():
                why = "cannot see the processes of the container: the container runtime must be on this machine"
                raise StartFault(START_FAILED, why) from None
            return  # it has already ended
        self.running[first] = self.pidfd
        self.poll.register(self.pidfd, select.POLLIN)
        if self.output is not None and self.output.is_open:
            self.poll.register(self.output.fileno(), select.POLLIN)

    def _is_over_soon(self) -> bool:
        """Whether it has ended: its first process is gone, and a busy Docker notices that a little later."""
        until = time.monotonic() + _END_S
        while self._inspect()["Running"]:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def _check_devices(self) -> None:
        """A container that is just ending has no devices either, shortly before its end is seen."""
        missing: list[str] = []
        for _ in range(_LOOKS):
            try:
                missing = proc.missing_devices(self.first, self.container["nodes"])
            except PermissionError:
                self.request["unenforced"].append("gpus: cannot verify whether the container has its GPUs")
                return
            if not missing or self._has_ended(_LOOK_AGAIN_MS):
                return
        why = f"the container was started without its GPUs {', '.join(missing)}: check its CDI specification"
        raise StartFault(START_FAILED, why)

    def _no_container(self, fault: ContainerRuntimeError) -> StartFault:
        return runtime_errors.no_container(self.container["image"], self.request["command"][0], fault)

    # --- while it runs ------------------------------------------------------------------------------------------------

    def _on_output(self, fd: int) -> None:
        output = self.output
        if output is not None and output.is_open and fd == output.fileno() and not output.take():
            self.poll.unregister(fd)
            output.close()

    def _reap(self) -> None:
        self.kills = max(self.kills, proc.oom_kills(self.counter))
        self._look_for_failed()
        self.relay.look()
        waiting, self.signals = self.signals, []
        for number in waiting:
            self._signal_group(number)
        if not self.running:
            return
        if self._has_ended():
            self._release_pidfd()
        elif self.output is not None and not self.output.is_open and self.output.reopen():
            self.poll.register(self.output.fileno(), select.POLLIN)

    def _look_for_failed(self) -> None:
        """If one of several processes has failed, end the others soon."""
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

    def _release_pidfd(self) -> None:
        self.poll.unregister(self.pidfd)
        os.close(self.pidfd)
        self.running.clear()

    def _call_listeners(self, number: int) -> None:
        if not self.first:
            self._end_by(0.0, self.warn_why or "asked to stop before it started")
            return
        members = proc.main_group(self.first)
        if not members:  # its init has not started the command yet: this is called again
            return
        try:
            self.relay.signal_listeners(members, number)
        except PermissionError:
            self._try_call("POST", f"/containers/{self.id}/kill?signal={number}")

    def _signal_group(self, number: int) -> None:
        if not self.first:
            self._end_by(0.0, self.warn_why or "asked to stop before it started")
            return
        members = proc.main_group(self.first)
        if not members:  # its init has not started the command yet, and would not forward the signal
            self.signals.append(number)
            return
        try:
            self.relay.signal_all(members, number)
        except PermissionError:
            self._try_call("POST", f"/containers/{self.id}/kill?signal={number}")

    # --- the end ------------------------------------------------------------------------------------------------------

    def _end_all(self, ended: dict[int, int]) -> None:  # noqa: ARG002  none of its processes is our child
        self._look_for_failed()
        if not self.is_certain:
            self._make_certain()
        if self.running:
            self._kill()
            self._release_pidfd()
        self.kills = max(self.kills, proc.oom_kills(self.counter))
        if self.output is not None:
            self.output.drain(_END_S if self.is_launched else 0)
        if self.is_launched:
            self._read_exit()
        elif self._is_past_deadline():
            self.first_failure = system.SIGKILL

    def _make_certain(self) -> None:
        """The runtime did not answer the request to start it: the task's resources are not free until it does."""
        while True:
            try:
                self._try_call("POST", f"/containers/{self.id}/kill?signal=9")
                if not self._inspect()["Running"]:
                    return
            except ContainerRuntimeError as fault:
                if fault.status != NO_ANSWER:
                    return
            time.sleep(_RETRY_S)

    def _kill(self) -> None:
        """Kill its first process, which takes all others with it: the kernel ends a PID namespace with its init."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        self.was_killed = True
        while True:
            try:
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                self._try_call("POST", f"/containers/{self.id}/kill?signal=9")
            if poll.poll(int(_RETRY_S * 1000)):
                return

    def _read_exit(self) -> None:
        """Read the exit code. The runtime needs some time to notice the end."""
        until = time.monotonic() + _END_S
        pause_s = 0.005
        while time.monotonic() < until:
            try:
                state = self._inspect()
            except ContainerRuntimeError as fault:
                if self.was_killed:
                    self.first_failure = self.first_failure or system.SIGKILL
                    return
                if fault.status != NO_ANSWER:
                    break  # another program has removed it
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
            why = "the container has ended, but the container runtime does not report its exit code"
            self.lost = StartFault(NODE_LOST, why, 125)

    def _exit_record(self, fault: StartFault | None, is_late: bool) -> Record:
        status = self.relay.end
        if status is not None and self.first_failure is not None and self._is_by_warning(self.first_failure):
            self.first_failure = status or None  # the status of the program, instead of the shell that ran it
        if fault is None and self.first_failure is not None and not is_late and not self.warn_why:
            fault = runtime_errors.from_init(self._last_words(), self._program(), self.container["image"])
        return super()._exit_record(fault or self.lost, is_late)

    def _program(self) -> str:
        return str(self.container["body"]["Entrypoint"][0])

    def _oom_kills(self) -> int:
        return self.kills

    def _tidy(self) -> None:
        """Remove the container before the directory that is mounted in it. If that fails, the server's sweep does it
        later."""
        if self.is_asked_for:
            self._try_call("DELETE", f"/containers/{self.id or self.container['name']}?force=1&v=1")
        super()._tidy()

    def _inspect(self) -> dict[str, Any]:
        state: dict[str, Any] = self.engine.call("GET", f"/containers/{self.id}/json")["State"]
        return state

    def _try_call(self, method: str, path: str) -> None:
        try:
            self.engine.call(method, path)
        except ContainerRuntimeError:
            pass


def _bind(source: str, target: str) -> dict[str, object]:
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": False}


def _status(code: int) -> int:
    """The wait status for an exit code. 128 + n stands for signal n, as in shells."""
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
