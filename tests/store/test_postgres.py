"""What is peculiar to the journal on PostgreSQL: lease, fencing, a database that goes away, what verify finds."""

import subprocess
import sys
import threading
import time

import psycopg
import pytest

from corral.store.archive import ArchiveRefused, read_archive
from corral.store.chain import BEGINNING, follow
from corral.store.journal import (
    JournalBusy,
    JournalFailed,
    JournalFenced,
    JournalTooNew,
    JournalUnusable,
    StoredImage,
    all_records,
)
from corral.store.location import postgres
from corral.store.lookup import JobQuery
from corral.store.postgres import PostgresJournal, PostgresReader, verify
from corral.wire.address import is_postgres, shown
from tests.database import Database
from tests.store.entries import entry, submission
from tests.store.runs import entries_of, events_of_run


@pytest.fixture
def address(database):
    return database.new()


@pytest.fixture
def journal(address, tmp_path):
    journal = PostgresJournal(address, url="http://a:1", folder=tmp_path)
    yield journal
    journal.close()


def ask(address: str, statement: str) -> list:
    with psycopg.connect(address, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


# ---- who may write -------------------------------------------------------------------------------------------------


def test_a_second_server_is_reported_who_leads(journal, address):
    with pytest.raises(JournalBusy, match=r"the server at http://a:1 is the leader \(since .* UTC\)"):
        PostgresJournal(address)
    journal.append([entry(1)]).result(10)


def test_who_gives_the_lease_back_is_followed_at_once(journal, address):
    journal.close()
    began = time.monotonic()
    PostgresJournal(address).close()
    assert time.monotonic() - began < 3


def test_the_same_holder_may_come_back_at_once_and_its_former_self_is_fenced(address):
    first = PostgresJournal(address, holder="here")
    second = PostgresJournal(address, holder="here")
    assert second.epoch == first.epoch + 1
    with pytest.raises(JournalFenced):
        first.append([entry(1)]).result(10)
    with pytest.raises(JournalFenced):
        first.append([entry(2)]).result(10)
    assert second.append([entry(3)]).result(10).seq == 1
    for journal in (first, second):
        journal.close()
    assert verify(address) == []


def test_a_frozen_leader_that_keeps_the_row_of_the_writer_locked_loses_it(address):
    first = PostgresJournal(address, holder="a", lease_s=60)
    first._writer.run(lambda: first._link.execute("BEGIN")).result(10)
    first._writer.run(lambda: first._link.execute("SELECT 1 FROM writer FOR UPDATE")).result(10)
    ask(address, "UPDATE leader SET expires_at = clock_timestamp(), holder = 'gone'")
    second = PostgresJournal(address, holder="b")
    second.append([entry(1)]).result(10)
    with pytest.raises((JournalFenced, JournalFailed)):
        first.append([entry(2)]).result(10)
    for journal in (first, second):
        journal.close()


def test_a_leader_that_cannot_renew_stops_before_its_lease_ends(address, monkeypatch):
    monkeypatch.setattr("corral.store.postgres.leader_lease.LeaderLease._renew_once", lambda self, link: None)
    journal = PostgresJournal(address, lease_s=4)
    began = time.monotonic()
    with pytest.raises(JournalFailed, match="could not be renewed"):
        journal.lost.result(30)
    assert time.monotonic() - began < 3.9
    with pytest.raises(JournalFailed, match="could not be renewed"):
        journal.append([entry(1)]).result(10)
    journal.close()


def test_a_lease_is_renewed_for_as_long_as_it_is_held(address):
    journal = PostgresJournal(address, lease_s=2)
    time.sleep(3)
    reader = PostgresReader(address)
    assert reader.leadership().is_held
    journal.append([entry(1)]).result(10)
    journal.close()
    assert not reader.leadership().is_held
    reader.close()


def test_many_who_want_to_lead_lead_one_after_the_other(address):
    """All of them write to the end of the same chain; a writer waits while another is busy."""
    faults = []

    def lead() -> None:
        try:
            done = 0
            while done < 5:
                try:
                    journal = PostgresJournal(address, lease_s=5)
                except JournalBusy:
                    time.sleep(0.01)
                    continue
                journal.append([entry(journal.head.seq + 1)]).result(10)
                journal.close()
                done += 1
        except Exception as fault:
            faults.append(fault)

    threads = [threading.Thread(target=lead) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert faults == []
    reader = PostgresReader(address)
    records = reader.read(0, 100)
    assert [record.epoch for record in records] == list(range(1, 21))
    assert follow(BEGINNING, records) == reader.durable_head()
    reader.close()


# ---- a database that goes away -------------------------------------------------------------------------------------


def test_a_connection_that_is_lost_between_two_writes_is_made_again(journal, address):
    journal.append([entry(1)]).result(10)
    ask(address, "SELECT pg_terminate_backend(session) FROM leader")
    assert journal.append([entry(2)]).result(10).seq == 2
    ask(address, "SELECT pg_terminate_backend(session) FROM leader")
    assert journal.append([entry(3)]).result(10).seq == 3
    assert [record.seq for record in journal.read(0, 10)] == [1, 2, 3]
    assert verify(address) == []


def test_what_was_acknowledged_survives_a_killed_database(tmp_path):
    server = Database(durable=True)
    try:
        address, acknowledged = server.new(), 0
        for _ in range(2):
            journal = PostgresJournal(address, holder="one", folder=tmp_path)
            assert journal.head.seq >= acknowledged
            futures = [journal.append([submission(journal.head.seq + 1)]) for _ in range(300)]
            futures[20].result(30)
            server.kill()
            acknowledged = max(f.result().seq for f in futures if f.exception(30) is None)
            journal.close()
            server.start()
        assert verify(address) == []
        reader = PostgresReader(address)
        assert reader.durable_head().seq >= acknowledged > 20
        assert len(reader.lookup.jobs(JobQuery(limit=10_000)).jobs) == reader.durable_head().seq
        reader.close()
    finally:
        server.stop()


def test_no_password_is_ever_shown(database):
    address = database.new().replace("corral@", "nobody_here:s3cret@") + "&password=s3cret&sslpassword=s3cret"
    assert is_postgres(address)
    assert "s3cret" not in shown(address)
    with pytest.raises(JournalUnusable, match="cannot be used") as told:
        PostgresJournal(address)
    assert "s3cret" not in str(told.value)
    assert shown("postgresql://ann:pw@db:5432/corral") == "postgresql://ann@db:5432/corral"


def test_a_database_of_another_user_or_of_the_future_is_left_alone(database):
    address = database.new()
    ask(address, "CREATE TABLE invoices (id int)")
    with pytest.raises(JournalUnusable, match="tables of another program"):
        PostgresJournal(address)
    address = database.new()
    PostgresJournal(address).close()
    ask(address, "INSERT INTO schema VALUES (999)")
    with pytest.raises(JournalTooNew, match="schema 999"):
        PostgresJournal(address)


def test_without_the_driver_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(JournalUnusable, match=r"corral-scheduler\[postgres\]"):
        postgres()


def test_a_server_without_a_database_loads_no_driver():
    program = "import sys, corral.server.main, corral.cli.serve.db; sys.exit('psycopg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# ---- what is in it -------------------------------------------------------------------------------------------------


def test_look_ups_are_the_same_after_a_rebuild(journal, address):
    journal.append(entries_of(events_of_run(5, 300))).result(30)
    before = journal.lookup.jobs(JobQuery(limit=10_000))
    journal.rebuild()
    assert journal.lookup.jobs(JobQuery(limit=10_000)) == before
    assert verify(address) == []


def test_zero_bytes_in_names_are_kept_as_a_sign(journal, address):
    journal.append([submission(1, labels=(("a", "x\0y"),))]).result(10)
    assert journal.lookup.jobs(JobQuery(labels=(("a", "x␀y"),))).jobs[0].id == "1"
    assert journal.lookup.job("1").spec.labels == (("a", "x\0y"),)
    assert verify(address) == []


def test_a_large_image_is_kept_in_parts_and_a_damaged_one_is_passed_over(journal, address, monkeypatch):
    monkeypatch.setattr("corral.store.postgres.images._PART", 1000)
    journal.append([entry(n) for n in range(9)]).result(10)
    for seq in (3, 6, 9):
        journal.save_image(StoredImage(seq, 1, bytes(range(256)) * 20 * seq))
    assert journal.newest_image() == StoredImage(9, 1, bytes(range(256)) * 180)
    ask(address, "UPDATE images SET body = set_byte(body, 5, get_byte(body, 5) # 1) WHERE seq = 9 AND part = 4")
    ask(address, "DELETE FROM images WHERE seq = 6 AND part = 0")
    assert journal.newest_image().seq == 3
    assert {finding.seq for finding in verify(address)} == {6, 9}


def test_old_records_go_into_a_file_and_the_chain_goes_on(journal, address, tmp_path):
    journal.append([submission(n) for n in range(1, 31)]).result(10)
    with pytest.raises(ArchiveRefused, match="no image"):
        journal.archive(10)
    journal.save_image(StoredImage(20, 1, b"state"))
    path = journal.archive(20)
    assert [record.seq for record in read_archive(path)] == list(range(1, 21))
    assert [record.seq for record in all_records(journal)] == list(range(21, 31))
    assert journal.lookup.job("7").spec is not None
    journal.rebuild()
    assert verify(address) == []
    path.write_bytes(path.read_bytes()[:-10])
    assert {finding.about for finding in verify(address)} == {"archive"}


@pytest.mark.parametrize(
    ("about", "damage"),
    {
        "a changed body": ("record", "UPDATE records SET body = body || ' ' WHERE seq = 5"),
        "another actor": ("record", "UPDATE records SET actor = 'eve' WHERE seq = 5"),
        "a missing record": ("record", "DELETE FROM records WHERE seq = 5"),
        "an end cut off": ("end", "DELETE FROM records WHERE seq = 30"),
        "a front cut off": ("record", "DELETE FROM records WHERE seq = 1"),
        "a job that is gone": ("projection", "DELETE FROM jobs WHERE id = '7'"),
        "a job that never was": ("projection", "UPDATE jobs SET state = 'failed' WHERE id = '7'"),
        "no row of the writer": ("database", "DELETE FROM writer"),
    }.values(),
)
def test_what_was_changed_is_found(journal, address, about, damage):
    journal.append([submission(n) for n in range(1, 31)]).result(10)
    journal.close()
    assert verify(address) == []
    ask(address, damage)
    assert about in {finding.about for finding in verify(address)}
