"""What every look-up answers, in memory, on SQLite and on PostgreSQL alike."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from corral.store.lookup import BadCursor, JobQuery, JobRow, Lookup, is_wanted, read_request_mark, request_mark
from corral.store.memory import MemoryJournal
from corral.store.postgres import PostgresJournal
from corral.store.sqlite import SqliteJournal
from tests.store.entries import submission
from tests.store.runs import entries_of, events_of_run

Source = MemoryJournal | SqliteJournal | PostgresJournal


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    journal: Source
    if request.param == "memory":
        journal = MemoryJournal()
    elif request.param == "sqlite":
        journal = SqliteJournal(tmp_path)
    else:
        journal = PostgresJournal(request.getfixturevalue("database").new())
    yield journal
    journal.close()


def ids(lookup: Lookup, **conditions: Any) -> list[str]:
    return [row.id for row in lookup.jobs(JobQuery(**conditions)).jobs]


def everything(lookup: Lookup, **conditions: Any) -> list[JobRow]:
    """All pages of three."""
    rows: list[JobRow] = []
    cursor = None
    while True:
        page = lookup.jobs(JobQuery(limit=3, cursor=cursor, **conditions))
        rows += page.jobs
        cursor = page.cursor
        if cursor is None:
            return rows
        assert len(page.jobs) == 3


def test_conditions(journal):
    journal.append(
        [
            submission(1, "ann", "lab/red", labels=(("team", "nlp"), ("kind", "eval"))),
            submission(2, "bob", "lab", priority=5),
            submission(3, "ann", "labour", labels=(("team", "vision"),)),
            submission(4, "ann", "ops", held=True),
            submission(104, "eve", "ops"),
        ]
    ).result(10)
    look = journal.lookup
    assert ids(look) == ["104", "4", "3", "2", "1"]
    assert ids(look, queue="lab") == ["2", "1"], "a queue and those below it, not those that begin alike"
    assert ids(look, queues=("lab/red", "ops")) == ["104", "4", "1"]
    assert ids(look, queues=()) == []
    assert ids(look, queues=("",)) == ["104", "4", "3", "2", "1"]
    assert ids(look, queues=("lab/red",), users_own="eve") == ["104", "1"]
    assert ids(look, queues=("lab/red",), users_own="ann") == ["4", "3", "1"]
    assert ids(look, queues=("lab",), users_own="ann", queue="ops") == ["4"]
    assert ids(look, queues=("lab",), users_own="ann", user="bob") == ["2"]
    assert ids(look, user="ann") == ["4", "3", "1"]
    assert ids(look, user="ann", queue="lab") == ["1"]
    assert ids(look, name="train-4") == ["104", "4"]
    assert ids(look, name="train-4", user="eve") == ["104"]
    assert ids(look, name="train*") == ["104", "4", "3", "2", "1"]
    assert ids(look, name="train-%*") == []
    assert ids(look, name="") == []
    assert ids(look, labels=(("team", "nlp"),)) == ["1"]
    assert ids(look, labels=(("team", "nlp"), ("kind", "train"))) == []
    assert ids(look, states=("running",)) == []
    assert ids(look, states=("waiting", "running", "waiting"), user="bob") == ["2"]
    assert ids(look, since_ms=1_700_000_000_002, until_ms=1_700_000_000_004) == ["3", "2"]
    row = look.jobs(JobQuery(queue="ops", user="ann")).jobs[0]
    assert (row.held, row.gpus, row.tasks, row.spec) == (True, 4, 1, None)


def test_paging_leads_through_everything_once(journal):
    journal.append(entries_of(events_of_run(3, 400))).result(30)
    look, rng = journal.lookup, Random(1)
    all_rows = look.jobs(JobQuery(limit=10_000)).jobs
    assert everything(look) == list(all_rows)
    for _ in range(60):
        query: dict[str, Any] = {
            "queues": rng.choice((None, None, ("lab",), ("ops", "lab/red"), ())),
            "users_own": rng.choice((None, "ann")),
            "queue": rng.choice((None, None, "lab", "lab/blue", "nowhere")),
            "user": rng.choice((None, None, "bob")),
            "states": rng.choice(((), (), ("waiting",), ("running", "failed"), ("succeeded", "cancelled"))),
            "name": rng.choice((None, None, None, "nightly", "night*")),
            "since_ms": rng.choice((None, 1_500_000)),
        }
        assert everything(look, **query) == [row for row in all_rows if is_wanted(row, JobQuery(**query))], query


def test_what_is_submitted_meanwhile_does_not_disturb_the_pages(journal):
    journal.append([submission(n) for n in range(6)]).result(10)
    page = journal.lookup.jobs(JobQuery(limit=3))
    journal.append([submission(n) for n in range(6, 9)]).result(10)
    assert ids(journal.lookup, limit=3, cursor=page.cursor) == ["2", "1", "0"]


@pytest.mark.parametrize("cursor", ["", "x", "-1", "1.5", "٣", "9" * 40])
def test_a_cursor_that_no_page_gave_is_refused(journal, cursor):
    with pytest.raises(BadCursor):
        journal.lookup.jobs(JobQuery(cursor=cursor))


def test_requests_are_found_by_who_made_them_and_their_key(journal):
    mark = request_mark("my key", "f00d")
    journal.append([submission(n, request=mark) for n in (1, 2, 3)]).result(10)
    journal.append([submission(9, "bob", request=request_mark("my key", "beef"))]).result(10)
    journal.append([submission(10)]).result(10)
    row = journal.lookup.request("ann", "my key")
    assert (row.fingerprint, row.jobs) == ("f00d", ("1", "2", "3"))
    assert journal.lookup.request("bob", "my key").jobs == ("9",)
    assert journal.lookup.request("eve", "my key") is None
    assert journal.lookup.request("ann", "") is None


def test_what_is_not_there_is_none(journal):
    assert journal.lookup.job("1") is None
    assert journal.lookup.attempts("1") == []


def test_rows_are_copies(journal):
    journal.append([submission(1)]).result(10)
    journal.lookup.jobs(JobQuery()).jobs[0].state = "gone"
    assert ids(journal.lookup, states=("waiting",)) == ["1"]


def test_marks_of_requests():
    assert read_request_mark(request_mark("a b c", "f00d")) == ("a b c", "f00d")
    assert read_request_mark("") == ("", "")


def test_records_about_a_job_are_found_page_by_page_and_no_others(journal):
    events = events_of_run(3, 400)
    journal.append(entries_of(events)).result(60)
    about: dict[str, list[int]] = {}
    for seq, event in enumerate(events, start=1):
        job = event.gang.partition("/")[0].partition("[")[0] if hasattr(event, "gang") else getattr(event, "job", "")
        about.setdefault(job, []).append(seq)
    del about[""]
    assert len(about) > 5
    for job, wanted in about.items():
        found, after = list[int](), 0
        while after < len(events):
            part = journal.lookup.records_of(job, after, 3)
            assert after < part.upto <= part.head == len(events)
            found += [record.seq for record in part.records]
            after = part.upto
        assert found == wanted, job
    assert journal.lookup.records_of("nobody", 0, 3).records == []
