"""The journal on SQLite: who may write, what is refused and how, what failure leads to."""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from corral.store.journal import (
    JournalBusy,
    JournalFailed,
    JournalFenced,
    JournalTooNew,
    JournalUnusable,
    StoredImage,
)
from corral.store.lookup import JobQuery
from corral.store.sqlite import SqliteJournal, SqliteReader
from corral.store.sqlite.database import FILE_NAME, schema_version, statements_of
from corral.store.verify import verify
from tests.store.entries import entry, submission


@pytest.fixture
def journal(tmp_path):
    journal = SqliteJournal(tmp_path / "data")
    yield journal
    journal.close()


def test_a_second_server_is_refused_and_reported_by_whom(journal):
    with pytest.raises(JournalBusy, match=f"process {os.getpid()} since 20.. *"):
        SqliteJournal(journal.folder)
    journal.append([entry(1)]).result(10)
    journal.close()
    SqliteJournal(journal.folder).close()


def test_a_forked_child_does_not_keep_the_lease(tmp_path):
    """A task that outlives its server must not keep the next one from starting."""
    script = (
        "import os, sys, time, signal\n"
        "from pathlib import Path\n"
        "from corral.store.sqlite import SqliteJournal\n"
        "journal = SqliteJournal(Path(sys.argv[1]))\n"
        "child = os.fork()\n"
        "if not child: signal.pause()\n"
        "os.kill(os.getpid(), signal.SIGKILL) if len(sys.argv) > 2 else journal.close()\n"
        "SqliteJournal(Path(sys.argv[1])).close()\n"
        "os.kill(child, signal.SIGKILL)\n"
        "print('opened again')\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "opened again\n"


def test_a_writer_of_an_old_epoch_is_fenced(journal):
    journal.append([entry(1)]).result(10)
    with closing(sqlite3.connect(journal.folder / FILE_NAME)) as other:
        other.execute("UPDATE writer SET epoch = epoch + 1")
        other.commit()
    with pytest.raises(JournalFenced, match="another server"):
        journal.append([entry(2)]).result(10)
    with pytest.raises(JournalFenced):
        journal.append([entry(3)]).result(10)
    assert [record.seq for record in journal.read(0, 10)] == [1]


def test_files_are_private(journal):
    journal.append([entry(1)]).result(10)
    journal.save_image(StoredImage(1, 1, b"x"))
    assert journal.folder.stat().st_mode & 0o777 == 0o700
    for path in journal.folder.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_a_full_disk_stops_everything_after_it_and_loses_nothing_before(journal):
    acknowledged = journal.append([submission(n) for n in range(50)]).result(10)
    journal._writer.run(lambda: journal._connection.execute("PRAGMA max_page_count = 1")).result(10)
    futures = [journal.append([submission(n) for n in range(100 * m, 100 * m + 100)]) for m in range(1, 4)]
    for future in futures:
        with pytest.raises(JournalFailed, match=r"full.*then start again"):
            future.result(10)
    with pytest.raises(JournalFailed):
        journal.append([entry(1)]).result(10)
    journal.close()
    again = SqliteJournal(journal.folder)
    assert again.head == acknowledged
    assert again.append([submission(1000)]).result(10).seq == 51
    again.close()
    assert verify(journal.folder) == []


def test_a_fault_in_the_projections_writes_nothing(journal, monkeypatch):
    def broken(tables, records):
        raise AssertionError("a bug")

    monkeypatch.setattr("corral.store.sqlite.journal.fold", broken)
    with pytest.raises(JournalFailed, match=r"a bug.*a bug in Corral"):
        journal.append([entry(1)]).result(10)
    assert journal.read(0, 10) == []


def test_what_comes_together_is_written_together(journal, monkeypatch):
    """While one batch is being written, the next gathers: few transactions for many appends."""
    commits = []
    commit = journal._writer._commit

    def slowly(head, records):
        time.sleep(0.02)
        commits.append(len(records))
        commit(head, records)

    monkeypatch.setattr(journal._writer, "_commit", slowly)
    futures = [journal.append([entry(n)]) for n in range(1000)]
    assert futures[-1].result(30).seq == 1000
    assert sum(commits) == 1000
    assert len(commits) < 20


def test_futures_are_done_in_order(journal):
    order: list[int] = []
    futures = [journal.append([entry(n)]) for n in range(300)]
    for n, future in enumerate(futures):
        future.add_done_callback(lambda done, n=n: order.append(n))
    futures[-1].result(10)
    journal.close()
    assert order == sorted(order)


def test_an_image_is_never_ahead_of_the_records(journal, monkeypatch):
    """It waits for them; and if an older journal was put back, images of what came later are dropped."""
    commit = journal._writer._commit

    def slowly(head, records):
        time.sleep(0.1)
        commit(head, records)

    monkeypatch.setattr(journal._writer, "_commit", slowly)
    future = journal.append([entry(1), entry(2)])
    journal.save_image(StoredImage(2, 1, b"state"))
    assert future.done()
    journal.close()
    (journal.folder / "images" / f"{2:020}.image").rename(journal.folder / "images" / f"{3:020}.image")
    again = SqliteJournal(journal.folder)
    assert again.newest_image() is None
    again.append([entry(3)]).result(10)
    assert again.newest_image() is None
    again.close()


def test_no_image_of_what_could_not_be_written(journal):
    journal._writer.run(lambda: journal._connection.execute("PRAGMA max_page_count = 1")).result(10)
    future = journal.append([submission(n) for n in range(500)])
    with pytest.raises(JournalFailed):
        journal.save_image(StoredImage(500, 1, b"state"))
    assert future.exception() is not None
    assert journal.newest_image() is None


def test_a_reader_follows_without_the_lease(journal):
    reader = SqliteReader(journal.folder)
    journal.append([submission(1), entry(2)]).result(10)
    assert reader.read(0, 10) == journal.read(0, 10)
    assert reader.durable_head() == journal.head
    assert reader.lookup.job("1") is not None
    reader.save_image(StoredImage(2, 1, b"state"))
    assert journal.newest_image() == StoredImage(2, 1, b"state")
    reader.close()
    with pytest.raises(JournalUnusable):
        reader.read(0, 1)


# ---- places that cannot be used ------------------------------------------------------------------------------------


def test_a_reader_needs_a_journal(tmp_path):
    with pytest.raises(JournalUnusable, match="no journal"):
        SqliteReader(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "data").write_text("")
    with pytest.raises(JournalUnusable, match="Use a folder"):
        SqliteJournal(tmp_path / "data")


def test_not_a_database(tmp_path):
    (tmp_path / FILE_NAME).write_bytes(b"something else" * 1000)
    with pytest.raises(JournalUnusable, match=r"not a database.*backup"):
        SqliteJournal(tmp_path)


def test_another_users_database(tmp_path):
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as other:
        other.execute("CREATE TABLE theirs (x)")
    with pytest.raises(JournalUnusable, match="not a journal of Corral"):
        SqliteJournal(tmp_path)


def test_a_newer_schema(tmp_path):
    SqliteJournal(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as later:
        later.execute("INSERT INTO schema VALUES (99)")
        later.commit()
    with pytest.raises(JournalTooNew, match=r"schema 99.*later"):
        SqliteJournal(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as later:
        later.execute("DELETE FROM schema WHERE version = 99")
        later.commit()
    SqliteJournal(tmp_path).close()  # and a refusal leaves nothing locked


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """To root nothing is forbidden; to others their own folders are not forbidden for long."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("mode", [0o000, 0o555], ids=["not readable", "not writable"])
def test_a_folder_of_another_user(mode):
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        folder = Path(above) / "data"
        folder.mkdir()
        folder.chmod(mode)
        with as_somebody_else(), pytest.raises(JournalUnusable, match="as the user who owns it"):
            SqliteJournal(folder)


# ---- schema --------------------------------------------------------------------------------------------------------


def test_an_older_schema_is_brought_forward(tmp_path):
    """A database as the first step alone makes it gets the others."""
    first = Path(SqliteJournal.__module__.replace(".", "/")).parent / "schema" / "001_journal.sql"
    text = next(path for path in map(Path, sys.path) if (path / first).exists()) / first
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as old:
        for statement in statements_of(text.read_text()):
            old.execute(statement)
        old.execute("CREATE TABLE schema (version INTEGER PRIMARY KEY)")
        old.execute("INSERT INTO schema VALUES (1)")
        old.commit()
    journal = SqliteJournal(tmp_path)
    journal.append([submission(1)]).result(10)
    assert journal.lookup.job("1") is not None
    journal.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as now:
        assert schema_version(now) >= 2


def test_jobs_that_were_there_before_labels_had_an_index_are_found_by_them(tmp_path):
    journal = SqliteJournal(tmp_path)
    journal.append([submission(1, labels=(("team", "nlp"),)), submission(2)]).result(10)
    journal.close()
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as old:  # as it was
        old.execute("DROP TRIGGER jobs_labelled")
        for table in ("job_labels", "job_records", "job_records_begin"):
            old.execute(f"DROP TABLE {table}")
        old.execute("ALTER TABLE attempts DROP COLUMN first_failure")
        old.execute("DELETE FROM schema WHERE version >= 3")
        old.commit()
    journal = SqliteJournal(tmp_path)
    journal.append([submission(3, labels=(("team", "nlp"), ("kind", "eval")))]).result(10)
    wanted = [JobQuery(labels=labels) for labels in ((("team", "nlp"),), (("kind", "eval"),), (("kind", "train"),))]
    assert [[row.id for row in journal.lookup.jobs(query).jobs] for query in wanted] == [["3", "1"], ["3"], []]
    journal.close()


def test_a_question_for_a_label_that_no_one_has_reads_no_jobs(tmp_path):
    """Counted in steps of SQLite's machine, which are the same on every machine of ours."""
    steps = {}
    for count in (200, 2_000):
        folder = tmp_path / str(count)
        folder.mkdir()
        journal = SqliteJournal(folder)
        journal.append([submission(n, labels=(("team", f"t{n % 7}"),)) for n in range(count)]).result(30)
        with journal.lookup._readers.connection() as connection:
            ticks: list[int] = []
            connection.set_progress_handler(lambda ticks=ticks: ticks.append(1), 10)  # type: ignore[attr-defined]
        assert journal.lookup.jobs(JobQuery(labels=(("team", "none"),))).jobs == ()
        steps[count] = len(ticks)
        journal.close()
    assert steps[2_000] <= 2 * steps[200] + 50
