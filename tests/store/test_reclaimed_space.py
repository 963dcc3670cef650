"""What archived records leave free goes back to the disk, and nothing is lost on the way."""

import sqlite3
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

from corral.store.journal import JournalHead, StoredImage
from corral.store.sqlite import SqliteJournal, database, space
from corral.store.sqlite.database import FILE_NAME
from corral.store.verify import verify
from tests.store.entries import submission

COUNT, ARCHIVED = 3_000, 2_700


def fill(folder: Path, is_old: bool) -> None:
    """A journal most of which is archived; one of an earlier version kept no account of its pages."""
    with pytest.MonkeyPatch.context() as patch:
        if is_old:
            patch.setattr(database, "KEEP_ACCOUNT", "PRAGMA auto_vacuum = 0")
        journal = SqliteJournal(folder)
        journal.append([submission(n, labels=(("text", "x" * 2_000),)) for n in range(1, COUNT + 1)]).result(60)
        journal.save_image(StoredImage(ARCHIVED, 1, b"a state"))
        journal.archive(ARCHIVED)
        journal.close()


def size(folder: Path) -> int:
    return (folder / FILE_NAME).stat().st_size


def free_pages(folder: Path) -> int:
    connection = sqlite3.connect(folder / FILE_NAME)
    number: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    connection.close()
    return number


@pytest.mark.parametrize("is_old", [False, True], ids=["new", "of an earlier version"])
def test_the_file_is_smaller_after_most_of_it_was_archived(tmp_path, is_old):
    fill(tmp_path, is_old)
    before = size(tmp_path)
    assert free_pages(tmp_path) > 500
    journal = SqliteJournal(tmp_path)
    freed = journal.shrink()
    assert freed > 2_000_000
    assert size(tmp_path) <= before - 2_000_000
    assert free_pages(tmp_path) == 0
    assert journal.append([submission(COUNT + 1)]).result(10).seq == COUNT + 1
    assert space.keeps_account(journal._connection)
    journal.close()
    assert verify(tmp_path) == []


def test_others_write_while_pages_are_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(space, "PAGES_AT_ONCE", 50)
    fill(tmp_path, is_old=False)
    journal = SqliteJournal(tmp_path)
    given: list[Future[JournalHead]] = []
    give = space.give_some_back

    def give_and_append(connection: sqlite3.Connection) -> bool:
        given.append(journal.append([submission(COUNT + 1 + len(given))]))
        return give(connection)

    monkeypatch.setattr("corral.store.sqlite.journal.give_some_back", give_and_append)
    journal.shrink()
    assert len(given) > 5
    assert [done.result(10).seq for done in given] == list(range(COUNT + 1, COUNT + 1 + len(given)))
    journal.close()
    assert verify(tmp_path) == []


def test_where_there_is_no_room_for_a_copy_nothing_is_touched_and_it_is_said(tmp_path, monkeypatch):
    fill(tmp_path, is_old=True)
    before = size(tmp_path)
    journal = SqliteJournal(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(space, "free_bytes", lambda place: 1 << 20)
        with pytest.raises(space.NoRoom, match="MiB are free"):
            journal.shrink()
    assert size(tmp_path) == before
    assert journal.append([submission(COUNT + 1)]).result(10).seq == COUNT + 1
    journal.close()
    assert verify(tmp_path) == []


@pytest.mark.parametrize("is_old", [False, True], ids=["new", "of an earlier version"])
def test_a_process_that_dies_in_the_middle_loses_nothing(tmp_path, is_old):
    fill(tmp_path, is_old)
    for after in (1, 20, 200, 1_000):
        done = subprocess.run(
            [sys.executable, "-c", DIES, str(tmp_path), str(after)], timeout=120, capture_output=True, text=True
        )
        assert done.returncode in (0, 9), done.stderr
        assert verify(tmp_path) == []
        if after == 1:
            assert done.returncode == 9
            assert free_pages(tmp_path) > 0
    journal = SqliteJournal(tmp_path)
    assert [record.seq for record in journal.read(0, COUNT)] == list(range(ARCHIVED + 1, COUNT + 1))
    journal.shrink()
    journal.close()
    assert free_pages(tmp_path) == 0
    assert verify(tmp_path) == []


DIES = """
import os, sys
from concurrent.futures import Future
from pathlib import Path
from corral.store.sqlite import SqliteJournal, space
space.PAGES_AT_ONCE = 100
journal, left = SqliteJournal(Path(sys.argv[1])), [int(sys.argv[2])]
def count():
    left[0] -= 1
    if left[0] <= 0:
        os._exit(9)
journal._writer.run(lambda: journal._connection.set_progress_handler(count, 50)).result()
journal.shrink()
"""
