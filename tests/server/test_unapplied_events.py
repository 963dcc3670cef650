"""An event that cannot be applied: only the request fails, and memory and journal still say the same."""

import pytest

from corral.core import events as e
from corral.core.apply import FOLDS
from corral.core.apply_gangs import FOLD_GANGS
from corral.core.image import take_image
from corral.core.intake.commands import change_priority, hold
from corral.core.laws import violations
from corral.core.model import GangState
from corral.runtime.fake import FakeBackend, FakeScript
from corral.server.durability import Batch
from corral.server.metrics import Metrics
from corral.server.recovery import load
from corral.server.server import Server
from corral.store.memory import MemoryJournal
from tests.server.servers import NODE, ended, job, reopened, running, until, written

LONG = FakeScript(runs_ms=600_000)


def break_fold(monkeypatch, folds: dict, kind: type, is_bad) -> None:
    """Applying some events of a kind fails, after it has changed something."""
    fold = folds[kind]

    def broken(state, *rest):
        fold(state, *rest)
        if is_bad(rest[-1]):
            raise ZeroDivisionError("made to fail")

    monkeypatch.setitem(folds, kind, broken)


def agree(server: Server, journal: MemoryJournal) -> bool:
    """Whether the next server would know what this one knows."""
    there = load(reopened(journal)).state
    return take_image(server.service.state) == take_image(there) and not list(violations(server.service.state))


async def test_a_command_that_cannot_be_applied_leaves_no_trace_and_others_go_on(tmp_path, monkeypatch):
    journal = MemoryJournal()
    async with running(tmp_path, journal, FakeBackend([NODE], lambda _: LONG)) as server:
        metrics = server.loop.meter = Metrics(server.service.state)
        await server.service.submit("root", [job(), job(gpus=8), job(gpus=8)])
        await until(lambda: server.service.state.gangs["1/main"].state is GangState.RUNNING)
        break_fold(monkeypatch, FOLDS, e.PriorityChanged, lambda event: event.job == "2")
        before = journal.head.seq
        with pytest.raises(ZeroDivisionError):
            await server.service.change("ann", lambda state, now: change_priority(state, "2", 7, now))
        assert journal.head.seq == before
        assert server.service.state.jobs["2"].priority == 0
        assert agree(server, journal)
        done = await server.service.change("bob", lambda state, now: change_priority(state, "3", 9, now))
        assert isinstance(done, Batch)
        assert isinstance(await server.service.submit("root", [job(held=True)]), Batch)
        assert agree(server, journal)
        assert server.durability.failure is None
        assert "corral_state_restored_total 1.0" in metrics.text(0).decode()


async def test_what_follows_from_a_command_is_undone_with_it(tmp_path, monkeypatch):
    """The end of a job follows from the end of its gang: neither is kept without the other."""
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        break_fold(monkeypatch, FOLDS, e.JobEnded, lambda event: event.job == "1")
        await server.service.submit("root", [job(held=True), job()])
        await until(lambda: ended(journal) == {"2": True})
        with pytest.raises(ZeroDivisionError):
            await server.service.change(
                "root", lambda _, now: [e.GangFinished(now, "1/main", 0, GangState.CANCELLED, "cancelled")]
            )
        assert not server.service.state.jobs["1"].is_over
        assert not [event for event in written(journal) if isinstance(event, e.GangFinished) and event.gang == "1/main"]
        assert agree(server, journal)


async def test_a_report_that_cannot_be_applied_is_dropped_and_the_server_goes_on(tmp_path, monkeypatch):
    journal = MemoryJournal()
    backend = FakeBackend([NODE])
    async with running(tmp_path, journal, backend) as server:
        await server.service.submit("root", [job(), job()])
        await until(lambda: len(backend.known()) == 2)
        await until(lambda: all(g.state is GangState.RUNNING for g in server.service.state.gangs.values()))
        break_fold(monkeypatch, FOLD_GANGS, e.GangStopped, lambda event: event.gang == "1/main")
        first, second = sorted(backend.known(), key=lambda key: key.gang)
        backend.finish(first)
        backend.finish(second)
        await until(lambda: ended(journal) == {"2": True})
        assert server.durability.failure is None
        assert agree(server, journal)


async def test_a_gang_whose_limit_cannot_be_applied_delays_no_other(tmp_path, monkeypatch):
    journal = MemoryJournal()
    async with running(tmp_path, journal, FakeBackend([NODE], lambda _: LONG)) as server:
        break_fold(monkeypatch, FOLD_GANGS, e.GangEvicted, lambda event: event.gang == "1/main")
        await server.service.submit("root", [job(time_limit_ms=300), job(time_limit_ms=800)])
        await until(lambda: "2/main" in {event.gang for event in written(journal) if isinstance(event, e.GangEvicted)})
        assert server.durability.failure is None
        assert agree(server, journal)


async def test_what_cannot_be_encoded_is_refused_before_it_is_applied(tmp_path):
    async with running(tmp_path) as server:
        metrics = server.loop.meter = Metrics(server.service.state)
        await server.service.submit("root", [job(held=True)])
        before = take_image(server.service.state)
        with pytest.raises(UnicodeEncodeError):
            await server.service.change("root", lambda _, now: [e.JobHeld(now, "1", "\ud800")])
        assert take_image(server.service.state) == before
        assert "corral_state_restored_total 0.0" in metrics.text(0).decode()


async def test_a_state_that_cannot_be_read_back_stops_the_server(tmp_path, monkeypatch):
    """Nothing goes on with a state that differs from the journal."""
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        await server.service.submit("root", [job(held=True)])
        break_fold(monkeypatch, FOLDS, e.JobReleased, lambda _: True)

        def unreadable():
            raise OSError("disk gone")

        server.loop.reload = unreadable
        with pytest.raises(ZeroDivisionError):
            await server.service.change("root", lambda _, now: [e.JobReleased(now, "1")])
        assert isinstance(server.durability.failure, OSError)
    assert hold(load(reopened(journal)).state, "1", 0)
