"""A task in a container: created and started by the container runtime, which also reports its exit code.

Ending it does not depend on the runtime, because its first process is held by a pidfd. Signals go to the processes
themselves. Does not know why the task ends.
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
from corral.runtime.container.task.launcher import FAILED, first_failure
from corral.runtime.container.task.mounts import Sources
from corral.runtime.container.task.output import Output
from corral.runtime.container.task.signal_relay import SignalRelay
from corral.runtime.local.task import scratch
from corral.runtime.local.task.cgroups import TaskGroups, oom_kills
from corral.runtime.local.task.start import NODE_LOST, START_FAILED, Account, StartFault
from corral.runtime.local.task.streams import Stream

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from corral.runtime.local.task.supervisor import Ends, Wait
    from corral.runtime.local.task.task_request import Request

_INSIDE, _TMP = "/corral", "/tmp"
_END_S = 10.0  # how long the container runtime may take to notice an end
_RETRY_S = 1.0
_LOOKS, _LOOK_AGAIN_MS = 5, 40
_TAIL = 1 << 12


class Container:
    """``own_groups``: those of the supervisor."""

    has_orphans = False  # the kernel ends a PID namespace with its first process

    def __init__(self, request: Request, own_groups: TaskGroups) -> None:
        assert request["container"] is not None
        self._request, self._container = request, request["container"]
        self._own_groups = own_groups
        self.group = "".join(own_groups.unique[:1])
        self.running: dict[int, int] = {}  # its first process
        self._engine = ContainerRuntime(self._container["socket"])
        self._sources = Sources(request["run"], self._container["socket"])
        self._id = ""  # once it is created
        self._output: Output | None = None
        self._relay = SignalRelay()
        self._signals: list[int] = []  # to send once the command has started
        self._oom_counter = ""
        self._oom_kills = 0
        self._failed = 0  # the wait status of the first of several processes that failed
        self._is_asked_for = self._is_launched = self._is_over = False
        self._was_killed = False
        self._is_certain = True  # that no process of it runs that is not held by the pidfd

    # --- the start ----------------------------------------------------------------------------------------------------

    def start(self, account: Account, streams: list[Stream], poll: select.poll, wait: Wait) -> bool:
        request = self._request
        self._streams, self._poll = streams, poll
        self._own_groups.make(None, request["cpu_milli"], request["has_quota"], request["pids_max"])
        for stream in streams:
            os.close(stream.sink)
        try:
            body = self._body(account)
            bring(self._engine, self._container["image"], self._container["pull"], wait)
            if wait(0, -1):
                self._make(body, wait)
            if wait(0, -1):
                self._launch(wait)
                return True
        except StartFault:
            if wait(0, -1):
                raise
        finally:
            self._sources.release()
        return False

    def _body(self, account: Account) -> dict[str, Any]:
        """Add what is only known here: the account, and the path of the private directory."""
        body: dict[str, Any] = self._container["body"]
        host = body["HostConfig"]
        self._sources.clear()
        for mount in host["Mounts"]:
            source = mount["Source"]
            if source.startswith("~/"):
                source = account.home + source[1:]
            mount["Source"] = self._sources.hold(source, account, self._container["allowed"], self._request["kept"])
        targets = [mount["Target"] for mount in host["Mounts"]]
        private = self._request["scratch"]
        for source, target in ((private, _INSIDE), (f"{private}/{scratch.TEMPORARY}", _TMP)):
            if target not in targets:
                held = self._sources.hold(source, account, [], [])
                host["Mounts"].append({"Type": "bind", "Source": held, "Target": target, "ReadOnly": False})
        body["Env"] = [f"{name}={value}" for name, value in self._env(account, targets).items()]
        if self._container["has_own_users"]:  # a rootless Docker: its root is this account, all others are unmapped
            body["User"] = "0:0"
        else:
            body["User"] = f"{account.uid}:{account.gid}"
            host["GroupAdd"] = [str(gid) for gid in account.groups() if gid != account.gid] if account.changes else []
        return body

    def _env(self, account: Account, targets: list[str]) -> dict[str, str]:
        env = {"USER": account.name, "LOGNAME": account.name, "TMPDIR": _TMP}
        if account.uid != 0:
            is_there = any(account.home == target or account.home.startswith(target + "/") for target in targets)
            env["HOME"] = account.home if is_there else _TMP
        env |= self._request["env"]
        env |= scratch.files_in(_INSIDE)
        env["CORRAL_FAILED_FILE"] = f"{_INSIDE}/{FAILED}"
        env["NVIDIA_VISIBLE_DEVICES"] = "void"  # GPUs come by CDI, not by what an image asks of NVIDIA's runtime
        if len(self._request["processes"]) == 1:
            env |= self._request["processes"][0]
        return env

    def _make(self, body: dict[str, Any], wait: Wait) -> None:
        """Create it once: if the name is taken, a container for the same task already exists, and this one fails."""
        path = f"/containers/create?name={quoted(self._container['name'])}"
        if self._container["is_libpod"]:
            from corral.runtime.container.task.libpod import create_path, specification

            path, body = create_path(), specification(body, self._container["name"], self._container["devices"])
        try:
            self._is_asked_for = True
            self._id = self._engine.call("POST", path, body, wait=wait)["Id"]
        except ContainerRuntimeError as fault:
            if fault.status == 409 and "name" in fault.why:
                self._is_asked_for = False
                why = f"a container of this task already exists: {self._container['name']}"
                raise StartFault(START_FAILED, why) from fault
            raise self._no_container(fault) from fault

    def _launch(self, wait: Wait) -> None:
        try:
            self._output = Output(self._engine, self._id, self._streams, wait)
            self._is_certain = False
            self._engine.call("POST", f"/containers/{self._id}/start", wait=wait)
            self._is_launched = True
            first = int(self._inspect()["Pid"] or 0)
        except ContainerRuntimeError as fault:
            self._is_certain = self._is_certain or (fault.status != NO_ANSWER and not self._is_launched)
            raise self._no_container(fault) from fault
        if first:
            self._hold(first)
        self._is_certain = True
        if self.running:
            self._check_devices(first)

    def _hold(self, first: int) -> None:
        self._oom_counter = proc.memory_counter(first)
        try:
            pidfd = os.pidfd_open(first)
        except ProcessLookupError:
            if not self._is_over_soon():
                why = "cannot see the processes of the container: the container runtime must be on this machine"
                raise StartFault(START_FAILED, why) from None
            return  # it has already ended
        self.running[first] = pidfd
        self._poll.register(pidfd, select.POLLIN)
        if self._output is not None and self._output.is_open:
            self._poll.register(self._output.fileno(), select.POLLIN)

    def _is_over_soon(self) -> bool:
        """Whether it has ended: its first process is gone, and a busy Docker notices that a little later."""
        until = time.monotonic() + _END_S
        while self._inspect()["Running"]:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True

    def _check_devices(self, first: int) -> None:
        """A container that is just ending has no devices either, shortly before its end is seen."""
        missing: list[str] = []
        for _ in range(_LOOKS):
            try:
                missing = proc.missing_devices(first, self._container["nodes"])
            except PermissionError:
                self._request["unenforced"].append("gpus: cannot verify whether the container has its GPUs")
                return
            if not missing or self._has_ended(_LOOK_AGAIN_MS):
                return
        why = f"the container was started without its GPUs {', '.join(missing)}: check its CDI specification"
        raise StartFault(START_FAILED, why)

    def _no_container(self, fault: ContainerRuntimeError) -> StartFault:
        return runtime_errors.no_container(self._container["image"], self._request["command"][0], fault)

    # --- while it runs ------------------------------------------------------------------------------------------------

    def handle(self, fd: int) -> None:
        output = self._output
        if output is not None and output.is_open and fd == output.fileno() and not output.take():
            self._poll.unregister(fd)
            output.close()

    def ends(self) -> Ends:
        if self._is_over:
            return []
        self._note_oom_kills()
        self._relay.look()
        waiting, self._signals = self._signals, []
        for number in waiting:
            self.signal_all(number)
        found = self._failed_process()
        if not self.running or self._has_ended():
            return found + self._result()
        if self._output is not None and not self._output.is_open and self._output.reopen():
            self._poll.register(self._output.fileno(), select.POLLIN)
        return found

    def _failed_process(self) -> Ends:
        """The first of several processes that has failed, once."""
        if self._failed or len(self._request["processes"]) == 1:
            return []
        self._failed = _status(first_failure(self._request["scratch"]))
        return [(self._failed, False, -1)] if self._failed else []

    def _has_ended(self, patience_ms: int = 0) -> bool:
        poll = select.poll()
        for pidfd in self.running.values():
            poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(patience_ms))

    def last_output(self, number: int) -> tuple[bytes, bytes]:
        """Of all processes: the runtime does not separate their output."""
        del number
        return self._streams[0].tail(_TAIL), self._streams[1].tail(_TAIL)

    @property
    def has_heard(self) -> bool:
        return self._relay.audience.has_listener

    def signal_listeners(self, number: int, audience: str = "") -> None:  # noqa: ARG002 - it has no job steps
        self._signal(self._relay.signal_listeners, number)

    def signal_all(self, number: int) -> None:
        if not self._signal(self._relay.signal_all, number):
            self._signals.append(number)

    def _signal(self, send: Callable[[list[int], int], None], number: int) -> bool:
        """False: its init has not started the command yet, and would not forward the signal."""
        members = [pid for first in self.running for pid in proc.main_group(first)]
        if members:
            try:
                send(members, number)
            except PermissionError:
                self._try_call("POST", f"/containers/{self._id}/kill?signal={number}")
        return bool(members)

    # --- the end ------------------------------------------------------------------------------------------------------

    def kill(self) -> Ends:
        if not self._is_certain:
            self._make_certain()
        if self._is_over:
            return []
        if not self._is_launched:
            return [(signal.SIGKILL, False, -1)]
        if self.running and not self._has_ended():
            self._kill_first()
        return self._failed_process() + self._result()

    def _make_certain(self) -> None:
        """The runtime did not answer the request to start it: the task's resources are not free until it does."""
        while True:
            try:
                self._try_call("POST", f"/containers/{self._id}/kill?signal=9")
                if not self._inspect()["Running"]:
                    return
            except ContainerRuntimeError as fault:
                if fault.status != NO_ANSWER:
                    return
            time.sleep(_RETRY_S)

    def _kill_first(self) -> None:
        """Kill its first process, which takes all others with it."""
        self._was_killed = True
        (pidfd,) = self.running.values()
        while True:
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass
            except PermissionError:
                self._try_call("POST", f"/containers/{self._id}/kill?signal=9")
            if self._has_ended(int(_RETRY_S * 1000)):
                return

    def _result(self) -> Ends:
        """Of the container, after the rest of its output; and of the program instead of the shell that ran it."""
        self._is_over = True
        self._note_oom_kills()
        self._release()
        status = self._exit_status()
        if status and not self._was_killed:
            program, image = str(self._container["body"]["Entrypoint"][0]), self._container["image"]
            if fault := runtime_errors.from_init(self._streams[1].tail(_TAIL), program, image):
                raise fault
        found = [(status, False, 0 if len(self._request["processes"]) == 1 else -1)]
        return found if self._relay.end is None else [*found, (self._relay.end, True, 0)]

    def _release(self) -> None:
        assert self._output is not None
        if self.running and self._output.is_open:
            self._poll.unregister(self._output.fileno())
        while self.running:
            _, pidfd = self.running.popitem()
            self._poll.unregister(pidfd)
            os.close(pidfd)
        self._output.drain(_END_S)

    def _exit_status(self) -> int:
        """The runtime needs some time to notice the end."""
        until = time.monotonic() + _END_S
        pause_s = 0.005
        while time.monotonic() < until:
            try:
                state = self._inspect()
            except ContainerRuntimeError as fault:
                if self._was_killed:
                    return signal.SIGKILL
                if fault.status != NO_ANSWER:
                    break  # another program has removed it
            else:
                if not state["Running"] and state.get("Status") != "stopping":
                    self._oom_kills = max(self._oom_kills, int(bool(state.get("OOMKilled"))))
                    return _status(int(state["ExitCode"]))
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.2)
        if not self._failed:
            why = "the container has ended, but the container runtime does not report its exit code"
            raise StartFault(NODE_LOST, why, 125)
        return self._failed

    def _note_oom_kills(self) -> None:
        """The counter is gone with the container."""
        self._oom_kills = max(self._oom_kills, oom_kills(self._oom_counter))

    def has_exceeded_memory(self) -> bool:
        return self._oom_kills > 0

    def clean_up(self) -> None:
        """If that fails, the server's sweep does it later."""
        if self._is_asked_for:
            self._try_call("DELETE", f"/containers/{self._id or self._container['name']}?force=1&v=1")

    def _inspect(self) -> dict[str, Any]:
        state: dict[str, Any] = self._engine.call("GET", f"/containers/{self._id}/json")["State"]
        return state

    def _try_call(self, method: str, path: str) -> None:
        try:
            self._engine.call(method, path)
        except ContainerRuntimeError:
            pass


def _status(code: int) -> int:
    """The wait status for an exit code. 128 + n stands for signal n, as in shells."""
    return code - 128 if 128 < code < 128 + 65 else (code & 255) << 8
