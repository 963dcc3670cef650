"""Runs the processes of job steps for the supervisor of one seat, and finds the other seats for its own processes.

It listens twice: in the private directory of the task, where processes of the gang present the gang's token and get
connections to seats of this gang only; and in the server's run directory, where only supervisors, the agent and the
server connect. A step outlives a broken connection for a while; one whose client is gone ends. Everything happens in
the loop of the supervisor, so nothing here waits. Does not know what a step is for.
"""

# ruff: noqa: SIM105  contextlib is not loaded just for this

from __future__ import annotations

import hmac
import os
import select
import socket
import struct
import time
from hashlib import blake2s

from corral.runtime.local.task.start import StartFault, fault_from
from corral.runtime.local.task.system import SIGKILL, SIGTERM
from corral.runtime.steps import step_frames as frames
from corral.runtime.steps import unix_sockets as sockets
from corral.runtime.steps.coordinator import Coordinator
from corral.runtime.steps.seat_processes import (
    Connection,
    ProcessEnds,
    ProcessSpec,
    SeatStep,
    StepProcess,
    resize,
)
from corral.runtime.steps.step_streams import Inlet, Outlet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from corral.runtime.local.task.start import Program
    from corral.runtime.local.task.task_request import Request

    class Starter(Protocol):
        """Starts a process inside a task: with its account, limits and isolation."""

        def start_step(self, spec: ProcessSpec) -> tuple[int, int, Program]:
            """The pid, a pipe that says why it could not be executed, and the program. Raises `StartFault`."""
            ...

        def signal_script(self, number: int) -> int:
            """A signal for the processes that the task was started with. Returns how many there are."""
            ...


PROCESSES_MAX = 1024  # of one step on one seat
CONNECTIONS_MAX = 4096
_READ = 1 << 16
_OUT_MAX = 1 << 20  # queued for a client that does not read
_KILL_AFTER_S = 5.0
_LINGER_S = 1.0  # after the last process of a step has ended, for those that it left behind
_TRUSTED, _STEPS = 0o600, "steps"


#: In the run directory: where the agent listens for supervisors that look for seats on other machines.
RELAY = "relay"


class StepHost:
    def __init__(self, request: Request, poll: select.poll, starter: Starter, record: Callable[[bytes], None]) -> None:
        """``record``: notes the begin and the end of a step for the server."""
        self._request, self._poll = request, poll
        self._starter = starter
        self._token = os.urandom(16).hex()
        self._inside: socket.socket | None = None
        self._outside: socket.socket | None = None
        self._uid = -1
        self._connections: dict[int, Connection] = {}
        self._steps: dict[str, SeatStep] = {}
        self._sources: dict[int, tuple[SeatStep, StepProcess, Outlet]] = {}
        self._sinks: dict[int, tuple[SeatStep, StepProcess]] = {}
        self._verdicts: dict[int, tuple[StepProcess, Program]] = {}
        self._pids: dict[int, tuple[SeatStep, StepProcess]] = {}
        self._pidfds: set[int] = set()
        self.coordinator = Coordinator(request["seats"], record) if request["seats"] else None

    # --- for the supervisor -------------------------------------------------------------------------------------------

    def open(self, uid: int, gid: int) -> None:
        """Listen. Without a socket the task runs all the same, but has no steps."""
        self._uid = uid
        inside = f"{self._request['scratch']}/{frames.SOCKET}"
        self._inside = sockets.listen(inside, 0o600)
        if uid != os.geteuid():
            os.chown(inside, uid, gid, follow_symlinks=False)
        folder = f"{self._request['run']}/{_STEPS}"
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        self._outside = sockets.listen(f"{folder}/{os.path.basename(self._request['scratch'])}", _TRUSTED)
        for place in (self._inside, self._outside):
            self._poll.register(place, select.POLLIN)

    def variables(self) -> dict[str, str]:
        """What processes of the gang need to ask for steps."""
        return {
            "CORRAL_STEP_SOCKET": f"{self._request['scratch']}/{frames.SOCKET}",
            "CORRAL_STEP_TOKEN": self._token,
        }

    def owns(self, fd: int) -> bool:
        places = (self._inside, self._outside)
        return (
            fd in self._connections
            or fd in self._sources
            or fd in self._sinks
            or fd in self._verdicts
            or fd in self._pidfds
            or any(place is not None and place.fileno() == fd for place in places)
        )

    def handle(self, fd: int, event: int) -> None:
        """Read or write once."""
        if fd in self._connections:
            self._on_connection(self._connections[fd], event)
        elif fd in self._sources:
            step, process, outlet = self._sources[fd]
            outlet.pump()
            self._watch_source(outlet)
            self._send_output(step, process)
        elif fd in self._sinks:
            self._feed(*self._sinks[fd])
        elif fd in self._verdicts:
            self._on_verdict(fd)
        elif fd in self._pidfds:
            pass  # the supervisor reaps it in this turn
        else:
            self._accept(fd)

    def take_end(self, pid: int, status: int) -> bool:
        """A child has ended. False: it belongs to no step."""
        if pid not in self._pids:
            return False
        step, process = self._pids.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        process.exit_code = 128 - code if code < 0 else code
        self._unwatch(process.pidfd)
        self._pidfds.discard(process.pidfd)
        os.close(process.pidfd)
        if step.has_ended:
            step.ended_at = time.monotonic()
            self._signal(step, SIGKILL)  # what its processes have left behind
        self._send_output(step, process)
        return True

    @property
    def leaders(self) -> set[int]:
        """The process groups of steps."""
        return {process.pid for step in self._steps.values() for process in step.processes}

    def tick(self, now: float) -> None:
        """Ends steps whose client is gone or has not come back."""
        for step in list(self._steps.values()):
            if step.connection is None and not step.kill_at and now - step.away_since > frames.DETACHED_S:
                self._end(step)  # also one that has ended: until then its client may come back for the result
            if step.kill_at and now >= step.kill_at:
                step.kill_at = now + _KILL_AFTER_S
                self._signal(step, SIGKILL)
            if step.ended_at and now - step.ended_at > _LINGER_S:
                self._give_up_output(step)
            if step.has_ended and step.connection is None and step.kill_at:
                self._drop(step)
        if self.coordinator is not None:
            self.coordinator.tick(now)

    def close(self) -> None:
        """All processes have ended: say so to the clients, and remove the sockets."""
        for step in self._steps.values():
            for process in step.processes:
                for outlet in process.outlets.values():
                    while outlet.has_room and not outlet.is_over:
                        before = outlet.end
                        outlet.pump()
                        if outlet.end == before:
                            break
                    outlet.is_over = True
                process.exit_code = 137 if process.exit_code is None else process.exit_code
                self._send_output(step, process)
        for connection in list(self._connections.values()):
            connection.sock.setblocking(False)
            try:
                connection.sock.send(connection.out)
            except OSError:
                pass
            connection.sock.close()
        scratch = self._request["scratch"]
        outside = f"{self._request['run']}/{_STEPS}/{os.path.basename(scratch)}"
        for place, path in ((self._inside, f"{scratch}/{frames.SOCKET}"), (self._outside, outside)):
            if place is not None:
                place.close()
                try:
                    os.unlink(path)
                except OSError:
                    pass

    # --- connections --------------------------------------------------------------------------------------------------

    def _accept(self, fd: int) -> None:
        is_trusted = self._outside is not None and fd == self._outside.fileno()
        place = self._outside if is_trusted else self._inside
        if place is None:
            return
        try:
            sock, _ = place.accept()
        except OSError:
            return
        if not is_trusted and sockets.peer_uid(sock) not in (self._uid, 0):
            sock.close()
            return
        self._keep(sock, is_trusted)

    def _keep(self, sock: socket.socket, is_trusted: bool) -> Connection | None:
        if len(self._connections) >= CONNECTIONS_MAX:
            sock.close()
            return None
        sock.setblocking(False)
        connection = Connection(sock, is_trusted)
        self._connections[connection.fd] = connection
        self._poll.register(connection.fd, select.POLLIN)
        return connection

    def _on_connection(self, connection: Connection, event: int) -> None:
        if event & select.POLLOUT:
            self._flush(connection)
            if connection.step is not None:
                for process in connection.step.processes:
                    self._send_output(connection.step, process)
        if connection.is_over or not event & ~select.POLLOUT:
            return
        try:
            more = connection.sock.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        if not more:
            self._on_closed(connection)
            return
        try:
            for kind, body in connection.reader.feed(more):
                self._on_frame(connection, kind, body)
                if connection.fd not in self._connections:
                    return
        except (frames.BadStepFrame, struct.error) as wrong:
            self._tell(connection, frames.message(frames.FAILED, {"why": str(wrong), "code": 1}))
            self._on_closed(connection)

    def _on_frame(self, connection: Connection, kind: bytes, body: bytes) -> None:
        if not connection.is_trusted:
            self._open_seat(connection, kind, body)
        elif kind == frames.RELAYED:
            connection.is_relayed = True
        elif kind in (frames.SEATS, frames.ALLOCATE, frames.RELEASE):
            self._coordinate(connection, kind, body)
        elif kind == frames.START:
            self._start(connection, frames.parse(body))
        elif kind == frames.SIGNAL_STEP:
            self._signal_steps(connection, frames.parse(body))
        elif kind == frames.ATTACH:
            self._attach(connection, frames.parse(body))
        elif kind == frames.QUIT:
            connection.is_relayed = False
            self._on_closed(connection)
        elif connection.step is not None:
            self._on_step_frame(connection.step, kind, body)
        else:
            raise frames.BadStepFrame("nothing was started on this connection")

    def _on_step_frame(self, step: SeatStep, kind: bytes, body: bytes) -> None:
        if kind == frames.RECEIVED:
            number, stream, offset, _ = frames.position(body)
            outlet = step.processes[number].outlets.get(stream) if number < len(step.processes) else None
            if outlet is not None:
                outlet.acknowledge(offset)
                self._watch_source(outlet)
                self._send_output(step, step.processes[number])
        elif kind == frames.INPUT:
            number, _, offset, more = frames.position(body)
            if number < len(step.processes) and (inlet := step.processes[number].inlet) is not None:
                inlet.put(offset, more)
                self._feed(step, step.processes[number])
        elif kind == frames.SIGNAL:
            number = frames.parse(body).get("signal", 0)
            if type(number) is int and 0 < number < 65:
                self._signal(step, number)
        elif kind == frames.RESIZE:
            resize(step, frames.parse(body))
        else:
            raise frames.BadStepFrame(f"unknown kind of frame: {kind!r}")

    def _coordinate(self, connection: Connection, kind: bytes, body: bytes) -> None:
        if self.coordinator is None:
            self._tell(connection, frames.message(frames.FAILED, {"why": "this is not the first seat", "code": 1}))
        else:
            self.coordinator.take(connection, kind, frames.parse(body), lambda said: self._tell(connection, said))

    def _on_closed(self, connection: Connection) -> None:
        """A client that was passed on may come back; any other one is gone."""
        connection.is_over = True
        self._unwatch(connection.fd)
        self._connections.pop(connection.fd, None)
        try:
            if connection.out:
                connection.sock.send(connection.out)
        except OSError:
            pass
        connection.sock.close()
        step = connection.step
        if step is not None and step.connection is connection:
            step.connection, step.away_since = None, time.monotonic()
            if not connection.is_relayed:
                self._end(step)
        if self.coordinator is not None:
            self.coordinator.on_closed(connection, connection.is_relayed)

    def _tell(self, connection: Connection, said: bytes) -> None:
        if not connection.is_over:
            connection.out += said
            self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        try:
            while connection.out:
                count = connection.sock.send(connection.out[:_READ])
                del connection.out[:count]
        except BlockingIOError:
            pass
        except OSError:
            self._on_closed(connection)
            return
        if not connection.is_over:
            self._poll.register(connection.fd, select.POLLIN | (select.POLLOUT if connection.out else 0))

    # --- finding a seat -----------------------------------------------------------------------------------------------

    def _open_seat(self, connection: Connection, kind: bytes, body: bytes) -> None:
        """A process of the gang asks for a connection to one of its seats."""
        asked = frames.parse(body)
        if kind != frames.OPEN or not hmac.compare_digest(str(asked.get("token", "")), self._token):
            raise frames.BadStepFrame("this is not a process of the gang: its token is not valid")
        seat = asked.get("seat")
        if type(seat) is not int or not 0 <= seat < 1 << 20:
            raise frames.BadStepFrame("there is no such seat")
        try:
            there = self._reach(seat)
        except OSError as fault:
            why = f"seat {seat} does not answer: {fault.strerror or fault}"
            self._tell(connection, frames.message(frames.WAIT, {"why": why}))
            return
        try:
            sockets.send_descriptor(connection.sock, frames.message(frames.DONE, {}), there.fileno())
        except OSError:
            self._on_closed(connection)
        finally:
            there.close()

    def _reach(self, seat: int) -> socket.socket:
        """This seat, one on the same machine, or one that the agent knows how to reach."""
        gang, _, own = self._request["name"].rpartition(".")
        if own == str(seat):
            mine, theirs = socket.socketpair()
            self._keep(mine, True)
            return theirs
        run = self._request["run"]
        try:
            return sockets.connect(f"{run}/{_STEPS}/{_short(f'{gang}.{seat}')}")
        except OSError:
            agent = sockets.connect(f"{run}/{RELAY}")
            agent.sendall(frames.message(frames.OPEN, {"task": self._request["name"], "seat": seat}))
            return agent

    # --- processes ----------------------------------------------------------------------------------------------------

    def _start(self, connection: Connection, said: dict[str, Any]) -> None:
        name, own = str(said.get("step", ""))[:200], said.get("processes")
        if not name or not isinstance(own, list) or not 0 < len(own) <= PROCESSES_MAX:
            raise frames.BadStepFrame("a step needs a name, and a list of processes")
        if name in self._steps:  # the answer to an earlier request was lost with its connection
            self._attach(connection, {"step": name, "received": {}})
            return
        specs = [ProcessSpec(said, each if isinstance(each, dict) else {}, self._request["gpus"]) for each in own]
        step = connection.step = self._steps[name] = SeatStep(name, connection)
        try:
            for spec in specs:
                self._start_process(step, spec, bool(said.get("input")))
        except (StartFault, OSError) as fault:
            why, code = (fault.why, fault.code) if isinstance(fault, StartFault) else (str(fault), 1)
            self._end(step)
            self._tell(connection, frames.message(frames.FAILED, {"why": why, "code": code}))
            return
        if said.get("rows"):
            resize(step, said)
        self._tell(connection, frames.message(frames.DONE, {"pids": [each.pid for each in step.processes]}))

    def _start_process(self, step: SeatStep, spec: ProcessSpec, has_input: bool) -> None:
        ends = ProcessEnds(spec, has_input)
        try:
            pid, verdict, program = self._starter.start_step(spec)
        except BaseException:
            ends.close_ours()
            raise
        finally:
            ends.close_theirs()
        pidfd = os.pidfd_open(pid)
        inlet = Inlet(ends.input) if ends.input >= 0 else None
        outlets = {stream: Outlet(fd) for stream, fd in ends.outputs.items()}
        process = StepProcess(len(step.processes), pid, pidfd, inlet, outlets)
        step.processes.append(process)
        self._pids[pid] = (step, process)
        self._pidfds.add(pidfd)
        self._verdicts[verdict] = (process, program)
        for fd in (pidfd, verdict):
            self._poll.register(fd, select.POLLIN)
        for outlet in outlets.values():
            self._sources[outlet.source] = (step, process, outlet)
            self._poll.register(outlet.source, select.POLLIN)

    def _on_verdict(self, fd: int) -> None:
        process, program = self._verdicts[fd]
        try:
            said = os.read(fd, 4096)
        except BlockingIOError:
            return
        del self._verdicts[fd]
        self._unwatch(fd)
        os.close(fd)
        if said:
            step = next(step for step in self._steps.values() if process in step.processes)
            fault = fault_from(said, program)
            why = {"why": fault.note or fault.why, "code": fault.code, "process": process.number}
            process.fault = frames.message(frames.FAILED, why)
            if step.connection is not None:
                self._tell(step.connection, process.fault)

    def _attach(self, connection: Connection, said: dict[str, Any]) -> None:
        """A client is back: what it does not have is sent again."""
        step = self._steps.get(str(said.get("step", "")))
        received = said.get("received")
        if step is None or not isinstance(received, dict):
            why = f"step {said.get('step')} is not known here: it has ended, or the seat was restarted"
            self._tell(connection, frames.message(frames.FAILED, {"why": why, "code": 1, "is_lost": True}))
            return
        if (earlier := step.connection) is not None and earlier is not connection:
            step.connection = None
            self._on_closed(earlier)
        connection.step, step.connection = step, connection
        step.kill_at = 0.0
        taken = {}
        for process in step.processes:
            for stream, outlet in process.outlets.items():
                offset = received.get(f"{process.number}.{stream}", 0)
                outlet.resume(offset if type(offset) is int else 0)
            process.exit_sent = False
            taken[str(process.number)] = 0 if process.inlet is None else process.inlet.taken
        self._tell(connection, frames.message(frames.DONE, {"taken": taken}))
        for process in step.processes:
            if process.fault:
                self._tell(connection, process.fault)
            self._send_output(step, process)

    def _send_output(self, step: SeatStep, process: StepProcess) -> None:
        """Send what the client has room for; its exit after all its output."""
        connection = step.connection
        if connection is None or connection.is_over:
            return
        for stream, outlet in process.outlets.items():
            while len(connection.out) < _OUT_MAX and not connection.is_over:
                offset, piece = outlet.next_piece()
                if not piece:
                    break
                self._tell(connection, frames.data(frames.OUTPUT, process.number, stream, offset, piece))
        is_sent = all(outlet.sent == outlet.end for outlet in process.outlets.values())
        if process.exit_code is not None and process.is_drained and is_sent and not process.exit_sent:
            process.exit_sent = True
            self._tell(connection, frames.frame(frames.EXIT, frames.STATUS.pack(process.number, process.exit_code)))

    def _feed(self, step: SeatStep, process: StepProcess) -> None:
        inlet = process.inlet
        if inlet is None or inlet.is_closed:
            return
        before = inlet.taken
        sink, was_watched = inlet.sink, inlet.sink in self._sinks
        inlet.flush()
        if inlet.is_waiting and not was_watched:
            self._sinks[sink] = (step, process)
            self._poll.register(sink, select.POLLOUT)
        elif not inlet.is_waiting and was_watched:
            del self._sinks[sink]
            self._unwatch(sink)
        if inlet.taken != before and step.connection is not None:
            self._tell(step.connection, frames.data(frames.TAKEN, process.number, 0, inlet.taken))

    def _watch_source(self, outlet: Outlet) -> None:
        if outlet.is_over:
            if outlet.source >= 0:
                del self._sources[outlet.source]
                self._unwatch(outlet.source)
                os.close(outlet.source)
                outlet.source = -1  # the number may be that of another pipe soon
        elif outlet.has_room:
            self._poll.register(outlet.source, select.POLLIN)
        else:
            self._unwatch(outlet.source)

    def _unwatch(self, fd: int) -> None:
        try:
            self._poll.unregister(fd)
        except KeyError:
            pass

    def _signal_steps(self, connection: Connection, said: dict[str, Any]) -> None:
        number, wanted = said.get("signal"), str(said.get("step", ""))
        reached = 0
        if type(number) is not int or not 0 < number < 65:
            raise frames.BadStepFrame("there is no such signal")
        if said.get("script"):
            reached += self._starter.signal_script(number)
        for name, step in self._steps.items() if said.get("steps") else ():
            is_meant = name.rpartition(".")[0] == wanted if wanted else not name.startswith("in-")
            if is_meant and not step.has_ended:
                self._signal(step, number)
                reached += 1
        self._tell(connection, frames.message(frames.DONE, {"reached": reached}))

    # --- the end ------------------------------------------------------------------------------------------------------

    def _signal(self, step: SeatStep, number: int) -> None:
        for process in step.processes:
            if process.exit_code is not None and number != SIGKILL:
                continue
            try:
                os.killpg(process.pid, number)
            except (ProcessLookupError, PermissionError):
                pass

    def _end(self, step: SeatStep) -> None:
        """It is no longer wanted."""
        step.kill_at = time.monotonic() + _KILL_AFTER_S
        self._signal(step, SIGTERM)

    def _give_up_output(self, step: SeatStep) -> None:
        """Its processes have ended, and something that they left behind still holds their pipes. A pipe that waits for
        a slow client, or for one that is away, may hold more output."""
        step.ended_at = 0.0
        for process in step.processes:
            for outlet in process.outlets.values():
                if outlet.has_room:
                    outlet.pump()
                    outlet.is_over = outlet.is_over or outlet.has_room
                    self._watch_source(outlet)
                if not outlet.is_over:
                    step.ended_at = time.monotonic()
            self._send_output(step, process)

    def _drop(self, step: SeatStep) -> None:
        del self._steps[step.name]
        for process in step.processes:
            for outlet in process.outlets.values():
                outlet.is_over = True
                self._watch_source(outlet)
            if process.inlet is not None and not process.inlet.is_closed:
                if self._sinks.pop(process.inlet.sink, None) is not None:
                    self._unwatch(process.inlet.sink)
                process.inlet.close()


def _short(name: str) -> str:
    """As `state_dir.short`: the name of the private directory of a task."""
    return blake2s(name.encode(), digest_size=8).hexdigest()
