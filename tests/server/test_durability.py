"""What a batch causes: not before it is durable, in order, and never after a failure."""

import asyncio

import pytest

from corral.core.effects import Effect, KillGang
from corral.core.events import JobForgotten
from corral.server.durability import Batch, Durability
from corral.server.shutdown import ServerStopped
from corral.store.memory import MemoryJournal
from corral.wire.codec import encode


class Harness:
    """A journal whose records become durable when the test says so."""

    def __init__(self) -> None:
        self.journal = MemoryJournal(held=True)
        self.seen: list[str] = []
        self.durability = Durability(self.journal, self.execute)
        self.durability.watchers.append(lambda event: self.seen.append(event.job))  # type: ignore[union-attr]

    def execute(self, effect: Effect) -> None:
        if effect.gang == "broken":
            raise OSError("nothing can be started")
        self.seen.append(effect.gang)

    def append(self, job: str, gang: str) -> Batch:
        event = JobForgotten(1, job)
        batch = Batch("system", "", [event], [encode(event)], [KillGang(gang, 1)])
        self.durability.append(batch)
        return batch

    async def waiting(self) -> asyncio.Task[None]:
        task = asyncio.create_task(self.durability.wait())
        await asyncio.sleep(0)
        return task


async def test_events_effects_and_answers_are_held_back_until_they_are_durable():
    harness = Harness()
    first, waits = harness.append("1", "a"), await harness.waiting()
    second = harness.append("2", "b")
    await asyncio.sleep(0.01)
    assert (first.seq, second.seq, harness.durability.durable_seq) == (1, 2, 0)
    assert (harness.seen, waits.done()) == ([], False)
    harness.journal.release()
    await waits
    await harness.durability.wait()
    assert harness.seen == ["1", "a", "2", "b"]
    assert harness.durability.durable_seq == 2


async def test_nothing_is_waited_for_where_nothing_was_appended():
    await Harness().durability.wait()


async def test_after_a_failure_nothing_is_released_and_all_who_wait_are_refused():
    harness = Harness()
    harness.append("1", "a")
    waits = await harness.waiting()
    harness.durability.stop(OSError("leadership lost"))
    harness.journal.release()
    with pytest.raises(ServerStopped, match="leadership lost"):
        await waits
    await asyncio.sleep(0.01)
    assert harness.seen == []
    with pytest.raises(ServerStopped):
        harness.durability.check()
    with pytest.raises(ServerStopped):
        await harness.durability.wait()


async def test_an_effect_that_cannot_be_executed_stops_the_server_and_what_is_durable_is_answered():
    harness = Harness()
    harness.append("1", "broken")
    waits = await harness.waiting()
    harness.append("2", "b")
    harness.journal.release()
    await waits
    await asyncio.wait_for(harness.durability.stopped.wait(), 10)
    assert isinstance(harness.durability.failure, OSError)
    assert harness.seen == ["1"]


async def test_a_journal_that_cannot_be_written_fails_the_batch():
    harness = Harness()
    harness.append("1", "a")
    waits = await harness.waiting()
    harness.journal.fail("disk full")
    with pytest.raises(ServerStopped, match="disk full"):
        await waits
    with pytest.raises(ServerStopped, match="disk full"):
        harness.durability.check()
