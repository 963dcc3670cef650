"""A disk that fills up: the journal is written from its reserve, no new work is taken in, and it goes on by itself."""

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from corral.core.intake.refusal import Refusal
from corral.server.api.http.problems import refused
from corral.server.node_health import disk
from corral.server.node_health.disk import DiskWatch
from corral.store import reserve as reserves
from corral.store.journal import Entry, JournalFailed
from corral.store.reserve import Reserve, free_bytes, is_full, keep_bytes
from corral.store.sqlite.journal import SqliteJournal
from tests.server.servers import job, running
from tests.store.entries import submission

MIB = 1 << 20


class Setup:
    closed: Refusal | None = None

    def says(self) -> str:
        return "" if self.closed is None else str(self.closed)


def test_the_reserve_takes_room_and_gives_it_back(tmp_path: Path):
    before = free_bytes(tmp_path)
    reserve = Reserve(tmp_path, 32 * MIB)
    assert reserve.take()
    assert (tmp_path / "journal.reserve").stat().st_blocks * 512 >= 32 * MIB, "it really holds it"
    assert before > 0
    assert reserve.release()
    assert not reserve.is_held
    assert not reserve.release()


def test_no_reserve_is_taken_from_what_others_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reserves, "free_bytes", lambda _: keep_bytes(tmp_path))
    assert not Reserve(tmp_path, MIB).take()


def test_a_full_disk_costs_the_reserve_first_and_then_waits_for_room(tmp_path: Path):
    journal = SqliteJournal(tmp_path)
    try:
        journal.append([submission(1)]).result(10)
        journal.reserve, journal.full_patience_s = Reserve(tmp_path, MIB), 60.0
        assert journal.reserve.take()
        room = threading.Event()
        real, tries = journal._commit_once, []

        def full(head, records):
            tries.append(time.monotonic())
            if not room.is_set():
                wrong = sqlite3.OperationalError("database or disk is full")
                wrong.sqlite_errorname = "SQLITE_FULL"
                raise wrong
            real(head, records)

        journal._commit_once = full  # type: ignore[method-assign]
        done = journal.append([submission(2)])
        with pytest.raises(TimeoutError):
            done.result(1.5)
        assert not journal.reserve.is_held, "it was given up"
        assert len(tries) > 1
        room.set()
        assert done.result(20).seq == 2
        row = journal.lookup.job("2")
        assert row is not None
        assert len(journal.lookup.usage(_everything())) == 1
        assert journal.lookup.usage(_everything())[0].jobs == 2, "what was tried without effect is not counted"
    finally:
        journal.close()


def _everything():
    from corral.store.lookup import UsageQuery

    return UsageQuery()


def test_without_patience_a_full_disk_is_reported_as_before(tmp_path: Path):
    journal = SqliteJournal(tmp_path)
    try:
        journal._writer.run(lambda: journal._connection.execute("PRAGMA max_page_count = 1")).result(10)
        with pytest.raises(JournalFailed, match="full"):
            journal.append([Entry(1, "x", b"y" * MIB)]).result(10)
    finally:
        journal.close()


def test_other_faults_are_not_waited_for():
    assert is_full(OSError(28, "No space left on device"))
    assert not is_full(OSError(5, "Input/output error"))
    assert not is_full(sqlite3.OperationalError("locked"))


def test_below_the_line_no_work_is_taken_in_and_above_it_again_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free, setup = [10 * keep_bytes(tmp_path)], Setup()
    monkeypatch.setattr(disk, "free_bytes", lambda _: free[0])
    watch = DiskWatch(tmp_path, Reserve(tmp_path, MIB), setup)
    watch.look()
    assert setup.says() == ""
    assert Reserve(tmp_path, MIB).is_held
    free[0] = keep_bytes(tmp_path) - 1
    watch.look()
    assert "nearly full" in setup.says()
    free[0] = keep_bytes(tmp_path) + 1
    watch.look()
    assert setup.says(), "a little more must be free"
    free[0] = 2 * keep_bytes(tmp_path)
    watch.look()
    assert setup.says() == ""


async def test_a_submission_to_a_full_disk_is_refused_with_507(tmp_path: Path):
    async with running(tmp_path) as server:
        server.service.closed = Refusal("disk_full", "the disk is nearly full", "make room")
        answer = await server.service.submit("root", [job()])
        assert isinstance(answer, Refusal)
        assert refused(answer).status == 507
        server.service.closed = None
        assert not isinstance(await server.service.submit("root", [job()]), Refusal)
