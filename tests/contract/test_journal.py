"""What every journal guarantees, in memory, on SQLite and on PostgreSQL alike."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.store.chain import BEGINNING, follow
from corral.store.journal import Journal, JournalFailed, JournalHead, StoredImage, all_records
from corral.store.memory import MemoryJournal
from corral.store.postgres import PostgresJournal
from corral.store.sqlite import SqliteJournal
from tests.store.entries import entry, submission


class _Site:
    """A place where a journal is opened again and again."""

    def __init__(self, kind: str, folder: Path, address: str = "") -> None:
        self.kind, self.folder, self.address = kind, folder, address
        self.journal = self.open()

    def open(self) -> Journal:
        if self.kind == "sqlite":
            return SqliteJournal(self.folder)
        if self.kind == "postgres":
            return PostgresJournal(self.address, folder=self.folder)
        before: Journal = getattr(self, "journal", MemoryJournal())
        journal, image = MemoryJournal(before.read(0, 1 << 60)), before.newest_image()
        if image is not None:
            journal.save_image(image)
        return journal

    def reopen(self) -> Journal:
        self.journal.close()
        self.journal = self.open()
        return self.journal


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Site]:
    address = request.getfixturevalue("database").new() if request.param == "postgres" else ""
    site = _Site(request.param, tmp_path / "data", address)
    yield site
    site.journal.close()


def test_what_was_appended_is_read_in_order_and_chained(site):
    journal = site.journal
    futures = [journal.append([entry(2 * n), entry(2 * n + 1, "bob", "key")]) for n in range(50)]
    assert futures[-1].result(10) == journal.head == JournalHead(100, journal.read(99, 1)[0].hash)
    records = list(all_records(journal, at_once=7))
    assert [record.seq for record in records] == list(range(1, 101))
    assert [record.at_ms for record in records] == list(range(100))
    assert (records[1].actor, records[1].request) == ("bob", "key")
    assert follow(BEGINNING, records) == journal.head


def test_futures_name_the_last_record_of_their_batch(site):
    first, second = site.journal.append([entry(1)] * 3), site.journal.append([entry(2)])
    assert (first.result(10).seq, second.result(10).seq) == (3, 4)


def test_an_empty_batch_is_durable_when_everything_before_it_is(site):
    site.journal.append([entry(1)])
    assert site.journal.append([]).result(10).seq == 1


def test_reading_from_the_middle_and_beyond_the_end(site):
    site.journal.append([entry(n) for n in range(10)]).result(10)
    assert [record.seq for record in site.journal.read(4, 3)] == [5, 6, 7]
    assert site.journal.read(10, 5) == []
    assert site.journal.read(99, 5) == []


def test_opening_again_begins_a_new_epoch_and_goes_on_where_it_was(site):
    epoch = site.journal.epoch
    head = site.journal.append([submission(1), submission(2)]).result(10)
    journal = site.reopen()
    assert (journal.head, journal.epoch) == (head, epoch + 1)
    journal.append([entry(3)]).result(10)
    records = list(all_records(journal))
    assert [record.epoch for record in records] == [epoch, epoch, epoch + 1]
    assert follow(BEGINNING, records) == journal.head


def test_a_promise_cannot_be_taken_back(site):
    """A client that hangs up cancels what it waits for; what was handed in is written all the same."""
    future = site.journal.append([entry(1)])
    future.cancel()
    assert site.journal.append([entry(2)]).result(10).seq == 2
    assert not future.cancelled()


def test_after_close_nothing_is_accepted(site):
    future = site.journal.append([entry(1)])
    site.journal.close()
    site.journal.close()
    assert future.result(0).seq == 1
    with pytest.raises(JournalFailed):
        site.journal.append([entry(2)]).result(10)


def test_the_newest_image_is_found_again(site):
    assert site.journal.newest_image() is None
    site.journal.append([entry(n) for n in range(10)]).result(10)
    for seq in (3, 9, 6):
        site.journal.save_image(StoredImage(seq, 1, b"state %d" % seq))
    assert site.journal.newest_image() == StoredImage(9, 1, b"state 9")
    assert site.journal.newest_image(9) == StoredImage(6, 1, b"state 6")
    assert site.journal.newest_image(3) is None
    assert site.reopen().newest_image() == StoredImage(9, 1, b"state 9")
