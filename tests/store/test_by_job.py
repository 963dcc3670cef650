"""Records by job: read without reading others, entered later where they are older than their table."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from corral.core import events as e
from corral.store import postgres
from corral.store.journal import Entry, StoredImage
from corral.store.postgres import PostgresJournal
from corral.store.projection import job_told_of
from corral.store.sql import by_job
from corral.store.sqlite import SqliteJournal
from corral.store.sqlite.database import FILE_NAME
from corral.store.verify import verify
from corral.wire.codec import encode
from tests.store.entries import submission

Open = Callable[[], SqliteJournal | PostgresJournal]


@pytest.fixture(params=["sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    if request.param == "sqlite":
        return lambda: SqliteJournal(tmp_path)
    address = request.getfixturevalue("database").new()
    return lambda: PostgresJournal(address, holder="test", folder=tmp_path)


def released(number: int) -> Entry:
    return Entry(number, "ann", encode(e.JobReleased(number, str(number))))


def seqs(journal: SqliteJournal | PostgresJournal, job: str) -> list[int]:
    found, after, head = list[int](), 0, 1
    while after < head:
        part = journal.lookup.records_of(job, after, 2)
        found += [record.seq for record in part.records]
        after, head = part.upto, part.head
    return found


def is_entered(journal: SqliteJournal | PostgresJournal) -> bool:
    return not journal._writer.run(lambda: by_job.has_older(journal._own_connection())).result(30)


def make_old(journal: SqliteJournal | PostgresJournal) -> None:
    """As it was before there was that table."""

    def strip() -> None:
        connection = journal._own_connection()
        for statement in (
            "DROP TABLE job_records", "DROP TABLE job_records_begin", "ALTER TABLE attempts DROP COLUMN first_failure",
            "DROP TABLE IF EXISTS chunks", "DELETE FROM schema WHERE version >= 4",
        ):  # fmt: skip
            connection.execute(statement)

    journal._writer.run(strip).result(30)
    journal.close()


def test_the_records_of_a_job_cost_what_they_are_and_not_what_there_is(tmp_path):
    """Counted in steps of SQLite's machine, which are the same on every machine of ours."""
    steps = {}
    for count in (200, 4_000):
        folder = tmp_path / str(count)
        folder.mkdir()
        journal = SqliteJournal(folder)
        journal.append([submission(n) for n in range(count)] + [released(7)]).result(60)
        with journal.lookup._readers.connection() as connection:
            ticks: list[int] = []
            connection.set_progress_handler(lambda ticks=ticks: ticks.append(1), 10)  # type: ignore[attr-defined]
        assert [record.seq for record in journal.lookup.records_of("7", 0, 500).records] == [8, count + 1]
        steps[count] = len(ticks)
        journal.close()
    assert steps[4_000] <= 2 * steps[200] + 20


def test_records_that_are_older_than_their_table_are_found_at_once_and_entered_by_themselves(opened, monkeypatch):
    monkeypatch.setattr(by_job, "AT_ONCE", 7)
    journal = opened()
    journal.append([submission(n) for n in range(1, 41)] + [released(n) for n in range(1, 41)]).result(60)
    make_old(journal)
    with monkeypatch.context() as never:
        never.setattr("corral.store.sql.journal.SqlJournal._enter_older", lambda self: None)
        journal = opened()
        assert not is_entered(journal)
        journal.append([released(5), released(41)]).result(60)
        assert seqs(journal, "5") == [5, 45, 81]
        journal._writer.run(journal._enter_some).result(30)  # a server that ends in the middle of it
        assert not is_entered(journal)
        assert seqs(journal, "5") == [5, 45, 81]
        journal.close()
    journal = opened()
    until = time.monotonic() + 60
    while not is_entered(journal) and time.monotonic() < until:
        time.sleep(0.01)
    assert is_entered(journal)
    assert {n: seqs(journal, str(n)) for n in (1, 5, 40, 41)} == {1: [1, 41], 5: [5, 45, 81], 40: [40, 80], 41: [82]}
    journal.close()


def test_what_is_archived_is_entered_no_more_and_what_is_made_again_is_entered_again(opened):
    journal = opened()
    journal.append([submission(n) for n in range(1, 41)] + [released(n) for n in range(1, 41)]).result(60)
    journal.save_image(StoredImage(50, 1, b"a state"))
    journal.archive(50)
    count = "SELECT count(*) FROM job_records"
    assert journal._writer.run(lambda: journal._own_connection().execute(count).fetchone()[0]).result(30) == 30
    assert (seqs(journal, "1"), seqs(journal, "40")) == ([], [80])
    journal.rebuild()
    until = time.monotonic() + 60
    while not is_entered(journal) and time.monotonic() < until:
        time.sleep(0.01)
    assert journal._writer.run(lambda: journal._own_connection().execute(count).fetchone()[0]).result(30) == 30
    journal.close()


def test_bytes_that_no_one_can_read_are_about_no_job(tmp_path):
    journal = SqliteJournal(tmp_path)
    journal.append([submission(1)]).result(10)
    journal.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        (body,) = connection.execute("SELECT body FROM records").fetchone()
    assert job_told_of(1, body) == "1"
    for broken in (b"", b"{", b'{"job":1}', b'{"job":"\xff"}', b"[" * 100_000, b'{"gang":null}'):
        assert job_told_of(1, broken) == ""
    assert job_told_of(99, body) == ""


DAMAGES = [
    ("DELETE FROM job_records WHERE job = '2'", "1 records have no entry, the first is 5"),
    ("INSERT INTO job_records VALUES ('2', 1)", "1 rows should not exist"),
]


@pytest.mark.parametrize(("damage", "told"), DAMAGES)
def test_a_table_in_postgres_that_differs_from_the_records_is_found_by_verify(database, tmp_path, damage, told):
    address = database.new()
    journal = PostgresJournal(address, holder="test", folder=tmp_path)
    journal.append([submission(n) for n in range(1, 4)] + [released(n) for n in range(1, 4)]).result(30)
    journal.close()
    assert postgres.verify(address, tmp_path) == []
    with psycopg.connect(address) as connection:
        connection.execute(damage)
    (found,) = postgres.verify(address, tmp_path)
    assert told in found.text


@pytest.mark.parametrize(("damage", "told"), DAMAGES)
def test_a_table_that_differs_from_the_records_is_found_by_verify(tmp_path, damage, told):
    journal = SqliteJournal(tmp_path)
    journal.append([submission(n) for n in range(1, 4)] + [released(n) for n in range(1, 4)]).result(10)
    journal.close()
    assert verify(tmp_path) == []
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        connection.execute(damage)
        connection.commit()
    (found,) = verify(tmp_path)
    assert told in found.text


def test_submissions_are_found_by_the_table_of_jobs_and_need_no_entry(opened):
    """They are most of what a busy server writes. Entries of an earlier version do no harm."""
    journal = opened()
    journal.append([submission(n) for n in range(1, 41)] + [released(n) for n in range(1, 41)]).result(60)
    run = journal._writer.run
    count = "SELECT count(*) FROM job_records"
    assert run(lambda: journal._own_connection().execute(count).fetchone()[0]).result(30) == 40
    assert (seqs(journal, "7"), journal.lookup.records_of("7", 7, 5).records[0].seq) == ([7, 47], 47)
    run(lambda: journal._own_connection().execute("INSERT INTO job_records VALUES ('7', 7)")).result(30)
    assert seqs(journal, "7") == [7, 47]
    assert run(lambda: list(by_job.wrong_entries(journal._own_connection()))).result(30) == []
    journal.close()


def test_of_a_job_whose_submission_is_archived_the_rest_is_still_found(opened):
    journal = opened()
    journal.append([submission(1)] + [released(1) for _ in range(9)]).result(60)
    journal.save_image(StoredImage(5, 1, b"a state"))
    journal.archive(5)
    assert seqs(journal, "1") == [6, 7, 8, 9, 10]
    journal.close()
