"""Limits, graces and deadlines come in time: on a server where nothing else happens, and whatever the planner does."""

import asyncio
import signal
import time
from typing import TypeVar

import pytest

from corral.core import events as e
from corral.core.intake.commands import cancel, hold
from corral.core.model import GangState
from corral.runtime.fake import FakeBackend, FakeScript
from corral.server.server import Server
from corral.store.memory import MemoryJournal
from tests.server.servers import NODE, job, running, until, written

LONG = FakeScript(start_ms=300, runs_ms=600_000)  # it comes up when the server has nothing left to do
E = TypeVar("E", bound=e.Event)
SOON_S = 5.0  # generous: what is broken takes minutes


@pytest.fixture(autouse=True)
def _short_end(monkeypatch):
    monkeypatch.setattr("corral.server.server.IMAGE_S", 0.2)  # a planner that hangs makes none


def first(journal: MemoryJournal, kind: type[E]) -> E | None:
    return next((event for event in written(journal) if isinstance(event, kind)), None)


async def is_running(server: Server, gang: str) -> None:
    await until(lambda: server.service.state.gangs[gang].state is GangState.RUNNING)


async def stop_planner(server: Server) -> None:
    """It hangs, and a plan is wanted of it."""
    process = server.planning.planner._process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    server.planning.want()
    await asyncio.sleep(0.1)


async def test_a_time_limit_is_kept_on_a_quiet_server(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal, FakeBackend([NODE], lambda _: LONG)) as server:
        await server.service.submit("root", [job(time_limit_ms=500)])
        await is_running(server, "1/main")
        await until(lambda: first(journal, e.GangEvicted) is not None, SOON_S)
        started, evicted = first(journal, e.GangStarted), first(journal, e.GangEvicted)
        assert started is not None
        assert evicted is not None
        assert evicted.at_ms >= started.at_ms + 500


async def test_a_planner_that_hangs_delays_no_time_limit(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal, FakeBackend([NODE], lambda _: LONG)) as server:
        await server.service.submit("root", [job(time_limit_ms=1_500)])
        await is_running(server, "1/main")
        await stop_planner(server)
        await until(lambda: first(journal, e.GangEvicted) is not None, SOON_S)


async def test_a_planner_that_hangs_delays_no_end_of_a_grace(tmp_path):
    journal = MemoryJournal()
    backend = FakeBackend([NODE], lambda _: LONG)
    backend.warn = lambda *_: None  # type: ignore[method-assign] # its tasks do not leave
    async with running(tmp_path, journal, backend) as server:
        await server.service.submit("root", [job(grace_ms=700)])
        await is_running(server, "1/main")
        await stop_planner(server)
        await server.service.change("root", lambda state, now: cancel(state, "1", now))
        await until(lambda: first(journal, e.GraceEnded) is not None, SOON_S)


async def test_a_planner_that_hangs_delays_no_deadline(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal, FakeBackend([NODE], lambda _: LONG)) as server:
        await server.service.submit("root", [job(gpus=8)])
        await is_running(server, "1/main")
        await stop_planner(server)
        await server.service.submit("root", [job(gpus=8, deadline_ms=server.service.now_ms() + 700)])
        await until(lambda: first(journal, e.GangFinished) is not None, SOON_S)


async def test_a_timer_that_is_due_and_changes_nothing_does_not_keep_the_server_busy(tmp_path):
    """A held job whose begin time has come is still held."""
    async with running(tmp_path) as server:
        await server.service.submit("root", [job(begin_ms=server.service.now_ms() + 300)])
        await server.service.change("root", lambda state, now: hold(state, "1", now))
        await asyncio.sleep(0.6)
        plans, began_s = server.planning.plans, time.process_time()
        await asyncio.sleep(1.0)
        assert server.planning.plans - plans <= 5
        assert time.process_time() - began_s < 0.5


async def test_ended_jobs_are_forgotten_while_the_planner_hangs(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        await server.service.submit("root", [job()] * 5)
        await until(lambda: all(each.is_over for each in server.service.state.jobs.values()))
        await stop_planner(server)
        server.timers.keep_ended = 2
        await server.service.submit("root", [job(held=True)])
        await server.service.change("root", lambda state, now: cancel(state, "6", now))
        await until(lambda: len(server.service.state.jobs) == 2, SOON_S)
