"""Whatever is done to a journal behind its back is found."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from corral.store.chain import BEGINNING, chain, follow
from corral.store.journal import JournalBroken, JournalHead, JournalUnusable, StoredImage
from corral.store.sql.record_reader import whole_journal
from corral.store.sqlite import SqliteJournal
from corral.store.sqlite.database import FILE_NAME
from corral.store.verify import Finding, verify
from tests.store.entries import entry
from tests.store.runs import batches, entries_of, events_of_run


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("journal") / "data"
    journal = SqliteJournal(folder)
    futures = [journal.append(part) for part in batches(entries_of(events_of_run(5, 150)), 5)]
    futures[-1].result(30)
    journal.save_image(StoredImage(10, 1, b"an image"))
    journal.save_image(StoredImage(90, 1, b"a later image"))
    journal.close()
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    return copy


def test_a_whole_journal_has_no_findings(folder):
    assert verify(folder) == []


def test_it_can_be_verified_while_it_is_written(folder):
    journal = SqliteJournal(folder)
    future = journal.append([entry(n) for n in range(100)])
    assert verify(folder) == []
    future.result(10)
    assert verify(folder) == []
    journal.close()


def test_nothing_there(tmp_path):
    with pytest.raises(JournalUnusable, match="no journal"):
        verify(tmp_path)


def change(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        for statement in statements:
            connection.execute(statement)
        connection.commit()


N = "(SELECT max(seq) FROM records)"
DEEDS = {
    "a record deleted": ["DELETE FROM records WHERE seq = 57"],
    "the first record deleted": ["DELETE FROM records WHERE seq = 1"],
    "the first records deleted, and said to be archived": [
        "UPDATE anchor SET seq = 5, hash = (SELECT hash FROM records WHERE seq = 5)",
        "DELETE FROM records WHERE seq <= 5",
    ],
    "the last record deleted": [f"DELETE FROM records WHERE seq = {N}"],
    "the end cut off, and the row of the writer adjusted": [
        f"DELETE FROM records WHERE seq > {N} - 20",
        f"UPDATE writer SET seq = {N}, hash = (SELECT hash FROM records WHERE seq = {N})",
    ],
    "all records deleted, and the row of the writer adjusted": [
        "DELETE FROM records",
        "UPDATE writer SET seq = 0, hash = zeroblob(32)",
    ],
    "two records swapped": [
        "UPDATE records SET seq = -1 WHERE seq = 30",
        "UPDATE records SET seq = 30 WHERE seq = 31",
        "UPDATE records SET seq = 31 WHERE seq = -1",
    ],
    "a record inserted at the end": [
        f"INSERT INTO records SELECT seq + 1, epoch, format, 0, actor, request, body, hash FROM records WHERE seq = {N}"
    ],
    "a record inserted before all": [
        "INSERT INTO records SELECT 0, epoch, format, at_ms, actor, request, body, hash FROM records WHERE seq = 1"
    ],
    "a record inserted between": [
        "UPDATE records SET seq = -seq WHERE seq > 40",
        "INSERT INTO records SELECT 41, epoch, format, at_ms, actor, request, body, hash FROM records WHERE seq = 40",
        "UPDATE records SET seq = 1 - seq WHERE seq < 0",
    ],
    "the actor of a record": ["UPDATE records SET actor = 'eve' WHERE seq = 12"],
    "a number as a text": ["UPDATE records SET body = 'x' WHERE seq = 12"],
    "a text that is none": ["UPDATE records SET actor = CAST(x'ff' AS TEXT) WHERE seq = 12"],
    "a row of the jobs": ["UPDATE jobs SET user = 'eve' WHERE seq = (SELECT min(seq) FROM jobs)"],
    "a row of the jobs deleted": ["DELETE FROM jobs WHERE seq = (SELECT min(seq) FROM jobs)"],
    "usage": ["UPDATE usage SET gpu_ms = gpu_ms + 1"],
    "a run": ["DELETE FROM attempts WHERE attempt = 1"],
    "the row of the writer deleted": ["DELETE FROM writer"],
    "the table of records dropped": ["DROP TABLE records"],
}


@pytest.mark.parametrize("statements", DEEDS.values(), ids=DEEDS.keys())
def test_every_deed_is_found(folder, statements):
    change(folder, *statements)
    assert verify(folder)


def test_faults_are_named_one_by_one(folder):
    change(folder, "UPDATE records SET at_ms = at_ms + 1 WHERE seq IN (20, 60)", "DELETE FROM records WHERE seq = 40")
    assert [(finding.about, finding.seq) for finding in verify(folder)] == [
        ("record", 20),
        ("record", 41),
        ("record", 60),
    ]


def test_any_bit_of_any_field_of_a_record(folder):
    """Flipped one at a time, each is found at its record."""
    rng = Random(1)
    fields = ("epoch", "format", "at_ms", "actor", "request", "body", "hash")
    for _ in range(40):
        seq, field = rng.randint(1, 100), rng.choice(fields)
        with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
            (before,) = connection.execute(f"SELECT {field} FROM records WHERE seq = ?", (seq,)).fetchone()
            if before == "":
                continue
            connection.execute(f"UPDATE records SET {field} = ? WHERE seq = ?", (_flipped(before, rng), seq))
            connection.commit()
            found = verify(folder)
            assert any(finding.seq == seq for finding in found), (seq, field, found)
            connection.execute(f"UPDATE records SET {field} = ? WHERE seq = ?", (before, seq))
            connection.commit()
    assert verify(folder) == []


def _flipped(value: int | str | bytes, rng: Random) -> int | str | bytes:
    if isinstance(value, int):
        return value ^ (1 << rng.randrange(40))
    if isinstance(value, str):
        at = rng.randrange(len(value))
        return value[:at] + chr(ord(value[at]) ^ (1 << rng.randrange(6))) + value[at + 1 :]
    at = rng.randrange(len(value))
    return value[:at] + bytes([value[at] ^ (1 << rng.randrange(8))]) + value[at + 1 :]


def test_bits_of_the_file_itself(original, tmp_path):
    """A flipped bit on disk is found, or lies where nothing is kept: then everything reads as it was."""
    whole = (original / FILE_NAME).read_bytes()
    truth, rng, found = _all_of(original), Random(2), 0
    copy = tmp_path / "copy"
    shutil.copytree(original, copy)
    for _ in range(100):
        at = rng.randrange(len(whole))
        (copy / FILE_NAME).write_bytes(whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1 :])
        if verify(copy):
            found += 1
        else:
            assert _all_of(copy) == truth, f"byte {at}"
    assert found > 15, "small tables have a page each, most of it empty"


def _all_of(folder: Path) -> list[object]:
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        tables = ("records", "writer", "jobs", "attempts", "usage", "job_records")
        return [connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables]


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "the file cut short": (lambda f: _cut(f / FILE_NAME, 30_000), "database"),
    "the file overwritten": (lambda f: (f / FILE_NAME).write_bytes(b"something else entirely" * 1000), "database"),
    "the account of the end is gone": (lambda f: (f / "journal.head").unlink(), "end"),
    "the account of the end is damaged": (lambda f: _cut(f / "journal.head", 20), "end"),
    "an image is damaged": (lambda f: _cut(f / "images" / f"{90:020}.image", 60), "image"),
}


@pytest.mark.parametrize(("damage", "about"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_files(folder, damage, about):
    damage(folder)
    assert [finding.about for finding in verify(folder)][:1] == [about]


def _cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def test_an_old_copy_of_the_database_alone_is_found_and_not_written_to(folder):
    old = (folder / FILE_NAME).read_bytes()
    journal = SqliteJournal(folder)
    journal.append([entry(1)]).result(10)
    journal.close()
    (folder / FILE_NAME).write_bytes(old)
    assert [finding.about for finding in verify(folder)] == ["end"]
    with pytest.raises(JournalBroken, match=r"journal\.head names record"):
        SqliteJournal(folder)


def test_a_damaged_image_is_passed_over(folder):
    _cut(folder / "images" / f"{90:020}.image", 60)
    journal = SqliteJournal(folder)
    assert journal.newest_image() == StoredImage(10, 1, b"an image")
    journal.close()


def test_a_journal_whose_end_is_broken_is_not_written_to(folder):
    change(folder, f"DELETE FROM records WHERE seq = {N}")
    with pytest.raises(JournalBroken, match="should end with"):
        SqliteJournal(folder)


# ---- the chain -----------------------------------------------------------------------------------------------------


def test_the_chain_tells_fields_apart():
    """Moving a letter from one field to the next gives another hash."""
    one, other = entry(1, "ann", "x"), entry(1, "an", "nx")
    assert chain(BEGINNING, 1, 1, [one])[0].hash != chain(BEGINNING, 1, 1, [other])[0].hash


def test_following_stops_at_the_first_fault():
    records = chain(BEGINNING, 1, 1, [entry(n) for n in range(5)])
    assert follow(BEGINNING, records) == JournalHead(5, records[-1].hash)
    with pytest.raises(JournalBroken, match="record 3 is missing"):
        follow(BEGINNING, [*records[:2], *records[3:]])


# ---- archives ------------------------------------------------------------------------------------------------------


@pytest.fixture
def archived(folder: Path) -> Path:
    """Records 1 to 7 and 8 to 10 in archives."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        before = list(whole_journal(connection, folder))
    journal = SqliteJournal(folder)
    journal.archive(7)
    journal.archive(10)
    assert journal.read(0, 1)[0].seq == 11
    journal.append([entry(1)]).result(10)
    journal.close()
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection:
        assert list(whole_journal(connection, folder))[:-1] == before
    return folder


def test_the_chain_holds_across_archives(archived):
    assert verify(archived) == []


def test_projections_are_rebuilt_with_what_is_archived(archived):
    change(archived, "DELETE FROM jobs", "UPDATE usage SET gpu_ms = 0")
    assert verify(archived)
    journal = SqliteJournal(archived)
    journal.rebuild()
    journal.append([entry(2)]).result(10)
    journal.close()
    assert verify(archived) == []


@pytest.mark.parametrize("number", [0, 1])
def test_an_archive_that_is_missing_or_changed(archived, number):
    path = sorted((archived / "archive").iterdir())[number]
    whole = path.read_bytes()
    path.write_bytes(whole[:50] + bytes([whole[50] ^ 4]) + whole[51:])
    assert {finding.about for finding in verify(archived)} == {"archive"}
    path.write_bytes(whole[:-20])
    assert {finding.about for finding in verify(archived)} == {"archive"}
    path.unlink()
    assert {finding.about for finding in verify(archived)} == {"archive"}


def test_findings_are_values():
    assert Finding("end", "x") == Finding("end", "x", None)
