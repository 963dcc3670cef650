"""Agents that cost little: thousands of them in one process, which keep leases exactly as real ones do.

Each has one connection to the gateway, renews with every heartbeat, reports what it has (with tasks that it pretends to
run, if that is set), and asks for orders, which it does not do. When its lease passes its tasks are lost, as
supervisors would have ended them.
"""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import suppress

import msgspec

from corral.core.cluster.resources import Gpu, amounts
from corral.core.cluster.topology import NodeSpec
from corral.remote import frames
from corral.remote.messages import (
    AgentAnswer,
    AgentReport,
    DesiredAnswer,
    DesiredAsk,
    Hello,
    LeaseAnswer,
    No,
    ObservedTask,
    Renewal,
)
from corral.runtime.base import Phase, TaskKey, TaskReport

_encode = msgspec.json.Encoder().encode
_lease, _answer = msgspec.json.Decoder(LeaseAnswer), msgspec.json.Decoder(AgentAnswer)
_desired = msgspec.json.Decoder(DesiredAnswer)
_ANSWER_S, _CALM_HEARTBEATS, _RETRY_S = 2.0, 4, 0.5


def boot_ms() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)


class LightAgent:
    """``lost``: tasks that ran out of their lease. ``gap_ms``: the longest time between two renewals that counted, from
    the sending of the one to the answer of the other."""

    def __init__(self, node: str, port: int, token: str) -> None:
        self.node, self._port = node, port
        self._hello = _encode(Hello(node, token))
        gpus = tuple(Gpu(f"SIM-{node}-{n}", "H100", 81_920, 0) for n in range(8))
        self._spec = NodeSpec(node, gpus, amounts({"cpu_milli": 64_000, "memory_mib": 512_000}))
        self.tasks: dict[TaskKey, TaskReport] = {}
        self._ended: dict[TaskKey, TaskReport] = {}
        self.until_ms, self._epoch, self._term, self._has = 0, 0, -1, 0
        self.lease_ms, self._heartbeat_s = 8_000, 0.5
        self._seq, self._renewals, self._is_full, self._version = 0, 0, True, 0
        self._sent_ms: dict[int, int] = {}
        self._renewed_ms: int | None = None
        self.reports = self.renewals = self.lost = self.refused = self.connected = 0
        self.late_ms, self.gap_ms = 0.0, 0
        self._news = asyncio.Event()

    @property
    def is_leased(self) -> bool:
        return self.until_ms > boot_ms()

    async def run(self, begins_s: float) -> None:
        await asyncio.sleep(begins_s)
        while True:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                await self._speak()
            self._look()
            await asyncio.sleep(_RETRY_S * (0.5 + random.random()))

    async def _speak(self) -> None:
        async with asyncio.timeout(_ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        works: list[asyncio.Task[None]] = []
        try:
            self._send(writer, frames.HELLO, self._hello)
            async with asyncio.timeout(_ANSWER_S):
                data = await reader.read(1 << 16)
            assembly = frames.Assembly(frames.TO_AGENTS)
            if not any(kind == frames.WELCOME for kind, _ in assembly.feed(data)):
                return
            self.connected += 1
            self._is_full = True
            works = [asyncio.create_task(each) for each in (self._renew(writer), self._report(writer))]
            while data := await reader.read(1 << 16):
                for kind, body in assembly.feed(data):
                    self._take(kind, body, writer)
                if any(work.done() for work in works):
                    return
        finally:
            for work in works:
                work.cancel()
            writer.close()

    def _send(self, writer: asyncio.StreamWriter, kind: bytes, body: bytes) -> None:
        for piece in frames.pieces(kind, body):
            writer.write(piece)

    async def _renew(self, writer: asyncio.StreamWriter) -> None:
        while True:
            self._look()
            now_ms = boot_ms()
            self._renewals += 1
            self._sent_ms[self._renewals] = now_ms
            self._sent_ms.pop(self._renewals - 8, None)
            asked = Renewal(
                seq=self._renewals, epoch=self._epoch, term=max(self._term, 0), session=1,
                left_ms=max(self.until_ms - now_ms, 0),
            )  # fmt: skip
            self._send(writer, frames.RENEW, _encode(asked))
            await asyncio.sleep(self._heartbeat_s)

    async def _report(self, writer: asyncio.StreamWriter) -> None:
        while True:
            self._news.clear()
            self._seq += 1
            self._version += 1
            observed = [ObservedTask(key, up) for key, up in self.tasks.items()]
            observed += [ObservedTask(key, down=down) for key, down in self._ended.items()]
            said = AgentReport(
                node=self.node, session=1, seq=self._seq, epoch=self._epoch, term=max(self._term, 0),
                version=self._version, is_full=True, spec=self._spec, tasks=tuple(observed),
            )  # fmt: skip
            self._send(writer, frames.REPORT, _encode(said))
            await self._news.wait()  # it was answered
            await asyncio.sleep(0.05 if self._is_full else _CALM_HEARTBEATS * self._heartbeat_s)

    def _take(self, kind: bytes, body: bytes, writer: asyncio.StreamWriter) -> None:
        if kind == frames.LEASE:
            self._on_lease(_lease.decode(body))
        elif kind == frames.ANSWER:
            self._on_answer(_answer.decode(body), writer)
        elif kind == frames.BUSY and body == frames.REPORT:
            asyncio.get_running_loop().call_later(0.5, self._news.set)
        elif kind == frames.BUSY and body == frames.ASK:
            asyncio.get_running_loop().call_later(0.5, self._ask, writer)
        elif kind == frames.DESIRED:
            self._on_desired(_desired.decode(body), writer)
        elif kind == frames.REFUSED:
            self.refused += msgspec.json.decode(body, type=No).status < 500

    def _on_lease(self, answer: LeaseAnswer) -> None:
        sent_ms = self._sent_ms.get(answer.seq)
        if sent_ms is None or (answer.epoch, answer.term) < (self._epoch, self._term):
            return
        self._hear(answer.epoch, answer.term)
        self._heartbeat_s, now_ms = answer.heartbeat_ms / 1000, boot_ms()
        self._look()
        if answer.is_gone:
            self._lose()
        elif answer.lease_ms:
            self.renewals += 1
            self.late_ms = max(self.late_ms, now_ms - sent_ms)
            if self._renewed_ms is not None:
                self.gap_ms = max(self.gap_ms, now_ms - self._renewed_ms)
            self._renewed_ms, self.lease_ms = sent_ms, min(self.lease_ms, answer.lease_ms)
            self.until_ms = max(self.until_ms, sent_ms + answer.lease_ms)

    def _hear(self, epoch: int, term: int) -> None:
        if (epoch, term) > (self._epoch, self._term):
            self._epoch, self._term, self._has, self._is_full = epoch, term, 0, True

    def _on_answer(self, answer: AgentAnswer, writer: asyncio.StreamWriter) -> None:
        self.reports += 1
        self._hear(answer.epoch, answer.term)
        if answer.is_gone:
            self._lose()
        if self._is_full and not answer.wants_full:
            self._ask(writer)
        self._is_full = answer.wants_full
        self._news.set()

    def _ask(self, writer: asyncio.StreamWriter) -> None:
        if not writer.is_closing():
            ask = DesiredAsk(node=self.node, epoch=self._epoch, term=max(self._term, 0), version=self._has)
            self._send(writer, frames.ASK, _encode(ask))

    def _on_desired(self, answer: DesiredAnswer, writer: asyncio.StreamWriter) -> None:
        """Tasks begin at once and go on for ever, unless they are to end."""
        if (answer.epoch, answer.term) == (self._epoch, self._term) and answer.base <= self._has:
            for task in answer.tasks:
                if task.forget:
                    self._ended.pop(task.key, None)
                elif task.kill or task.leave_in_ms is not None:
                    self._end(task.key)
                elif task.order is not None and task.key not in self.tasks and task.key not in self._ended:
                    now_ms = time.time_ns() // 1_000_000
                    self.tasks[task.key] = TaskReport(key=task.key, phase=Phase.UP, at_ms=now_ms, node=self.node)
            self._has = max(self._has, answer.version)
            self._is_full = True
        self._ask(writer)

    def _end(self, key: TaskKey, code: int = 0) -> None:
        if self.tasks.pop(key, None) is not None:
            now_ms = time.time_ns() // 1_000_000
            self._ended[key] = TaskReport(key=key, phase=Phase.DOWN, at_ms=now_ms, node=self.node, exit_code=code)

    def _look(self) -> None:
        """Supervisors end their tasks when the lease has passed."""
        if self.until_ms and boot_ms() >= self.until_ms:
            self._lose()

    def _lose(self) -> None:
        self.lost += len(self.tasks)
        for key in list(self.tasks):
            self._end(key, 137)
