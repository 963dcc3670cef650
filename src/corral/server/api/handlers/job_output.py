"""All output of a job as one stream: both streams of all its tasks, ranks and elements, each line once and whole.

The order: lines of one process and stream come in the order in which they were written. Lines of different processes
come in the order in which their nodes read them, by the clocks of the nodes, to the millisecond; what no time is known
of comes first, task by task. While following, lines are sent as they arrive, so a line of a slow node may come late.

Logs are read in parts as they are needed, so memory depends on the number of tasks that run at the same time and not
on how much they wrote. Knows nothing about how logs are stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from heapq import heappop, heappush, nlargest

from msgspec import json

from corral.core.gang_id import index_of, role_of
from corral.core.model import GangState, JobSpec
from corral.core.work import Work
from corral.runtime.base import LogPart, TaskKey
from corral.server.api.handlers.jobs import seen_job
from corral.server.api.handlers.logs import KIND, matching_gangs, read_part
from corral.server.api.handlers.selection import selector_of
from corral.server.api.http.problems import ApiError
from corral.server.api.http.request import ApiRequest, StreamAnswer
from corral.server.auth import Verb
from corral.server.dispatch import process_count
from corral.store.lookup import AttemptRow, JobRow
from corral.wire.api import OutputHead

_PART = 64 << 10
_LINE_MAX = 1 << 20  # a longer line is sent in parts
_AT_ONCE = 64  # reads
_SEND = 128 << 10
_TAIL_MIN, _TAIL_MAX = 16 << 10, 4 << 20  # bytes at the end of a stream
_TAIL_AT_ONCE = 8  # streams
_UNFINISHED_S = 30.0  # after this time a line without its end is sent, although others may come between
_BAR_S = 1.0  # a progress bar, or the line of the only process
_POLL_S_MAX = 2.0  # of a stream to which nothing is written
_ALIVE_S = 15.0
_NEVER = (1 << 62, 0)

Block = tuple[int, int, int, bytes]  # time, rank, offset, whole lines
Read = Callable[[TaskKey, str, int, int], Awaitable[LogPart | None]]


async def read_output(request: ApiRequest) -> StreamAnswer:
    row = await seen_job(request, Verb.LOGS_READ)
    selector = selector_of(request)
    gangs = await matching_gangs(request, row.id, request.query.gang)
    gangs = [gang for gang in gangs if selector.takes(index_of(gang), role_of(gang))]
    output = JobOutput(request, row, gangs)
    await output.begin()
    if not output.sources and not request.query.follow:
        raise ApiError(404, "no_such_log", _why_none(request, row), "list the attempts of the job")

    def holds() -> bool:
        return request.may(Verb.LOGS_READ, row.queue, row.user)

    return StreamAnswer(output.frames(), KIND, holds)


def _why_none(request: ApiRequest, row: JobRow) -> str:
    wanted = request.query
    if not row.attempts:
        return f"job {row.id} has not started yet"
    asked = {"attempt": wanted.attempt or None, "task": wanted.task, "rank": wanted.rank}
    named = ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
    return f"job {row.id} has no {named}" if named else f"job {row.id} has no log"


class Source:
    """One stream of one task, read part by part. ``rank``: of its only process; None: the log says it."""

    def __init__(
        self, read: Read, key: TaskKey, stream: str, start_ms: int, rank: int | None, *, is_followed: bool
    ) -> None:
        self.key, self.stream = key, stream
        self.start_ms = start_ms
        self._is_followed = is_followed
        self.offset = 0
        self.blocks: deque[Block] = deque()
        self.is_over = False
        self.is_missing = False
        self.is_alone = False  # there is no other process
        self._read, self._rank = read, rank
        self._unfinished = (0, 0.0)  # the end of a line that is not complete, and since when
        self.wait_s = self.next_s = 0.0  # for the next look, while following

    async def fill(self) -> None:
        """Read the next whole lines, if there are any."""
        part = await self._read(self.key, self.stream, self.offset, _PART)
        self.is_missing = part is None
        while part is not None and not part.is_over and part.data and b"\n" not in part.data:
            more = await self._read(self.key, self.stream, part.next_offset, _PART)
            if more is None or not more.data or more.offset != part.next_offset or len(part.data) > _LINE_MAX:
                break
            marks = part.marks + more.marks
            part = LogPart(part.offset, part.data + more.data, more.next_offset, more.is_over, marks)
        if part is not None:
            self._take(part)

    def _take(self, part: LogPart) -> None:
        data = part.data
        end = len(data) if part.is_over else data.rfind(b"\n") + 1
        if not end and data and self._is_given_up(part):
            end = len(data)
        if end or not data:
            self.offset = part.offset + end
            self.is_over = part.is_over
        if end:
            self.blocks.extend(in_blocks(part.offset, data[:end], part.marks, self._rank))

    def _is_given_up(self, part: LogPart) -> bool:
        """Whether the end of a line did not come for a while, or the line is too long."""
        now_s = asyncio.get_running_loop().time()
        if self._unfinished[0] != part.next_offset:
            self._unfinished = (part.next_offset, now_s)
        patience_s = _BAR_S if self.is_alone or b"\r" in part.data else _UNFINISHED_S
        return not self._is_followed or len(part.data) > _LINE_MAX or now_s - self._unfinished[1] > patience_s

    async def last_lines(self, count: int, rank: int | None) -> list[Block]:
        """The last lines of a rank (None: of all), ``count`` or more if there are; what follows is read from there."""
        size, lines = _TAIL_MIN, list[Block]()
        while True:
            data, marks = b"", list[tuple[int, int, int]]()
            part = await self._read(self.key, self.stream, -size, size)
            begin = 0 if part is None else part.offset
            while part is not None and part.data and len(data) < 2 * size:
                data += part.data
                marks += part.marks
                part = await self._read(self.key, self.stream, part.next_offset, size)
            cut = data.find(b"\n") + 1 if begin else 0
            blocks = in_blocks(begin + cut, data[cut:], _from(marks, begin + cut), self._rank)
            lines = list(in_lines(block for block in blocks if rank in (None, block[1])))
            if len(lines) >= count or not begin or size >= _TAIL_MAX:
                break
            size *= 4
        self.offset = begin + len(data)
        return lines

    def head(self, block: Block, label: str) -> bytes:
        at_ms, rank, offset, data = block
        return _head.encode(
            OutputHead(
                gang=self.key.gang,
                attempt=self.key.attempt,
                task=self.key.task,
                rank=rank,
                stream=self.stream,
                at_ms=at_ms,
                offset=offset,
                size=len(data),
                label=label,
            )
        )


_head = json.Encoder()


def in_blocks(offset: int, data: bytes, marks: Sequence[tuple[int, int, int]], rank: int | None) -> list[Block]:
    """Whole lines by the time at which each began, and by rank."""
    if not data:
        return []
    if not marks:
        return [(0, rank or 0, offset, data)]
    found: list[Block] = []
    begin = 0
    _, at_ms, by = marks[0]
    for mark, mark_ms, mark_by in marks[1:]:
        cut = mark - offset
        if cut >= len(data):
            break
        if mark_by == by:
            cut = data.find(b"\n", max(cut - 1, 0)) + 1 or len(data)
        if cut > begin:
            found.append((at_ms, by if rank is None else rank, offset + begin, data[begin:cut]))
            begin = cut
        at_ms, by = mark_ms, mark_by
    if begin < len(data):
        found.append((at_ms, by if rank is None else rank, offset + begin, data[begin:]))
    return found


def in_lines(blocks: Iterable[Block]) -> Iterable[Block]:
    for at_ms, rank, offset, data in blocks:
        for line in data.splitlines(keepends=True) if b"\r" not in data else _by_line_feed(data):
            yield at_ms, rank, offset, line
            offset += len(line)


def _by_line_feed(data: bytes) -> list[bytes]:
    *lines, rest = data.split(b"\n")
    return [line + b"\n" for line in lines] + ([rest] if rest else [])


def _from(marks: Sequence[tuple[int, int, int]], offset: int) -> list[tuple[int, int, int]]:
    """The marks that hold from this offset on."""
    before = [mark for mark in marks if mark[0] <= offset]
    return before[-1:] + [mark for mark in marks if mark[0] > offset]


class JobOutput:
    """The output of the requested gangs of a job."""

    def __init__(self, request: ApiRequest, row: JobRow, gangs: list[str]) -> None:
        self._request = request
        self._row = row
        self._gangs = gangs
        self._attempts: dict[str, int] = {}  # gang -> the attempt that is read
        self.sources: list[Source] = []
        self._labels = _Labels(gangs)

    async def begin(self) -> None:
        self.sources = await self._new_sources()

    async def _new_sources(self) -> list[Source]:
        """The streams of attempts that are newer than those known: of each gang the newest, or the one requested."""
        wanted = self._request.query
        rows = await self._request.shared.look(self._request.service.lookup.attempts, self._row.id)
        newest: dict[str, AttemptRow] = {}
        for row in rows:
            is_wanted = row.attempt == wanted.attempt if wanted.attempt else True
            if is_wanted and row.attempt > self._attempts.get(row.gang, 0):
                newest[row.gang] = max(row, newest.get(row.gang, row), key=lambda each: each.attempt)
        found: list[Source] = []
        for gang in self._gangs:
            if (attempt := newest.get(gang)) is not None:
                self._attempts[gang] = attempt.attempt
                found += self._of_attempt(attempt)
        for source in found:
            source.is_alone = not self._labels.are_needed
        return found

    def _of_attempt(self, row: AttemptRow) -> Iterable[Source]:
        wanted = self._request.query
        work = _work(self._row.spec, row.role)
        seats = row.seats[: len(row.seats) - row.spares]
        ranks = [process_count(work, seat.gpus.bit_count()) for seat in seats]
        first = chosen = 0
        for task, count in enumerate(ranks):
            has_rank = wanted.rank is None or first <= wanted.rank < first + count
            if wanted.task in (None, task) and has_rank:
                chosen += count if wanted.rank is None else 1
                for stream in (wanted.stream,) if wanted.stream else ("stdout", "stderr"):
                    key = TaskKey(row.gang, row.attempt, task)
                    rank = first if count == 1 else None
                    yield Source(self._read, key, stream, row.placed_ms, rank, is_followed=wanted.follow)
            first += count
        self._labels.note_ranks(chosen)

    async def _read(self, key: TaskKey, stream: str, offset: int, limit: int) -> LogPart | None:
        return await read_part(self._request, key, stream, offset, limit)

    # ---- frames ------------------------------------------------------------------------------------------------

    async def frames(self) -> AsyncGenerator[bytes]:
        wanted = self._request.query
        if wanted.tail is not None:
            async for frames in self._tail(wanted.tail):
                yield frames
        else:
            async for frames in self._merged():
                yield frames
        if wanted.follow:
            async for frames in self._follow():
                yield frames
        if not self._request.shared.closing.is_set():
            yield _head.encode(OutputHead(over=True)) + b"\n"

    def _frame(self, source: Source, block: Block) -> bytes:
        rank = self._request.query.rank
        if rank is not None and block[1] != rank:
            return b""
        return b"%b\n%b" % (source.head(block, self._labels.of(source.key.gang, block[1])), block[3])

    async def _tail(self, count: int) -> AsyncGenerator[bytes]:
        wanted = self._request.query
        last: list[tuple[int, int, Block]] = []
        for begin in range(0, len(self.sources), _TAIL_AT_ONCE):
            some = self.sources[begin : begin + _TAIL_AT_ONCE]
            read = await asyncio.gather(*(source.last_lines(count, wanted.rank) for source in some))
            for n, lines in enumerate(read, begin):
                last += [(line[0], n, line) for line in lines]
            last = nlargest(count, last, key=lambda each: (each[0], each[1], each[2][2]))
        last.sort(key=lambda each: (each[0], each[1], each[2][2]))
        shown = {n for _, n, _ in last}
        # so that a reader who loses the connection knows from where to go on
        heads = [
            source.head((0, 0, source.offset, b""), "") + b"\n"
            for n, source in enumerate(self.sources)
            if wanted.follow and n not in shown
        ]
        yield b"".join([*heads, *(self._frame(self.sources[n], line) for _, n, line in last)])

    async def _merged(self) -> AsyncGenerator[bytes]:
        """What has been written so far, in order of time. A log is opened when its task has started by then."""
        waiting = deque(sorted(enumerate(self.sources), key=lambda each: each[1].start_ms))
        heap: list[tuple[int, int, Source]] = []
        frames = list[bytes]()
        size, enough = 0, 1  # the first lines are sent at once
        while waiting or heap:
            while waiting and (not heap or waiting[0][1].start_ms <= heap[0][0]):
                due = [waiting.popleft() for _ in range(min(_AT_ONCE, len(waiting)))]
                await asyncio.gather(*(source.fill() for _, source in due))
                for n, source in due:
                    if source.blocks:
                        heappush(heap, (source.blocks[0][0], n, source))
            if not heap:
                continue
            _, n, source = heappop(heap)
            until = min(heap[0][:2] if heap else _NEVER, (waiting[0][1].start_ms, 0) if waiting else _NEVER)
            while source.blocks and (source.blocks[0][0], n) <= until:
                frames.append(self._frame(source, source.blocks.popleft()))
                size += len(frames[-1])
            if size >= enough:
                yield b"".join(frames)
                frames = []
                size, enough = 0, _SEND
            if not source.blocks and not source.is_over:
                await source.fill()
            if source.blocks:
                heappush(heap, (source.blocks[0][0], n, source))
        if size:
            yield b"".join(frames)

    async def _follow(self) -> AsyncGenerator[bytes]:
        """New output as it comes, of all later attempts too, until the job has ended."""
        loop, poll_s = asyncio.get_running_loop(), self._request.shared.settings.log_poll_s
        live, sent_s = [source for source in self.sources if not source.is_over], loop.time()
        while self._request.is_alive:
            now_s = loop.time()
            due = [source for source in live if source.next_s <= now_s]
            is_ended = not self._has_more_attempts()  # asked before the logs are read: then nothing can follow
            for begin in range(0, len(due), _AT_ONCE):
                await asyncio.gather(*(source.fill() for source in due[begin : begin + _AT_ONCE]))
            frames = self._news(due)
            for source in due:
                source.wait_s = poll_s if source.blocks else min(max(source.wait_s, poll_s) * 1.5, _POLL_S_MAX)
                source.next_s = now_s + source.wait_s
                source.blocks.clear()
            if frames or now_s - sent_s > _ALIVE_S:
                sent_s = now_s
                yield frames or _ALIVE
            live = [source for source in live if not source.is_over and not self._is_lost(source)]
            live += await self._later_attempts()
            if not live and is_ended:
                return
            next_s = min((source.next_s for source in live), default=now_s + poll_s)
            await asyncio.sleep(max(min(next_s - loop.time(), poll_s * 2), 0.001))

    def _news(self, sources: list[Source]) -> bytes:
        blocks = [(block[0], n, block) for n, source in enumerate(sources) for block in source.blocks]
        blocks.sort(key=lambda each: (each[0], each[1], each[2][2]))
        return b"".join(self._frame(sources[n], block) for _, n, block in blocks)

    async def _later_attempts(self) -> list[Source]:
        if self._request.query.attempt and self._attempts:
            return []
        gangs = self._request.service.state.gangs
        if any(gangs[gang].attempt > self._attempts.get(gang, 0) for gang in self._gangs if gang in gangs):
            return await self._new_sources()
        return []

    def _has_more_attempts(self) -> bool:
        """Whether the job may still write: an attempt runs, or another may follow."""
        if self._request.query.attempt and self._attempts:
            return False
        gangs = self._request.service.state.gangs
        return any(not gangs[gang].is_over for gang in self._gangs if gang in gangs)

    def _is_lost(self, source: Source) -> bool:
        """Whether the end of a log will never come: its node was lost, or nothing was written."""
        if not source.is_missing and source.wait_s < _POLL_S_MAX:
            return False
        gang = self._request.service.state.gangs.get(source.key.gang)
        return gang is None or gang.attempt > source.key.attempt or gang.state not in _ON_NODES


_ON_NODES = (GangState.STARTING, GangState.RUNNING, GangState.BROKEN, GangState.STOPPING)
_ALIVE = _head.encode(OutputHead()) + b"\n"


class _Labels:
    """What distinguishes the lines of a job: array index, role and rank, as far as there are several."""

    def __init__(self, gangs: list[str]) -> None:
        self._has_indexes = len({index_of(gang) for gang in gangs}) > 1
        self._has_roles = len({role_of(gang) for gang in gangs}) > 1
        self._has_ranks = False
        self._known: dict[tuple[str, int], str] = {}

    @property
    def are_needed(self) -> bool:
        return self._has_indexes or self._has_roles or self._has_ranks

    def note_ranks(self, count: int) -> None:
        self._has_ranks = self._has_ranks or count > 1

    def of(self, gang: str, rank: int) -> str:
        known = self._known.get((gang, rank))
        if known is None:
            parts = [str(index_of(gang))] if self._has_indexes else []
            parts += [role_of(gang)] if self._has_roles else []
            parts += [str(rank)] if self._has_ranks else []
            known = self._known[gang, rank] = " ".join(parts)
        return known


def _work(spec: JobSpec | None, role: str) -> Work:
    gangs = () if spec is None else spec.gangs
    return next((each.work for each in gangs if each.role == role and each.work is not None), Work(command=()))
