"""What lies in a journal already, and should not: it neither ends a server nor keeps one from starting."""

import logging
from pathlib import Path

import pytest

from corral.core import events as e
from corral.core.cluster.resources import Demand, Seat, TaskDemand
from corral.core.model import GangSpec, JobSpec, QueueSpec, Settings
from corral.server.start import load
from corral.store.journal import Entry, all_records
from corral.store.sqlite.journal import SqliteJournal
from corral.store.sqlite.rebuild import differences
from corral.wire.codec import encode
from tests.database import Database
from tests.world import node_spec

AT = 1_700_000_000_000
HUGE = 2**63
RUN: list[e.Event] = [
    e.Founded(AT, Settings()),
    e.NodeAdded(AT, node_spec("n1", 8)),
    e.QueueSet(AT, QueueSpec(name="default")),
    e.JobSubmitted(AT, "1", JobSpec(queue="default", gangs=(GangSpec(Demand(task=TaskDemand(gpus=1))),)), "ann"),
    e.GangPlaced(AT, "1/main", 1, (Seat("n1", 1),)),
    e.GangStarted(AT, "1/main", 1),
    e.CheckpointCommitted(AT, "1/main", 1, HUGE),
]


def entries(events: list[e.Event]) -> list[Entry]:
    return [Entry(event.at_ms, "world", encode(event)) for event in events]


def test_a_step_that_no_column_holds_ends_nobody_and_the_next_server_starts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    journal = SqliteJournal(tmp_path)
    with caplog.at_level(logging.ERROR):
        journal.append(entries(RUN)).result(10)
    assert "value_not_storable" in caplog.text
    assert journal.lookup.attempts("1")[0].saved_step == HUGE - 1
    journal.append(entries([e.JobHeld(AT, "1")])).result(10)
    journal.close()
    again = SqliteJournal(tmp_path)
    try:
        known = load(again)
        assert known.state.gangs["1/main"].saved_step == HUGE
        again.append(entries([e.JobReleased(AT, "1")])).result(10)
        assert differences(tmp_path, all_records(again)) == []
        again.rebuild()
    finally:
        again.close()


def test_the_same_on_postgres(database: Database, tmp_path: Path):
    from corral.store.postgres import PostgresJournal

    journal = PostgresJournal(database.new(), folder=tmp_path)
    try:
        journal.append(entries(RUN)).result(10)
        assert journal.lookup.attempts("1")[0].saved_step == HUGE - 1
    finally:
        journal.close()


def test_a_record_about_nothing_changes_no_row_and_ends_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    journal = SqliteJournal(tmp_path)
    try:
        with caplog.at_level(logging.ERROR):
            journal.append(entries([*RUN[:4], e.GangStarted(AT, "9/main", 1), e.JobHeld(AT, "1")])).result(10)
        assert "record_not_projected" in caplog.text
        row = journal.lookup.job("1")
        assert row is not None
        assert row.held, "what came after it is there"
    finally:
        journal.close()
