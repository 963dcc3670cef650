"""What lies in a journal already, and should not: it neither ends a server nor keeps one from starting."""

import logging
import shutil
from pathlib import Path

import pytest
from msgspec import structs

from corral.core import events as e
from corral.core.cluster.resources import Demand, Seat, TaskDemand
from corral.core.laws import check
from corral.core.model import GangSpec, JobSpec, QueueSpec, Settings
from corral.server.journal_state import IMAGE_FORMAT
from corral.server.recovery import NUMBERS_AHEAD, is_restored, load
from corral.store.backup import backup, restore
from corral.store.folder_identity import Identity, claim_identity
from corral.store.images import ImageFolder
from corral.store.journal import EPOCHS_AHEAD, Entry, JournalUnusable, StoredImage, all_records
from corral.store.memory import MemoryJournal
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


def test_a_step_that_no_column_holds_ends_no_one_and_the_next_server_starts(
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


def test_a_record_about_nothing_changes_no_row_and_ends_no_one(tmp_path: Path, caplog: pytest.LogCaptureFixture):
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


# ---- records that are elsewhere, and images that are of no use -------------------------------------------------------


def with_image(folder: Path) -> SqliteJournal:
    """A journal whose first records are in an archive, as `corral db archive` leaves it."""
    journal = SqliteJournal(folder)
    journal.append(entries(RUN[:6])).result(10)
    journal.save_image(StoredImage(6, IMAGE_FORMAT, load(journal).pack()))
    journal.append(entries([e.JobHeld(AT, "1")])).result(10)
    journal.archive(6)
    return journal


def spoil(folder: Path, how: str) -> None:
    (image,) = (folder / "images").iterdir()
    if how == "removed":
        image.unlink()
    elif how == "cut":
        image.write_bytes(image.read_bytes()[:-10])
    else:
        body = b"not what an image holds"
        number = 99 if how == "of a newer version" else IMAGE_FORMAT
        ImageFolder(folder / "images").save(StoredImage(6, number, body))


@pytest.mark.parametrize("how", ["removed", "cut", "of a newer version", "of something else"])
def test_without_a_usable_image_the_archive_tells_what_was(tmp_path: Path, how: str):
    """The server began empty, and said nothing."""
    journal = with_image(tmp_path)
    try:
        spoil(tmp_path, how)
        known = load(journal)
        assert known.state.jobs["1"].held
        assert known.state.gangs["1/main"].seats
    finally:
        journal.close()


def test_without_image_and_archive_no_onestarts_and_the_message_says_what_to_do(tmp_path: Path):
    journal = with_image(tmp_path)
    try:
        spoil(tmp_path, "removed")
        (archive,) = (tmp_path / "archive").iterdir()
        archive.rename(tmp_path / "elsewhere")
        with pytest.raises(JournalUnusable, match=r"Put the archive back .* or restore a backup"):
            load(journal)
    finally:
        journal.close()


def test_images_of_another_journal_are_not_taken_for_those_of_a_restored_one(tmp_path: Path):
    with_image(tmp_path / "old").close()
    backup(tmp_path / "old", tmp_path / "file.jsonl")
    target = tmp_path / "new"
    ImageFolder(target / "images").save(StoredImage(3, IMAGE_FORMAT, b"of a journal that was here before"))
    restore(tmp_path / "file.jsonl", target)
    assert list((target / "images").iterdir()) == []


# ---- records that cannot be read or applied --------------------------------------------------------------------------


def test_a_record_of_a_newer_version_keeps_the_server_from_starting_with_a_word(tmp_path: Path):
    journal = SqliteJournal(tmp_path)
    try:
        journal.append([*entries(RUN[:3]), Entry(AT, "world", b'{"type":"TimeStopped","at_ms":1}')]).result(10)
        with pytest.raises(JournalUnusable, match=r"record 4 .*TimeStopped.* Use the version"):
            load(journal)
    finally:
        journal.close()


def test_a_record_that_does_not_follow_is_left_out_and_the_rest_holds():
    journal = MemoryJournal()
    journal.append(entries([*RUN[:6], e.GangStarted(AT, "9/main", 1), e.JobHeld(AT, "1")]))
    known = load(journal)
    assert known.left_out == (7,)
    assert known.state.jobs["1"].held
    check(known.state)


def test_where_too_much_does_not_follow_no_onestarts():
    journal = MemoryJournal()
    journal.append(entries([*RUN[:4], *[e.GangStarted(AT, "9/main", n) for n in range(20)]]))
    with pytest.raises(JournalUnusable, match="restore a backup"):
        load(journal)


# ---- copies ----------------------------------------------------------------------------------------------------------


def test_a_copied_folder_is_another_server_and_shares_no_epoch_with_its_original(tmp_path: Path):
    first = SqliteJournal(tmp_path / "one")
    first.append(entries(RUN[:4])).result(10)
    first.close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    again, copy = SqliteJournal(tmp_path / "one"), SqliteJournal(tmp_path / "two")
    try:
        assert again.epoch == 2
        assert copy.epoch == 1 + EPOCHS_AHEAD
        assert not is_restored(again)
        assert is_restored(copy)
    finally:
        again.close()
        copy.close()
    assert claim_identity(tmp_path / "one").id != claim_identity(tmp_path / "two").id
    once_more = SqliteJournal(tmp_path / "two")
    assert once_more.epoch == 2 + EPOCHS_AHEAD, "it is a copy once"
    once_more.close()


def test_a_folder_with_an_id_of_an_earlier_version_keeps_it(tmp_path: Path):
    (tmp_path / "server-id").write_text("abc\n")
    assert claim_identity(tmp_path) == claim_identity(tmp_path) == Identity("abc", False)


def test_numbers_of_jobs_go_on_behind_those_that_a_restored_journal_may_have_forgotten(tmp_path: Path):
    journal = SqliteJournal(tmp_path / "old")
    journal.append(entries(RUN[:4])).result(10)
    journal.close()
    backup(tmp_path / "old", tmp_path / "file.jsonl")
    restore(tmp_path / "file.jsonl", tmp_path / "new")
    journal = SqliteJournal(tmp_path / "new")
    assert is_restored(journal)
    journal.append(entries([e.JobHeld(AT, "1")])).result(10)
    journal.close()
    journal = SqliteJournal(tmp_path / "new")
    try:
        assert not is_restored(journal)
        state = load(journal).state
        assert state.next_job == 2 * NUMBERS_AHEAD, "also when the first server after it gave no number away"
        submitted = RUN[3]
        assert isinstance(submitted, e.JobSubmitted)
        journal.append(entries([structs.replace(submitted, job=str(state.next_job))])).result(10)
        assert load(journal).state.next_job == 2 * NUMBERS_AHEAD + 1
    finally:
        journal.close()
