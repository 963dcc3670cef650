"""A database that is silent, locked, read-only or cut off: nothing waits for ever, nothing is lost or written twice."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from psycopg import errors

from corral.store.journal import JournalAway, JournalFailed, JournalUnusable
from corral.store.postgres import PostgresJournal, PostgresReader, verify
from corral.store.postgres.errors import DatabaseTimeout, trouble
from corral.store.postgres.leader_lease import now_s
from corral.store.projection import fold
from tests.database import Database
from tests.e2e.proxy import DatabaseProxy, Mode
from tests.store.entries import entry

LONG_S = 20.0  # nothing here takes as long; without a deadline it would take for ever


@pytest.fixture
def address(database: Database) -> str:
    return database.new()


@pytest.fixture
def proxy(database: Database, address: str) -> Iterator[DatabaseProxy]:
    proxy = DatabaseProxy(str(database.folder), address)
    yield proxy
    proxy.close()


def ask(address: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(address, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@contextmanager
def locked(address: str, table: str) -> Iterator[None]:
    with psycopg.connect(address) as connection:
        connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE".encode())
        yield
        connection.rollback()


# ---- no answer -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.LOSE_REPLIES, Mode.HANG])
def test_who_reads_gives_up_on_a_link_that_is_silent_and_begins_again(address, proxy, mode):
    PostgresJournal(address).close()
    reader = PostgresReader(proxy.url, silence_s=1.0)
    proxy.fail(mode)
    began = time.monotonic()
    with pytest.raises(JournalAway, match="no answer for 1 s") as told:
        reader.read(0, 10)
    assert told.value.kind == "silent"
    assert time.monotonic() - began < LONG_S
    proxy.heal(late=True)
    assert reader.read(0, 10) == []
    reader.close()


@pytest.mark.parametrize("mode", [Mode.LOSE_REPLIES, Mode.HANG])
def test_a_leader_that_is_cut_off_gives_up_and_can_be_closed(address, proxy, mode):
    journal = PostgresJournal(proxy.url, lease_s=2.0)
    journal.append([entry(1)]).result(10)
    proxy.fail(mode)
    began = time.monotonic()
    with pytest.raises(JournalFailed):
        journal.append([entry(2)]).result(LONG_S)
    journal.close()
    assert time.monotonic() - began < LONG_S
    other = PostgresJournal(address, lease_s=2.0)
    other.append([entry(3)]).result(10)
    other.close()
    assert verify(address) == []


def test_a_journal_can_be_closed_while_its_writer_waits(address, proxy):
    journal = PostgresJournal(proxy.url, lease_s=60.0)
    proxy.fail(Mode.HANG)
    waiting = journal.append([entry(1)])
    began = time.monotonic()
    journal.close()
    assert time.monotonic() - began < LONG_S
    with pytest.raises(JournalFailed):
        waiting.result(1)


def test_a_writer_whose_session_is_stopped_goes_on_in_another(address):
    journal = PostgresJournal(address, lease_s=2.0)
    journal.append([entry(1)]).result(10)
    ((session,),) = ask(address, "SELECT session FROM leader")
    assert isinstance(session, int)
    os.kill(session, signal.SIGSTOP)
    try:
        assert journal.append([entry(2)]).result(LONG_S).seq == 2
    finally:
        os.kill(session, signal.SIGCONT)
    assert journal.append([entry(3)]).result(10).seq == 3
    journal.close()
    assert verify(address) == []


# ---- locks -----------------------------------------------------------------------------------------------------------


def test_who_cannot_write_gives_the_lead_up_and_no_one_takes_it_before_it_can_write(address):
    journal = PostgresJournal(address, holder="a", lease_s=2.0)
    journal.append([entry(1)]).result(10)
    with locked(address, "records"):
        with pytest.raises(JournalFailed, match="another session has locked its tables"):
            journal.append([entry(2)]).result(LONG_S)
        journal.close()
        with pytest.raises(JournalAway) as told:
            PostgresJournal(address, holder="b", lease_s=2.0)
        assert told.value.kind == "locked"
        ((is_held,),) = ask(address, "SELECT expires_at > clock_timestamp() FROM leader")
        assert not is_held
    second = PostgresJournal(address, holder="b", lease_s=2.0)
    assert second.append([entry(3)]).result(10).seq == 2
    second.close()
    assert verify(address) == []


def test_a_lease_is_not_renewed_while_the_writer_is_stuck(address, monkeypatch):
    monkeypatch.setattr(PostgresJournal, "_stuck_s", lambda self: 100.0)
    journal = PostgresJournal(address, lease_s=2.0)
    with pytest.raises(JournalFailed, match=r"the journal could not be written for 100\.0 s"):
        journal.lost.result(LONG_S)
    journal.close()
    PostgresJournal(address).close()


def test_who_hands_its_right_on_is_reported_of_every_renewal(address):
    journal = PostgresJournal(address, lease_s=1.0)
    heard: list[int] = []
    several = threading.Event()

    def hear(until_ms: int) -> None:
        heard.append(until_ms)
        if len(heard) > 2:
            several.set()

    journal.lease.on_renewed = hear
    assert several.wait(LONG_S)
    assert heard == sorted(heard)
    assert heard[0] < (now_s() + 1.0) * 1000
    assert 0 < journal.leading_for_s <= 0.8
    journal.close()


# ---- a COMMIT that is cut in the middle ------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False], ids=["before it arrives", "after it arrived"])
@pytest.mark.parametrize("rounds", [1, 9], ids=["in words", "prepared"])
def test_a_commit_whose_answer_is_lost_is_looked_up_and_not_guessed(address, proxy, before, rounds):
    journal = PostgresJournal(proxy.url)
    for n in range(rounds):
        journal.append([entry(n)]).result(10)
    proxy.cut_next_commit(before=before)
    assert journal.append([entry(100), entry(101)]).result(LONG_S).seq == rounds + 2
    assert proxy.cuts == 1
    assert journal.append([entry(102)]).result(10).seq == rounds + 3
    assert [record.seq for record in journal.read(0, 100)] == list(range(1, rounds + 4))
    journal.close()
    assert verify(address) == []


# ---- error messages -------------------------------------------------------------------------------------------------


def test_a_read_only_database_is_named_and_not_taken_for_a_fault_of_corral(address):
    journal = PostgresJournal(address, lease_s=2.0)
    journal.append([entry(1)]).result(10)
    (name,) = ask(address, "SELECT current_database()")[0]
    ask(address, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    ask(address, "SELECT pg_terminate_backend(session) FROM leader")
    with pytest.raises(JournalFailed, match="read-only") as failed:
        journal.append([entry(2)]).result(LONG_S)
    assert "a bug of Corral" not in str(failed.value)
    journal.close()
    with pytest.raises(JournalAway, match="read-only") as told:
        PostgresJournal(address)
    assert told.value.kind == "read_only"
    reader = PostgresReader(address)
    assert len(reader.read(0, 10)) == 1, "it can still be read"
    reader.close()


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (errors.ReadOnlySqlTransaction("cannot execute UPDATE"), "read_only"),
        (errors.DiskFull("could not extend file"), "full"),
        (errors.LockNotAvailable("lock timeout"), "locked"),
        (errors.QueryCanceled("statement timeout"), "slow"),
        (errors.TooManyConnections("sorry"), "crowded"),
        (errors.AdminShutdown("terminating"), "away"),
        (errors.IoError("read failed"), "away"),
        (DatabaseTimeout("no answer for 1 s"), "silent"),
        (psycopg.OperationalError("FATAL:  the database system is starting up"), "away"),
        (psycopg.OperationalError("connection refused"), "away"),
        (psycopg.OperationalError('FATAL:  password authentication failed for user "x"'), None),
        (errors.InsufficientPrivilege("permission denied"), None),
    ],
    ids=lambda each: str(each),
)
def test_what_ends_by_itself_is_told_from_what_needs_a_person(wrong, kind):
    told = trouble("postgresql://ann:pw@db/corral", wrong)
    assert isinstance(told, JournalUnusable)
    assert (told.kind if isinstance(told, JournalAway) else None) == kind
    assert "postgresql://ann@db/corral" in str(told)


def test_a_fault_of_corral_is_not_blamed_on_the_database():
    assert trouble("postgresql://db/x", errors.UndefinedColumn("no such column")) is None
    assert trouble("postgresql://db/x", ValueError("x")) is None


def test_a_transaction_that_takes_long_to_put_together_is_not_cut(address, monkeypatch):
    """What counts is silence of the database, not how long we take: or one large submission would end every leader."""

    def slow(*given):
        time.sleep(2.5)
        fold(*given)

    journal = PostgresJournal(address, lease_s=2.0)
    monkeypatch.setattr("corral.store.postgres.journal.fold", slow)
    assert journal.append([entry(1)]).result(LONG_S).seq == 1
    monkeypatch.setattr("corral.store.postgres.journal.fold", fold)
    assert journal.append([entry(2)]).result(LONG_S).seq == 2
    assert journal.epoch == 1
    assert not journal.lost.done()
    journal.close()
