"""The processes of job steps on one seat, as its supervisor keeps them: what to start, their streams and their ends.

Values and descriptors; the loop that serves them is in `seat_host`.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import termios

from corral.runtime.steps import step_frames as frames
from corral.runtime.steps.step_streams import Inlet, Outlet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class ProcessSpec:
    """A process to start. ``env``: None: the task's own; ``more`` is added in any case. ``gpus``: None: all of the
    seat. ``terminal``: it leads a session with ``stdin`` as its terminal."""

    def __init__(self, said: dict[str, Any], own: dict[str, Any], seat_gpus: list[str]) -> None:
        command, env = own.get("command", said.get("command")), said.get("env")
        more = own.get("env", {})
        if not (_is_texts(command) and command and command[0]):
            raise frames.BadStepFrame("there is no command")
        if not (env is None or _is_env(env)) or not _is_env(more):
            raise frames.BadStepFrame("the environment is not a mapping of texts")
        gpus = own.get("gpus")
        if gpus is not None and not (_is_texts(gpus) and set(gpus) <= set(seat_gpus)):
            raise frames.BadStepFrame("the GPUs are not those of this seat")
        self.command: list[str] = command
        self.env: dict[str, str] | None = env
        self.more: dict[str, str] = more
        self.gpus: list[str] | None = gpus
        self.directory = str(said.get("directory") or "")
        self.terminal = bool(said.get("terminal"))
        self.stdin = -1
        self.stdout = -1
        self.stderr = -1


class StepProcess:
    def __init__(self, number: int, pid: int, pidfd: int, inlet: Inlet | None, outlets: dict[int, Outlet]) -> None:
        self.number = number
        self.pid = pid
        self.pidfd = pidfd
        self.inlet = inlet
        self.outlets = outlets
        self.exit_code: int | None = None
        self.exit_sent = False
        self.fault = b""  # a frame: why it could not be executed

    @property
    def is_drained(self) -> bool:
        return all(outlet.is_over for outlet in self.outlets.values())


class SeatStep:
    """The processes of one step on this seat. ``connection`` is None while the client is away."""

    def __init__(self, name: str, connection: Connection) -> None:
        self.name = name
        self.connection: Connection | None = connection
        self.processes: list[StepProcess] = []
        self.away_since = 0.0
        self.kill_at = 0.0  # 0: it may continue
        self.ended_at = 0.0

    @property
    def has_ended(self) -> bool:
        return all(process.exit_code is not None for process in self.processes)


class Connection:
    def __init__(self, sock: socket.socket, is_trusted: bool) -> None:
        self.sock = sock
        self.fd = sock.fileno()
        self.is_trusted = is_trusted
        self.is_relayed = False
        self.is_over = False
        self.step: SeatStep | None = None
        self.allocated: set[str] = set()
        self.out = bytearray()
        self.reader = frames.Reader()


class ProcessEnds:
    """Pipes, or a terminal, for one process: our ends, and its ends in the spec."""

    def __init__(self, spec: ProcessSpec, has_input: bool) -> None:
        self.input = -1
        self.outputs: dict[int, int] = {}
        self._theirs: list[int] = []
        if spec.terminal:
            ours, theirs = os.openpty()
            self._theirs.append(theirs)
            self.input = fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 3)
            self.outputs[1] = ours
            spec.stdin = spec.stdout = theirs
            spec.stderr = theirs
            return
        if has_input:
            spec.stdin, self.input = os.pipe()
            self._theirs.append(spec.stdin)
        self.outputs[1], spec.stdout = os.pipe()
        self.outputs[2], spec.stderr = os.pipe()
        self._theirs += [spec.stdout, spec.stderr]

    def close_theirs(self) -> None:
        for fd in self._theirs:
            os.close(fd)

    def close_ours(self) -> None:
        for fd in (*self.outputs.values(), *((self.input,) if self.input >= 0 else ())):
            os.close(fd)


def resize(step: SeatStep, said: dict[str, Any]) -> None:
    rows, columns = said.get("rows"), said.get("columns")
    if type(rows) is not int or type(columns) is not int or not (0 < rows < 1 << 15 and 0 < columns < 1 << 15):
        return
    for process in step.processes:
        if process.inlet is not None and not process.outlets[1].is_over and os.isatty(process.outlets[1].source):
            fcntl.ioctl(process.outlets[1].source, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) and "\0" not in each for each in value)


def _is_env(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    return all(
        isinstance(text, str) and "\0" not in name + text and name and "=" not in name for name, text in value.items()
    )
