"""What is looked up is what the journal says, kept step by step or made again."""

import pytest

from corral.core import events as e
from corral.core.gang_id import job_of
from corral.core.state import State
from corral.sim.history import record as history_of
from corral.store.journal import Entry, all_records
from corral.store.lookup import AttemptRow, JobQuery, UsageQuery
from corral.store.memory import MemoryJournal
from corral.store.projection import by_day, day_of
from corral.store.sqlite import SqliteJournal
from corral.store.sqlite.rebuild import differences
from corral.wire.codec import encode
from tests.simulation.driver import Driver
from tests.store.entries import submission
from tests.store.runs import batches, entries_of

SEEDS = range(6)
EVERYTHING = JobQuery(limit=10_000)


def run(seed: int, steps: int = 400) -> tuple[Driver, State]:
    driver = Driver(seed, check_every=1 << 60)
    return driver, driver.run(steps)


@pytest.mark.parametrize("seed", SEEDS)
def test_step_by_step_and_again_give_the_same_rows(seed, tmp_path):
    driver, _ = run(seed)
    parts = list(batches(entries_of(driver.journal), seed))
    middle = len(parts) // 2
    for some in (parts[:middle], parts[middle:]):
        journal = SqliteJournal(tmp_path)
        futures = [journal.append(part) for part in some]
        futures[-1].result(30)
        journal.close()
    journal = SqliteJournal(tmp_path)
    try:
        assert differences(tmp_path, all_records(journal)) == []
        memory = MemoryJournal(list(all_records(journal)))
        page = memory.lookup.jobs(EVERYTHING)
        assert journal.lookup.jobs(EVERYTHING) == page
        assert len(page.jobs) > 20
        for job in page.jobs:
            assert journal.lookup.attempts(job.id) == memory.lookup.attempts(job.id)
            assert journal.lookup.job(job.id) == memory.lookup.job(job.id)
        for now_ms in (None, driver.now + 5):
            question = UsageQuery(now_ms=now_ms)
            assert journal.lookup.usage(question) == memory.lookup.usage(question)
    finally:
        journal.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_jobs_are_as_the_state_has_them(seed):
    driver, state = run(seed)
    journal = MemoryJournal()
    journal.append(entries_of(driver.journal))
    rows = {row.id: row for row in journal.lookup.jobs(EVERYTHING).jobs}
    assert rows.keys() >= state.jobs.keys()  # some were forgotten by the state; none is here
    for id, job in state.jobs.items():
        row = rows[id]
        gangs = [state.gangs[name] for name in job.gangs]
        assert row.is_over == job.is_over
        assert (row.state == "succeeded") == job.succeeded
        assert (row.held, row.priority, row.user, row.queue) == (job.held, job.priority, job.user, job.spec.queue)
        assert row.attempts == sum(gang.attempt for gang in gangs)
        states = {"running" if gang.state == "broken" else str(gang.state) for gang in gangs}
        if not job.is_over:
            assert row.state == next(s for s in ("running", "starting", "stopping", "waiting") if s in states)
        full = journal.lookup.job(id)
        assert full is not None
        assert full.spec == job.spec


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_and_usage_are_those_of_the_history_and_of_the_queues(seed):
    driver, _ = run(seed)
    journal = MemoryJournal()
    journal.append(entries_of(driver.journal))
    history = history_of(driver.journal)
    for job in history.jobs.values():
        told = sorted(job.runs, key=lambda r: (r.gang, r.attempt))
        kept = sorted(journal.lookup.attempts(job.id), key=lambda r: (r.gang, r.attempt))
        for a, b in zip(told, kept, strict=True):
            assert (a.gang, a.attempt, a.placed_ms, a.started_ms, a.ended_ms) == (
                b.gang, b.attempt, b.placed_ms, b.started_ms, b.ended_ms,
            )  # fmt: skip
            assert (a.gpu_milli, a.lost_gpu_ms, a.cause) == (b.gpu_milli, b.lost_gpu_ms, b.cause or "")
            assert a.nodes == tuple(seat.node for seat in b.seats)
    runs = [run for job in history.jobs.values() for run in job.runs if run.ended_ms is not None]
    held = sum(run.gpu_milli * (run.ended_ms - run.placed_ms) // 1000 for run in runs if run.ended_ms is not None)
    assert sum(row.gpu_ms for row in journal.lookup.usage(UsageQuery())) == held
    assert sum(row.lost_gpu_ms for row in journal.lookup.usage(UsageQuery())) == sum(run.lost_gpu_ms for run in runs)
    assert sum(row.jobs for row in journal.lookup.usage(UsageQuery())) == len(history.jobs)


def test_forgetting_a_job_keeps_what_became_of_it():
    journal = MemoryJournal()
    journal.append([submission(1), Entry(5, "server", encode(e.JobForgotten(5, "1")))])
    assert journal.lookup.job("1") is not None


def test_a_run_over_midnight_is_divided_without_loss():
    run = AttemptRow("1", "1/main", 1, "main", None, "ended", 86_400_000 - 1, None, None, 333, (), 0)
    parts = list(by_day(run, 3 * 86_400_000 + 5))
    assert [day_of(at) for at, _ in parts] == ["1970-01-01", "1970-01-02", "1970-01-03", "1970-01-04"]
    assert sum(gpu_ms for _, gpu_ms in parts) == 333 * (2 * 86_400_000 + 6) // 1000


def test_job_of_a_gang():
    assert [job_of(gang) for gang in ("17/main", "17[3]/main")] == ["17", "17"]
