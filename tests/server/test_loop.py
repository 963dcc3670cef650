"""The loop: answers wait until it is durable, and pending effects are executed, also after a restart."""

import asyncio
import gc
import signal

import pytest
import uvloop

from corral.core import events as e
from corral.core.accounts.accounts import TokenIssued
from corral.core.intake.commands import cancel
from corral.core.intake.refusal import Refusal
from corral.core.model import After, Dependency, GangState, Settings
from corral.runtime.base import StaleEpoch
from corral.runtime.fake import FakeBackend
from corral.server.api.app import make_app
from corral.server.auth import new_token
from corral.server.durability import Batch
from corral.server.journal_state import IMAGE_FORMAT, JournalState
from corral.server.metrics import Metrics
from corral.server.planner.client import Planner, PlannerLost
from corral.server.planner.questions import WhyAnswer
from corral.server.recovery import load
from corral.server.shutdown import ServerStopped
from corral.store.journal import Record, StoredImage
from corral.store.memory import MemoryJournal
from corral.wire.config import PolicyChoice
from tests.server.asgi import ask
from tests.server.servers import NODE, ended, found, job, reopened, running, until, written


async def test_a_job_runs_to_its_end(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        done = await server.service.submit("root", [job(), job(gpus=2, tasks=2)])
        assert isinstance(done, Batch)
        assert [event.job for event in done.events if isinstance(event, e.JobSubmitted)] == ["1", "2"]
        await until(lambda: len(ended(journal)) == 2)
        assert ended(journal) == {"1": True, "2": True}
        assert not server.service.state.holders


async def test_a_refusal_writes_nothing(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        before = journal.head.seq
        answer = await server.service.submit("root", [job(queue="nowhere")])
        assert isinstance(answer, Refusal)
        assert answer.code == "no_such_queue"
        assert journal.head.seq == before


async def test_nothing_is_answered_or_started_before_it_is_durable(tmp_path):
    journal = MemoryJournal()
    backend = FakeBackend([NODE])
    async with running(tmp_path, journal, backend) as server:
        journal.held = True
        asked = asyncio.create_task(server.service.submit("root", [job()]))
        await until(lambda: "1/main" in server.service.state.gangs)
        await asyncio.sleep(0.1)
        assert not asked.done()
        assert not [key for what, key in backend.asked if what == "launch"]
        journal.held = False
        journal.release()
        assert isinstance(await asked, Batch)
        await until(lambda: bool([key for what, key in backend.asked if what == "launch"]))


async def test_the_newest_record_is_the_newest_that_can_be_seen(tmp_path):
    """A client that asks for it, then looks at a job, then follows from there must not miss what happened between:
    what is not durable yet is not shown, and is not the newest."""
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        drawn, now_ms = new_token(), server.service.now_ms()
        await server.service.change_accounts("root", lambda *_: [TokenIssued(now_ms, drawn.id, "root", drawn.digest)])
        app = make_app(server.service, None, Metrics(server.service.state, now_ms))
        before = (await ask(app, "GET", "/v1/events?limit=1", drawn.text)).json()["head"]
        journal.held = True
        asked = asyncio.create_task(server.service.submit("root", [job()]))
        await until(lambda: "1/main" in server.service.state.gangs)
        meanwhile = (await ask(app, "GET", "/v1/events?limit=1", drawn.text)).json()["head"]
        journal.held = False
        journal.release()
        await asked
        assert meanwhile == before
        assert (await ask(app, "GET", "/v1/events?limit=1", drawn.text)).json()["head"] > before
        app.close()


async def test_a_journal_that_fails_stops_everything(tmp_path):
    journal = MemoryJournal()
    backend = FakeBackend([NODE])
    async with running(tmp_path, journal, backend) as server:
        journal.held = True
        asked = asyncio.create_task(server.service.submit("root", [job()]))
        await until(lambda: "1/main" in server.service.state.gangs)
        journal.fail("no space left on device")
        with pytest.raises(ServerStopped, match="no space"):
            await asked
        with pytest.raises(ServerStopped):
            await server.service.submit("root", [job()])
        with pytest.raises(ServerStopped):
            async with asyncio.timeout(30):
                await server.durability.wait()
        assert not [key for what, key in backend.asked if what == "launch"]


async def test_a_restart_carries_on(tmp_path):
    journal = MemoryJournal()
    backend = FakeBackend([NODE])
    async with running(tmp_path, journal, backend) as server:
        await server.service.submit("root", [job(gpus=8), job(gpus=8)])
        await until(lambda: server.service.state.gangs["1/main"].state is GangState.RUNNING)
        before = [(gang.id, gang.state, gang.rank) for gang in server.service.state.gangs.values()]
    journal = reopened(journal)
    async with running(tmp_path, journal, backend) as server:
        again = [(gang.id, gang.state, gang.rank) for gang in server.service.state.gangs.values()]
        assert again == before
        backend.finish(backend.known()[0], 0)
        await until(lambda: server.service.state.gangs["2/main"].state is GangState.RUNNING)
        await server.service.change("root", lambda state, now: cancel(state, "2", now))
        await until(lambda: len(ended(journal)) == 2)
        assert ended(journal) == {"1": True, "2": False}
        assert [what for what, _ in backend.asked].count("launch") == 2


async def test_the_planner_may_die(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        process = server.planning.planner._process
        assert process is not None
        process.kill()
        await process.wait()
        await server.service.submit("root", [job()])
        await until(lambda: ended(journal) == {"1": True})


async def test_who_asks_a_planner_that_has_died_gets_an_answer(tmp_path):
    async with running(tmp_path, MemoryJournal()) as server:
        process = server.planning.planner._process
        assert process is not None
        process.kill()
        await process.wait()
        answer = await server.service.dry_run([job()], "root")
        assert not isinstance(answer, Refusal)
        assert [each.starts_ms is not None for each in answer] == [True]


def test_a_planner_whose_pipe_broke_before_its_end_was_known_is_lost_like_any_other():
    """With the event loop that servers run on: it does not take what is written into a closed pipe."""

    async def ask_twice() -> None:
        planner = Planner(PolicyChoice())
        await planner.begin(JournalState.nothing(Settings()).pack())
        await planner.plan(0)
        process = planner._process
        assert process is not None
        assert process.stdin is not None
        process.send_signal(signal.SIGSTOP)  # so that its end cannot be seen
        process.stdin.close()
        await asyncio.sleep(0.05)
        try:
            with pytest.raises(PlannerLost):
                await planner.plan(0)
            planner.follow([b""] * 5_000)  # does no harm either
        finally:
            await planner.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(ask_twice())


async def test_a_planner_that_cannot_be_started_is_tried_again(tmp_path, monkeypatch):
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        planner, tries = server.planning.planner, []
        begin, process = planner.begin, planner._process
        assert process is not None

        async def fail_first(image: bytes) -> None:
            tries.append(len(image))
            if len(tries) == 1:
                raise OSError("too many open files")
            await begin(image)

        monkeypatch.setattr(planner, "begin", fail_first)
        process.kill()
        await process.wait()
        await server.service.submit("root", [job()])
        await until(lambda: ended(journal) == {"1": True})
        assert len(tries) == 2


async def test_a_backend_that_fails_stops_the_server_and_no_one_waits_for_ever(tmp_path):
    backend = FakeBackend([NODE])
    async with running(tmp_path, MemoryJournal(), backend) as server:

        def refuse(orders):
            raise StaleEpoch(1, 2)

        backend.launch = refuse  # type: ignore[method-assign]
        await server.service.submit("root", [job()])
        await asyncio.wait_for(server.durability.stopped.wait(), 10)
        with pytest.raises(ServerStopped):
            await server.service.submit("root", [job()])


async def test_the_planner_may_hang(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        server.planning.patience_s = 0.5  # also with a question that it is being asked when it stops
        await server.service.submit("root", [job()])
        await until(lambda: ended(journal) == {"1": True})
        process = server.planning.planner._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        await server.service.submit("root", [job()])
        await until(lambda: server.planning.planner._process is not process)
        server.planning.patience_s = 30.0
        await until(lambda: ended(journal) == {"1": True, "2": True})


async def test_a_planner_that_hangs_does_not_keep_the_server_from_stopping(tmp_path, monkeypatch):
    monkeypatch.setattr("corral.server.server.IMAGE_S", 0.2)
    async with asyncio.timeout(60):
        async with running(tmp_path) as server:
            await server.service.submit("root", [job()])
            process = server.planning.planner._process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
    assert process.returncode == -signal.SIGKILL


async def test_why_and_a_dry_run_change_nothing(tmp_path):
    journal = MemoryJournal()
    backend = FakeBackend([NODE])
    async with running(tmp_path, journal, backend) as server:
        await server.service.submit("root", [job(gpus=8), job(gpus=8)])
        await until(lambda: server.service.state.gangs["1/main"].state is GangState.RUNNING)
        before = journal.head.seq
        answer = await server.service.explain("2/main")
        assert isinstance(answer, WhyAnswer)
        assert answer.hold.reasons
        small = await server.service.dry_run([job(gpus=4)], "root")
        assert not isinstance(small, Refusal)
        assert small[0].gang == "3/main"
        assert small[0].hold is not None
        never = await server.service.dry_run([job(gpus=9)], "root")
        assert isinstance(never, Refusal)
        assert journal.head.seq == before
        assert await server.service.dry_run([job(gpus=4)], "root") == small


async def test_a_dry_run_says_what_would_let_the_job_start_now(tmp_path):
    async with running(tmp_path, MemoryJournal(), FakeBackend([NODE])) as server:
        await server.service.submit("root", [job(gpus=4, time_limit_ms=3_600_000), job(gpus=8)])
        await until(lambda: server.service.state.gangs["1/main"].state is GangState.RUNNING)
        long = await server.service.dry_run([job(gpus=4)], "root")
        assert not isinstance(long, Refusal)
        advised = {change.field: int(change.value) for change in long[0].changes}
        assert 0 < advised["time_limit"] <= 3_600_000
        short = await server.service.dry_run([job(gpus=4, time_limit_ms=advised["time_limit"])], "root")
        assert not isinstance(short, Refusal)
        assert short[0].hold is None


async def test_jobs_that_are_over_are_forgotten_in_time(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        server.timers.keep_ended = 3
        for _ in range(8):
            await server.service.submit("root", [job()])
        await until(lambda: len(ended(journal)) == 8)
        server.planning.want()
        await until(lambda: len(server.service.state.jobs) == 3)
        assert sum(isinstance(event, e.JobForgotten) for event in written(journal)) == 5


async def test_an_image_is_as_good_as_the_journal(tmp_path):
    journal = MemoryJournal()
    found(journal)
    backend = FakeBackend([NODE])
    async with running(tmp_path, journal, backend) as server:
        await server.service.submit("root", [job(gpus=8), job(gpus=4)])
        await until(lambda: server.service.state.gangs["1/main"].state is GangState.RUNNING)
        await server.save_image()
        await server.service.submit("root", [job(gpus=2)])
    assert journal.newest_image() is not None
    async with running(tmp_path, reopened(journal), backend) as server:
        assert set(server.service.state.gangs) == {"1/main", "2/main", "3/main"}
        assert server.service.accounts.users["root"].roles


async def test_a_newest_image_that_cannot_be_used_costs_the_records_after_the_one_before_it(tmp_path, monkeypatch):
    journal = MemoryJournal()
    found(journal)
    backend = FakeBackend([NODE])
    async with running(tmp_path, journal, backend) as server:
        await server.service.submit("root", [job(gpus=8), job(gpus=4)])
        await until(lambda: server.service.state.gangs["1/main"].state is GangState.RUNNING)
        await server.save_image()
        good = journal.newest_image()
        assert good is not None
        await server.service.submit("root", [job(gpus=2)])
    again = MemoryJournal(journal.read(0, 1_000_000))
    for image in (good, StoredImage(good.seq + 1, IMAGE_FORMAT, b"what nobody can unpack")):
        again.save_image(image)
    read, read_some = list[int](), again.read

    def counted(after: int, limit: int) -> list[Record]:
        records = read_some(after, limit)
        read.extend(record.seq for record in records)
        return records

    with monkeypatch.context() as patch:
        patch.setattr(again, "read", counted)
        known = load(again)
    assert min(read) == good.seq + 1
    assert set(known.state.gangs) == {"1/main", "2/main", "3/main"}
    async with running(tmp_path, again, backend) as server:
        await until(lambda: server.planning.plans > 0)
        assert server.planning._losses == 0, "the planner was not given what could not be used"


async def test_the_feed_misses_nothing(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal) as server:
        seen: list[int] = []
        feed = server.service.subscribe()
        first = journal.head.seq + 1

        async def listen():
            async for record in feed:
                seen.append(record.seq)  # noqa: PERF401 - as they come

        listener = asyncio.create_task(listen())
        for _ in range(20):
            await server.service.submit("root", [job()])
        await until(lambda: len(ended(journal)) == 20)
        await until(lambda: seen[-1:] == [journal.head.seq])
        feed.close()
        await listener
        assert seen == list(range(first, journal.head.seq + 1))


async def test_jobs_of_one_submission_may_wait_for_each_other_and_for_those_long_gone(tmp_path):
    journal = MemoryJournal()
    async with running(tmp_path, journal, keep_ended=0) as server:
        await server.service.submit("root", [job()])
        await until(lambda: "1" not in server.service.state.jobs)
        after = (Dependency("1", After.OK), Dependency("#0", After.OK))
        assert isinstance(await server.service.submit("root", [job(), job(after=after)]), Batch)
        await until(lambda: len(ended(journal)) == 3)
        assert ended(journal) == {"1": True, "2": True, "3": True}
        answer = await server.service.submit("root", [job(after=(Dependency("1", After.NOT_OK),))])
        assert isinstance(answer, Refusal)
        assert answer.code == "dependency_failed"


async def test_jobs_that_wait_are_not_looked_through_for_garbage_again_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr("corral.server.gc_tuning.WHOLE_LOOK_S", 0.05)
    begun_with = list(gc.callbacks)

    class Ring:
        """Garbage that only a look can find."""

        found = 0

        def __init__(self):
            self.ring = self

        def __del__(self):
            Ring.found += 1

    async with running(tmp_path) as server:
        await server.service.submit("root", [job(gpus=8)] * 500)
        ring = Ring()
        gc.collect()
        before = gc.get_freeze_count()
        assert before > 500, "what has survived is set aside"
        del ring
        await until(lambda: Ring.found == 1)  # set aside when it was none yet, found all the same
    assert gc.callbacks == begun_with
    gc.unfreeze()


async def test_servers_that_never_live_long_come_to_an_image_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr("corral.server.server.RECORDS_PER_IMAGE", 20)
    journal = MemoryJournal()
    for life in range(1, 4):
        async with running(tmp_path, journal) as server:
            before = journal.head.seq
            await server.service.submit("root", [job()])
            await until(lambda: len(ended(journal)) == life)  # noqa: B023 - this life's
            assert journal.head.seq - before < 20
            journal = reopened(journal)  # as if it had been killed here
    assert journal.head.seq >= 20
    async with running(tmp_path, journal):
        await until(lambda: journal.newest_image() is not None)
