"""Old records go into files that prove themselves, and nothing else changes."""

import pytest

from corral.store.archive import ArchiveRefused, archive_begins_after, read_archive, write_archive
from corral.store.chain import BEGINNING, chain
from corral.store.journal import JournalBroken, JournalFailed, JournalHead, StoredImage
from corral.store.sql import prune
from corral.store.sqlite import SqliteJournal
from corral.store.verify import verify
from tests.store.entries import entry, submission

RECORDS = chain(BEGINNING, 3, 1, [entry(n, "änn", "a key") for n in range(40)])


@pytest.mark.parametrize("name", ["part.jsonl", "part.jsonl.gz"])
def test_a_file_gives_back_what_was_written(tmp_path, name):
    path, middle = tmp_path / name, JournalHead(RECORDS[9].seq, RECORDS[9].hash)
    assert write_archive(path, middle, RECORDS[10:]) == JournalHead(40, RECORDS[-1].hash)
    assert list(read_archive(path)) == RECORDS[10:]
    assert archive_begins_after(path) == middle
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(ArchiveRefused, match="already exists"):
        write_archive(path, BEGINNING, RECORDS)


def test_the_same_records_give_the_same_bytes(tmp_path):
    for name in ("a.jsonl.gz", "b.jsonl.gz"):
        write_archive(tmp_path / name, BEGINNING, RECORDS)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


@pytest.mark.parametrize("name", ["part.jsonl", "part.jsonl.gz"])
def test_every_byte_counts(tmp_path, name):
    path = tmp_path / name
    write_archive(path, BEGINNING, RECORDS[:6])
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            assert list(read_archive(path)) == RECORDS[:6], at  # the header of gzip has bytes that mean nothing
        except JournalBroken:
            continue
    for size in range(0, len(whole) - 1, 11):
        path.write_bytes(whole[:size])
        with pytest.raises(JournalBroken):
            list(read_archive(path))


def test_what_does_not_follow_is_not_archived(tmp_path):
    with pytest.raises(JournalBroken):
        write_archive(tmp_path / "x.jsonl", BEGINNING, RECORDS[1:])
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def journal(tmp_path):
    journal = SqliteJournal(tmp_path / "data")
    journal.append([submission(n) for n in range(1, 31)]).result(10)
    yield journal
    journal.close()


def test_never_beyond_the_images(journal):
    with pytest.raises(ArchiveRefused, match="no image yet"):
        journal.archive(5)
    journal.save_image(StoredImage(20, 1, b""))
    with pytest.raises(ArchiveRefused, match="record 20"):
        journal.archive(21)
    journal.archive(20)
    with pytest.raises(ArchiveRefused, match="already"):
        journal.archive(20)


def test_not_when_it_is_closed(journal):
    journal.save_image(StoredImage(20, 1, b""))
    journal.close()
    with pytest.raises(JournalFailed, match="closed"):
        journal.archive(20)


def test_what_a_job_asked_for_is_still_shown(journal):
    before = [journal.lookup.job(str(n)) for n in range(1, 31)]
    journal.save_image(StoredImage(20, 1, b""))
    journal.archive(20)
    assert len(journal.read(0, 100)) == 10
    assert [journal.lookup.job(str(n)) for n in range(1, 31)] == before


def test_an_interrupted_removal_is_finished_by_the_next_call(journal, monkeypatch):
    monkeypatch.setattr(prune, "AT_ONCE", 4)
    journal.save_image(StoredImage(20, 1, b""))
    with monkeypatch.context() as patch:
        patch.setattr(SqliteJournal, "_remove", lambda self, upto: self._writer.run(
            lambda: self._remove_some(upto)).result())  # fmt: skip
        journal.archive(10)
    assert journal.read(0, 1)[0].seq == 5
    assert verify(journal.folder) == []
    journal.archive(20)
    assert journal.read(0, 1)[0].seq == 21
    assert verify(journal.folder) == []


def test_a_journal_with_everything_archived_goes_on(journal):
    journal.save_image(StoredImage(30, 1, b""))
    journal.archive(30)
    journal.close()
    again = SqliteJournal(journal.folder)
    assert again.append([submission(31)]).result(10).seq == 31
    again.close()
    assert verify(journal.folder) == []
