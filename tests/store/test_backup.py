"""A journal that is copied, backed up or restored is the same journal: every record, hash, epoch and row."""

from pathlib import Path

import pytest

from corral.store.archive import ArchiveRefused
from corral.store.backup import JournalPlace, backup, copy, place_of, restore
from corral.store.journal import JournalBroken, JournalBusy, JournalUnusable, StoredImage
from corral.store.location import verify
from corral.store.lookup import JobQuery
from corral.store.postgres import PostgresJournal, PostgresReader
from corral.store.sqlite import SqliteJournal, SqliteReader
from tests.store.entries import submission
from tests.store.runs import entries_of, events_of_run


def opened(place: JournalPlace) -> SqliteJournal | PostgresJournal:
    return SqliteJournal(place) if isinstance(place, Path) else PostgresJournal(place)


def reader(place: JournalPlace) -> SqliteReader | PostgresReader:
    return SqliteReader(place) if isinstance(place, Path) else PostgresReader(place)


@pytest.fixture(params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[JournalPlace, JournalPlace]:
    """A place of one kind with a journal, part of which is archived, and an empty one of the other."""
    found: list[JournalPlace] = [tmp_path / "data", request.getfixturevalue("database").new()]
    source, target = found if request.param == "sqlite" else reversed(found)
    journal = opened(source)
    journal.append(entries_of(events_of_run(5, 300))).result(30)
    journal.save_image(StoredImage(100, 1, b"state"))
    journal.archive(50, tmp_path / "old.jsonl.gz")
    journal.close()
    opened(source).close()  # an epoch without a record
    return source, target


def assert_same(source: JournalPlace, target: JournalPlace) -> None:
    one, other = reader(source), reader(target)
    assert one.durable_head() == other.durable_head()
    assert one.read(50, 10_000) == other.read(50, 10_000)
    assert one.lookup.jobs(JobQuery(limit=10_000)) == other.lookup.jobs(JobQuery(limit=10_000))
    one.close()
    other.close()
    assert verify(source) == verify(target) == []


def test_a_copy_is_the_same_and_goes_on(places):
    source, target = places
    copy(source, target)
    assert_same(source, target)
    before, after = opened(source), opened(target)
    assert after.epoch == before.epoch, "agents have seen the epochs before"
    after.append([submission(100_000)]).result(10)
    before.close()
    after.close()
    assert verify(target) == []


def test_a_backup_is_made_beside_a_server_and_restored_elsewhere(places, tmp_path):
    source, target = places
    server = opened(source)
    end = backup(source, tmp_path / "all.jsonl.gz")
    server.close()
    assert restore(tmp_path / "all.jsonl.gz", target) == end
    assert_same(source, target)
    journal = opened(target)
    assert journal.epoch > 1_000, "beyond any epoch since the backup"
    journal.close()
    with pytest.raises(JournalUnusable, match="already"):
        restore(tmp_path / "all.jsonl.gz", target)
    with pytest.raises(ArchiveRefused, match="already"):
        backup(source, tmp_path / "all.jsonl.gz")


def test_a_damaged_backup_fills_nothing(places, tmp_path):
    source, target = places
    file = tmp_path / "all.jsonl"
    backup(source, file)
    whole = file.read_bytes()
    for damaged in (whole[:-100], whole.replace(b"JobSubmitted", b"JobSubmitteD", 1)):
        file.write_bytes(damaged)
        with pytest.raises(JournalBroken):
            restore(file, target)
    if isinstance(target, Path):
        assert not (target / "journal.db").exists()
    file.write_bytes(whole)
    restore(file, target)
    assert verify(target) == []


def test_what_a_server_has_open_is_not_copied(places):
    source, target = places
    server = opened(source)
    with pytest.raises(JournalBusy):
        copy(source, target)
    server.close()


def test_an_address_of_something_else_is_refused(tmp_path):
    with pytest.raises(JournalUnusable, match="mysql://ann@db/x is not the address"):
        place_of(tmp_path, "mysql://ann:secret@db/x")
    assert place_of(tmp_path, "") == tmp_path
