"""Runs one step from a process of the gang: asks for a share, starts the processes, and passes on their streams.

Single-threaded: one poll over the seats, the standard input and signals. Output of several processes is passed on in
whole lines, so that lines are never mixed; that of a single process as it comes. Light to import: it is most of the
time of a short step.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

from corral.runtime.steps import step_frames as frames
from corral.runtime.steps.seat_link import SeatLink, StepRefused, ask, find_patiently
from corral.runtime.steps.step_ranks import Rank, SeatShare, ranks_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from corral.runtime.steps.seat_link import SeatFinder

    EnvOf = Callable[[Rank, list[SeatShare], str], dict[str, str]]

START_S = 60.0  # for a seat of the gang that has not started yet
_FORWARDED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGCONT", "SIGQUIT", "SIGWINCH")
_IDLE_S = 0.3  # a line without its end is passed on after this time
_LINE_MAX = 1 << 20
_CHUNK = 64 << 10
_END_OF_INPUT = b"\x04"  # as typed on a terminal, which cannot be closed


class StepPlan:
    """What to run. ``input``: -2: no process reads it; -1: all processes; otherwise this rank. ``labels``: the rank
    is before each line. ``files``: from a rank to the paths for its output and errors; None: those of this process."""

    def __init__(self, wanted: dict[str, Any], command: list[str]) -> None:
        self.wanted = wanted
        self.command = command
        self.commands: list[list[str]] | None = None  # by rank, where they differ
        self.env: dict[str, str] | None = {}  # None: that of the task
        self.own_seat = -1  # a process on this seat, beside all steps, without a share; -1: a step
        self.env_of: EnvOf | None = None
        self.directory = ""
        self.input = -2
        self.labels = False
        self.unbuffered = False
        self.kills_on_failure = False
        self.gpus_per_task = 0
        self.is_cyclic = False
        self.files: Callable[[Rank, str], tuple[str, str]] | None = None
        self.appends = False
        self.name = ""
        self.start_codes: dict[int, int] = {}  # other exit codes for what cannot be executed
        self.terminal: tuple[int, int] | None = None  # rows, columns


class StepRun:
    """``tell``: messages for the user."""

    def __init__(self, finder: SeatFinder, plan: StepPlan, tell: Callable[[str], None]) -> None:
        self._finder, self._plan = finder, plan
        self._tell = tell
        self._links: list[SeatLink] = []
        self._ranks: dict[tuple[int, int], Rank] = {}  # by link and number of the process
        self._printer = Printer(plan)
        self._worst = 0
        self._reported: set[int] = set()
        self._is_ending = False
        self._coordinator: socket.socket | None = None

    def run(self) -> int:
        wakeups = _Signals()
        try:
            answer = self._allocate() if self._plan.own_seat < 0 else self._beside()
        except StepRefused as refused:
            self._tell(f"error: {refused.why}")
            return refused.code
        step, shares = str(answer["step"]), [SeatShare(each) for each in answer["shares"]]
        try:
            self._begin(step, shares)
            self._follow(wakeups)
        except StepRefused as refused:
            self._tell(f"error: {refused.why}")
            self._worst = self._worst or refused.code
        finally:
            for link in self._links:
                link.close()
            self._printer.close()
            self._release(step)
        return self._worst

    # --- the share ----------------------------------------------------------------------------------------------------

    def _allocate(self) -> dict[str, Any]:
        said: list[str] = []

        def on_wait(why: str) -> None:
            if not said:
                said.append(why)
                self._tell(f"step creation temporarily disabled, retrying ({why})")

        while True:
            self._coordinator = find_patiently(self._finder, 0, START_S)
            try:
                return ask(self._coordinator, frames.ALLOCATE, {**self._plan.wanted, "name": self._plan.name}, on_wait)
            except OSError:
                self._coordinator.close()  # a connection through others broke: the request did not take effect

    def _beside(self) -> dict[str, Any]:
        """A process beside all steps: nothing is asked for, and the seat gives it all that the task has."""
        return {"step": f"in-{os.urandom(8).hex()}", "shares": [[self._plan.own_seat, "", 1, None, 0, 0]]}

    def _release(self, step: str) -> None:
        if self._plan.own_seat >= 0:
            return
        try:
            if self._coordinator is not None:
                ask(self._coordinator, frames.RELEASE, {"step": step, "code": self._worst})
        except (OSError, StepRefused):
            self._release_again(step)
        if self._coordinator is not None:
            self._coordinator.close()

    def _release_again(self, step: str) -> None:
        """The connection broke. The coordinator releases the step by itself later, but with another exit code."""
        until = time.monotonic() + START_S
        while (left_s := until - time.monotonic()) > 0:
            try:
                with find_patiently(self._finder, 0, left_s) as again:
                    ask(again, frames.RELEASE, {"step": step, "code": self._worst})
                return
            except StepRefused:
                return
            except OSError:
                time.sleep(0.25)

    # --- the processes ------------------------------------------------------------------------------------------------

    def _begin(self, step: str, shares: list[SeatShare]) -> None:
        plan = self._plan
        for group, (share, own) in enumerate(
            zip(shares, ranks_of(shares, plan.gpus_per_task, plan.is_cyclic), strict=True)
        ):
            processes = []
            for number, rank in enumerate(own):
                self._ranks[group, number] = rank
                process: dict[str, Any] = {"gpus": rank.gpus}
                if plan.env_of is not None:
                    process["env"] = plan.env_of(rank, shares, step)
                if plan.commands is not None:
                    process["command"] = plan.commands[rank.rank]
                processes.append(process)
                self._printer.add(group, number, rank, step)
            start: dict[str, Any] = {
                "command": plan.command,
                "env": plan.env,
                "directory": plan.directory,
                "processes": processes,
                "input": plan.input >= -1,
            }
            if plan.terminal is not None:
                start |= {"terminal": True, "rows": plan.terminal[0], "columns": plan.terminal[1]}
            self._links.append(SeatLink(share.seat, f"{step}.{group}", start, len(own)))
        for link in self._links:
            link.connect(find_patiently(self._finder, link.seat, START_S))

    def _follow(self, wakeups: _Signals) -> None:
        feeder = None
        if self._plan.input >= -1:
            feeder = Feeder(self._plan.input, self._links, self._ranks, self._plan.terminal is not None)
        while not all(link.is_over for link in self._links):
            poll = select.poll()
            poll.register(wakeups.fd, select.POLLIN)
            by_fd = {link.sock.fileno(): link for link in self._links if link.sock is not None}
            for fd, link in by_fd.items():
                poll.register(fd, select.POLLIN | (select.POLLOUT if link.out else 0))
            if feeder is not None and feeder.wants_more:
                poll.register(0, select.POLLIN)
            ready = poll.poll(self._patience_ms())
            for fd, event in ready:
                if fd == wakeups.fd:
                    self._forward(wakeups)
                elif fd == 0 and feeder is not None:
                    feeder.read()
                else:
                    self._serve(by_fd[fd], event)
            if feeder is not None:
                feeder.feed()
            self._printer.flush_old()
            self._reconnect()

    def _patience_ms(self) -> int:
        if any(link.sock is None and not link.is_over for link in self._links):
            return 100
        return int(_IDLE_S * 1000) if self._printer.has_partial else 60_000

    def _serve(self, link: SeatLink, event: int) -> None:
        if event & select.POLLOUT:
            link.flush()
        if link.sock is None or not event & ~select.POLLOUT:
            return
        group = self._links.index(link)
        for number, stream, data in link.receive():
            self._printer.put(group, number, stream, data)
        link.acknowledge()
        for number, code in enumerate(link.codes):
            rank = self._ranks[group, number]
            if code is not None and rank.rank not in self._reported:
                self._reported.add(rank.rank)
                self._on_exit(link, number, rank, code)

    def _on_exit(self, link: SeatLink, number: int, rank: Rank, code: int) -> None:
        self._printer.end(self._links.index(link), number)
        if not code:
            return
        code = self._plan.start_codes.get(code, code) if number in link.faults else code
        self._worst = max(self._worst, code)
        where = f"{rank.share.node}: task {rank.rank}"
        if number in link.faults:
            self._tell(f"error: {where}: {link.faults[number]}")
        elif code > 128 and self._plan.terminal is None:
            self._tell(f"error: {where}: {_signal_text(code - 128)}")
        elif self._plan.terminal is None:
            self._tell(f"error: {where}: Exited with exit code {code}")
        if self._plan.kills_on_failure and not self._is_ending:
            self._is_ending = True
            self._signal(signal.SIGTERM)

    def _reconnect(self) -> None:
        now = time.monotonic()
        for link in self._links:
            if link.sock is not None or link.is_over or now < link.retry_at:
                continue
            if now - link.broken_at > frames.DETACHED_S:
                why = f"seat {link.seat} has not answered for {frames.DETACHED_S:g} s"
                raise StepRefused(why, is_lost=True)
            try:
                link.connect(self._finder.find(link.seat))
            except Exception:  # not reachable yet
                link.retry_at = now + 0.25

    # --- signals ------------------------------------------------------------------------------------------------------

    def _forward(self, wakeups: _Signals) -> None:
        for number in wakeups.taken():
            if number == signal.SIGWINCH:
                self._resize()
            else:
                self._signal(number)

    def _resize(self) -> None:
        if self._plan.terminal is None:
            return
        size = os.get_terminal_size(0)
        for link in self._links:
            link.send(frames.message(frames.RESIZE, {"rows": size.lines, "columns": size.columns}))

    def _signal(self, number: int) -> None:
        for link in self._links:
            link.signal(int(number))


def _signal_text(number: int) -> str:
    try:
        return signal.strsignal(number) or f"Signal {number}"
    except ValueError:
        return f"Signal {number}"


class _Signals:
    """Signals as bytes in a pipe."""

    def __init__(self) -> None:
        self.fd, sink = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(sink, warn_on_full_buffer=False)
        for name in _FORWARDED:
            if signal.getsignal(getattr(signal, name)) is not signal.SIG_IGN:
                signal.signal(getattr(signal, name), _note)

    def taken(self) -> bytes:
        try:
            return os.read(self.fd, 64)
        except BlockingIOError:
            return b""


def _note(_number: int, _frame: object) -> None:
    """The number is in the pipe."""


class Feeder:
    """Passes the standard input on, no faster than the slowest of its readers takes it."""

    def __init__(
        self, target: int, links: list[SeatLink], ranks: dict[tuple[int, int], Rank], has_terminal: bool = False
    ) -> None:
        self._has_terminal = has_terminal
        self._readers = [(links[group], number) for (group, number), rank in ranks.items() if target in (-1, rank.rank)]
        for (group, number), rank in ranks.items():
            if target not in (-1, rank.rank):
                links[group].send(frames.data(frames.INPUT, number, 0, 0))
        self._sent = dict.fromkeys(range(len(self._readers)), 0)
        self._held = bytearray()
        self._base = 0
        self._is_over = False
        self._ended: set[int] = set()
        self._connections: dict[int, object] = {}

    @property
    def wants_more(self) -> bool:
        return not self._is_over and len(self._held) < frames.WINDOW // 2

    def read(self) -> None:
        try:
            more = os.read(0, _CHUNK)
        except OSError:
            more = b""
        self._held += more if more or not self._has_terminal else _END_OF_INPUT
        self._is_over = not more

    def feed(self) -> None:
        for n, (link, number) in enumerate(self._readers):
            if not link.is_started or link.sock is None or link.codes[number] is not None:
                continue
            if self._connections.get(n) is not link.sock:  # a new connection: from what was taken
                self._connections[n] = link.sock
                self._sent[n] = max(link.taken[number], self._base)
                self._ended.discard(n)
            while self._sent[n] < self._base + len(self._held):
                begin = self._sent[n] - self._base
                piece = bytes(self._held[begin : begin + _CHUNK])
                link.send(frames.data(frames.INPUT, number, 0, self._sent[n], piece))
                self._sent[n] += len(piece)
            if self._is_over and n not in self._ended:
                self._ended.add(n)
                link.send(frames.data(frames.INPUT, number, 0, self._sent[n]))
        live = [link.taken[number] for link, number in self._readers if link.codes[number] is None]
        done = min(live, default=self._base + len(self._held))
        if done > self._base:
            del self._held[: done - self._base]
            self._base = done


class Printer:
    """Writes the output of all processes to this process's own, or to files."""

    def __init__(self, plan: StepPlan) -> None:
        self._plan = plan
        self._ranks: dict[tuple[int, int], Rank] = {}
        self._lines: dict[tuple[int, int, int], bytearray] = {}
        self._since: dict[tuple[int, int, int], float] = {}
        self._files: dict[tuple[int, int, int], int] = {}
        self._by_path: dict[str, int] = {}

    def add(self, group: int, number: int, rank: Rank, step: str) -> None:
        self._ranks[group, number] = rank
        for stream, path in zip((1, 2), self._plan.files(rank, step) if self._plan.files else ("", ""), strict=True):
            self._files[group, number, stream] = self._opened(path) if path else stream

    def _opened(self, path: str) -> int:
        if path not in self._by_path:
            mode = os.O_APPEND if self._plan.appends else os.O_TRUNC
            try:
                self._by_path[path] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | mode, 0o666)
            except OSError as fault:
                raise StepRefused(f"cannot open {path}: {fault.strerror}") from None
        return self._by_path[path]

    @property
    def has_partial(self) -> bool:
        return bool(self._since)

    def put(self, group: int, number: int, stream: int, data: bytes) -> None:
        place = (group, number, stream)
        if not self._plan.labels and (len(self._ranks) == 1 or self._plan.unbuffered):
            _write(self._files[place], data)
            return
        held = self._lines.setdefault(place, bytearray())
        held += data
        end = held.rfind(b"\n") + 1
        if not end and len(held) > _LINE_MAX:
            end = len(held)
        if end:
            self._print(place, bytes(held[:end]))
            del held[:end]
            self._since.pop(place, None)
        if held:
            self._since.setdefault(place, time.monotonic())

    def _print(self, place: tuple[int, int, int], lines: bytes) -> None:
        if self._plan.labels:
            width = len(str(len(self._ranks) - 1))
            label = f"{self._ranks[place[:2]].rank:>{width}}: ".encode()
            lines = b"".join(label + line + b"\n" for line in lines.removesuffix(b"\n").split(b"\n"))
        _write(self._files[place], lines)

    def flush_old(self) -> None:
        """Lines without an end that are older than 0.3 s: prompts and progress bars."""
        if self._since:
            now = time.monotonic()
            for place in [place for place, since in self._since.items() if now - since > _IDLE_S]:
                del self._since[place]
                if not self._plan.labels:
                    self._print(place, bytes(self._lines.pop(place)))

    def end(self, group: int, number: int) -> None:
        for stream in (1, 2):
            held = self._lines.pop((group, number, stream), None)
            self._since.pop((group, number, stream), None)
            if held:
                self._print((group, number, stream), bytes(held))

    def close(self) -> None:
        for group, number in self._ranks:
            self.end(group, number)
        for fd in self._by_path.values():
            os.close(fd)


def _write(fd: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:
            select.select([], [fd], [])
        except BrokenPipeError:
            sys.exit(141)
