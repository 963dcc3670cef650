"""Conversations of several requests: the end of a job, its logs, events. All resume after a lost connection.

Does not know sockets: conversations yield requests, streams and pauses. Events are read as server-sent events, a log as
bytes; both resume where they stopped, by record number and by offset.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from corral.client.call import (
    SILENCE_S,
    ApiCall,
    Item,
    JobId,
    More,
    Open,
    Pause,
    RawAnswer,
    Series,
    Talk,
    job_id,
    path,
    series,
    talk,
)
from corral.client.errors import NotFound, Problem, Timeout, Unreachable
from corral.client.handles.progress import Progress, ProgressLines
from corral.client.handles.requests import job_call
from corral.client.retry import Patient, answered, asked, problem_of
from corral.io.backoff import Backoff, no_chance
from corral.wire.api.jobs import JobView, OutputHead
from corral.wire.api.queries import LOG_ATTEMPT, LOG_GANG, LOG_NEXT, LOG_OFFSET, LOG_OVER
from corral.wire.api.record import EventList, EventView
from corral.wire.api.words import ENDED

POLL_S = 1.0  # if no stream is available
NEXT_RUN_S, NEXT_RUN_S_MAX = 0.2, 1.5  # between two checks for the next attempt of a job whose log is followed
_PAGE = 1000
_NO_LOG = ("no_such_log", "no_such_gang")  # no attempt has started yet
_SSE = {"Accept": "text/event-stream"}
_ANY = {"Accept": "*/*"}
_NO_ROUTE = ("no_such_path", "no_such_route")  # of a server of an earlier version


class LogBytes(msgspec.Struct, frozen=True):
    """Bytes of one log; ``offset`` counts from the first byte ever written to it."""

    gang: str
    attempt: int
    offset: int
    data: bytes
    task: int = 0
    rank: int = 0
    stream: str = "stdout"
    label: str = ""  # what distinguishes the process within its job; empty: there is only one
    at_ms: int = 0  # when it was written, if that is known


class FollowCalls(Patient):
    """Wait for a job, read its logs, read events."""

    @talk
    def wait(self, job: JobId, *, timeout_s: float | None = None, progress: Progress = False) -> Talk[JobView]:
        """Wait until the job has ended, and return it. Raises ``Timeout``.

        ``progress``: say on standard error what the job does, or call this function with each line.

        >>> job = client.submit({"command": "exit 3"})
        >>> view = client.wait(job.id, timeout_s=60)
        >>> print(view.state, view.exit_code)
        failed 3
        """
        return (yield from waited(self, job_id(job), timeout_s, progress))

    @series
    def events(
        self,
        after: int = 0,
        *,
        follow: bool = False,
        job: JobId | None = None,
        queue: str | None = None,
        types: Sequence[str] = (),
    ) -> Series[EventView]:
        """Records after ``after``, in order; ``follow``: and new ones, without end."""
        parameters = {"job": None if job is None else job_id(job), "queue": queue, "types": tuple(types)}
        if follow:
            yield from _feed(self, after, parameters)
            return
        while True:
            page = yield from answered(self, _page(after, _PAGE, **parameters))
            for event in page.events:
                yield Item(event)
            if page.next >= page.head or page.next <= after:
                return
            after = page.next

    @talk
    def newest_event(self) -> Talk[int]:
        """The number of the newest record."""
        return (yield from answered(self, _page(0, 1))).head

    @series
    def logs(
        self,
        job: JobId,
        *,
        gang: str = "",
        task: int = 0,
        attempt: int = 0,
        stream: str = "stdout",
        offset: int = 0,
        tail: int | None = None,
        follow: bool = False,
    ) -> Series[LogBytes]:
        """A log in parts. ``attempt`` 0: the newest, and with ``follow`` later ones until the job has ended."""
        parameters = {"gang": gang, "task": task, "stream": stream}
        yield from log_parts(self, job_id(job), parameters, attempt, offset, tail, follow=follow)

    @series
    def output(
        self,
        job: JobId,
        *,
        gang: str = "",
        task: int | None = None,
        rank: int | None = None,
        attempt: int = 0,
        stream: str = "",
        tail: int | None = None,
        follow: bool = False,
    ) -> Series[LogBytes]:
        """All output of a job in order of time, in parts of whole lines: both streams of all tasks, ranks and elements.
        ``tail``: only the last lines; ``follow``: also what is written later, until the job has ended."""
        which = {"gang": gang, "task": task, "rank": rank, "attempt": attempt, "stream": stream, "follow": follow}
        yield from output_parts(self, job_id(job), which, tail)


def _page(after: int, limit: int, **parameters: Any) -> ApiCall[EventList]:
    return ApiCall("GET", path("events"), EventList, {"after": after, "limit": limit, **parameters})


def waited(client: Patient, job: str, timeout_s: float | None, progress: Progress) -> Talk[JobView]:
    """The job, once it has ended."""
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    lines = ProgressLines(progress)
    head = (yield from answered(client, _page(0, 1))).head
    while True:
        view = yield from answered(client, job_call(job))
        if lines.is_wanted:
            yield from lines.tell(client, view)
        if view.state in ENDED:
            return view
        if until_s is not None and time.monotonic() >= until_s:
            raise Timeout(f"job {job} is still {view.state} after {timeout_s:g} s")
        head = yield from _until_news(job, head, until_s, lines.is_wanted)


# ---- events ---------------------------------------------------------------------------------------------------------


def _feed(client: Patient, after: int, parameters: dict[str, Any]) -> Series[EventView]:
    backoff = Backoff()
    while True:
        try:
            yield from opened(client, ApiCall("GET", path("events"), bytes, _follow(after, parameters), headers=_SSE))
            lines = _Lines()
            while data := (yield More()):
                for text in lines.feed(data):
                    event = msgspec.json.decode(text, type=EventView)
                    after = event.seq
                    backoff.succeeded()
                    yield Item(event)
        except Unreachable:
            pass
        yield Pause(backoff.failed())


def _follow(after: int, parameters: dict[str, Any]) -> dict[str, Any]:
    return {**parameters, "after": after, "follow": True}


def opened(client: Patient, call: ApiCall[Any]) -> Talk[RawAnswer]:
    """The head of a stream that was opened, retried like any request; a refusal is raised."""
    began_s, backoff = time.monotonic(), Backoff()
    while True:
        wait_s = backoff.failed()
        try:
            answer: RawAnswer = yield Open(call)
            client.patience.is_reached = True
            if answer.status < 400:
                return answer
            if answer.status not in (429, 503) or time.monotonic() - began_s + wait_s > client.patience.left_s:
                raise problem_of(answer)
        except Unreachable:
            if time.monotonic() - began_s + wait_s > client.patience.left_s:
                raise
        yield Pause(wait_s)


def _until_news(job: str, head: int, until_s: float | None, is_any: bool) -> Talk[int]:
    """Wait for the event that ends the job, or one of the gangs that are waited for; ``is_any``: for any event of the
    job. Without a stream, pause."""
    types = ("JobEnded", "GangFinished") if any(mark in job for mark in "[/:_") else ("JobEnded",)
    parameters = _follow(head, {"job": job, "types": () if is_any else types})
    try:
        answer: RawAnswer = yield Open(ApiCall("GET", path("events"), bytes, parameters, headers=_SSE))
        if answer.status >= 400:
            raise problem_of(answer)
        lines = _Lines()
        while data := (yield More(_left_s(until_s, SILENCE_S))):
            for text in lines.feed(data):
                return msgspec.json.decode(text, type=EventView).seq
            if until_s is not None and time.monotonic() >= until_s:
                return head
    except (Unreachable, Problem):
        pass
    yield Pause(_left_s(until_s, POLL_S))
    return head


def _left_s(until_s: float | None, most_s: float) -> float:
    return most_s if until_s is None else min(most_s, max(0.001, until_s - time.monotonic()))


class _Lines:
    """From bytes of server-sent events to the data of each event; comments only keep the connection open."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []


# ---- logs -----------------------------------------------------------------------------------------------------------


def _log_call(job: str, parameters: dict[str, Any]) -> ApiCall[bytes]:
    return ApiCall("GET", path("jobs", job, "logs"), bytes, parameters, headers={"Accept": "*/*"})


def output_parts(client: Patient, job: str, which: dict[str, Any], tail: int | None) -> Series[LogBytes]:
    """All output of a job in parts of whole lines. ``which``: of what, and whether to follow it."""
    backoff, read = Backoff(), _Output()
    while not read.has_ended():
        parameters = which | {"tail": None if read.is_begun else tail}
        try:
            yield from opened(client, ApiCall("GET", path("jobs", job, "output"), bytes, parameters, headers=_ANY))
            read.restart()
            while not read.has_ended() and (data := (yield More())):
                backoff.succeeded()
                for part in read.feed(data):
                    yield Item(part)
        except Unreachable:
            pass
        except NotFound as error:
            if error.code not in _NO_ROUTE:
                raise
            yield from _of_one_task(client, job, which)
            return
        if not read.has_ended():
            yield Pause(backoff.failed())


def _of_one_task(client: Patient, job: str, which: dict[str, Any]) -> Series[LogBytes]:
    """What a server of an earlier version has: the logs of one task, one stream after the other."""
    where = {"gang": which["gang"], "task": which["task"] or 0}
    for stream in (which["stream"],) if which["stream"] else ("stdout", "stderr"):
        log = _Log(job, where | {"stream": stream}, which["attempt"], 0, None)
        yield from log.follow(client) if which["follow"] else log.rest(client)


class _Output:
    """From bytes of an answer to parts of the output. After a lost connection everything is sent again: what was read
    before is left out."""

    def __init__(self) -> None:
        self._is_over = False
        self.is_begun = False
        self._seen: dict[tuple[str, int, int, str], int] = {}  # stream of a task -> the offset after what was read
        self.restart()

    def has_ended(self) -> bool:
        """Whether all of it was read."""
        return self._is_over

    def restart(self) -> None:
        self._rest = bytearray()
        self._head: OutputHead | None = None

    def feed(self, data: bytes) -> Iterator[LogBytes]:
        self._rest += data
        while True:
            if self._head is None:
                line, found, rest = self._rest.partition(b"\n")
                if not found:
                    return
                self._head, self._rest = msgspec.json.decode(line, type=OutputHead), rest
                self._is_over = self._head.over
            if len(self._rest) < self._head.size:
                return
            head, self._head = self._head, None
            text = bytes(self._rest[: head.size])
            del self._rest[: head.size]
            if head.gang and (part := self._part(head, text)) is not None:
                yield part

    def _part(self, head: OutputHead, text: bytes) -> LogBytes | None:
        self.is_begun = True
        key = (head.gang, head.attempt, head.task, head.stream)
        known = max(self._seen.get(key, 0) - head.offset, 0)
        self._seen[key] = max(self._seen.get(key, 0), head.offset + head.size)
        if known >= head.size:
            return None
        return LogBytes(
            head.gang,
            head.attempt,
            head.offset + known,
            text[known:],
            head.task,
            head.rank,
            head.stream,
            head.label,
            head.at_ms,
        )


def log_parts(
    client: Patient,
    job: str,
    parameters: dict[str, Any],
    attempt: int,
    offset: int,
    tail: int | None,
    *,
    follow: bool = False,
) -> Series[LogBytes]:
    """A log in parts. ``parameters``: which log."""
    if not follow:
        yield from _Log(job, parameters, attempt, offset, tail).rest(client)
        return
    run, backoff = attempt, Backoff(NEXT_RUN_S, NEXT_RUN_S_MAX, no_chance)
    while True:
        view = yield from answered(
            client, job_call(job)
        )  # read before the log: if the job has ended, the log is complete
        log = _Log(job, parameters, run, offset, tail)
        yield from _until_there(client, log)
        if attempt or (view.state in ENDED and not log.attempt):
            return
        if log.attempt:
            run = log.attempt + 1
            offset = 0
            tail = None
            backoff.succeeded()
        else:
            yield Pause(backoff.failed())


class _Log:
    """One log, read from an offset to its end. ``attempt`` becomes the attempt it belongs to; 0: there is none yet."""

    def __init__(self, job: str, parameters: dict[str, Any], attempt: int, offset: int, tail: int | None) -> None:
        self.job, self.parameters = job, parameters
        self.wanted = attempt
        self.attempt = 0
        self.offset = offset
        self.tail = tail
        self.gang, self.is_over = "", False

    def rest(self, client: Patient) -> Series[LogBytes]:
        """The current content, in parts."""
        while True:
            answer = yield from asked(client, _log_call(self.job, self._parameters()))
            if answer.status >= 400:
                raise problem_of(answer)
            following = self._note(answer)
            if not answer.body or following <= self.offset:
                return
            yield Item(LogBytes(self.gang, self.attempt, self.offset, answer.body))
            self.offset = following

    def follow(self, client: Patient) -> Series[LogBytes]:
        """New content until the attempt has ended. A stream may end because the server stops: then read again."""
        backoff = Backoff()
        while True:
            yield from self.rest(client)
            if self.is_over:
                return
            try:
                yield from opened(client, _log_call(self.job, self._parameters() | {"follow": True}))
                while data := (yield More()):
                    backoff.succeeded()
                    yield Item(LogBytes(self.gang, self.attempt, self.offset, data))
                    self.offset += len(data)
            except Unreachable:
                pass
            yield Pause(backoff.failed())

    def _parameters(self) -> dict[str, Any]:
        return self.parameters | {"attempt": self.attempt or self.wanted, "offset": self.offset, "tail": self.tail}

    def _note(self, answer: RawAnswer) -> int:
        """The part with its offset; returns the offset after it."""
        headers = answer.headers
        self.gang, self.attempt = headers.get(LOG_GANG.lower(), ""), int(headers.get(LOG_ATTEMPT.lower(), 0))
        self.offset, self.tail = int(headers.get(LOG_OFFSET.lower(), self.offset)), None
        self.is_over = headers.get(LOG_OVER.lower()) == "true"
        return int(headers.get(LOG_NEXT.lower(), 0))


def _until_there(client: Patient, log: _Log) -> Series[LogBytes]:
    """Follow a log if there is one: then ``log.attempt`` is not 0."""
    try:
        yield from log.follow(client)
    except NotFound as error:
        if error.code not in _NO_LOG:
            raise
