"""A run: who may write, what exists after an interrupted save, what is removed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from corral.checkpoints.copying import copy, copy_new, newest_store
from corral.checkpoints.keep_rules import KeepRules
from corral.checkpoints.manifest import Damaged, decode, encode
from corral.checkpoints.run_log import Fenced
from corral.checkpoints.run_store import RunStore, runs_in
from corral.checkpoints.storage import DirectoryStorage, MemoryStorage
from tests.checkpoints.written import origin, restore, save, steps


@pytest.fixture
def store() -> RunStore:
    return RunStore(MemoryStorage(), "r")


def again(store: RunStore) -> RunStore:
    """As another process sees it."""
    return RunStore(store.storage, store.run)


def test_the_newest_checkpoint_is_restored(store: RunStore):
    writer = store.open(origin(1))
    save(store, writer, 10)
    save(store, writer, 20)
    found = restore(again(store))
    assert found is not None
    assert found[0].step == 20


def test_newest_is_by_commit_and_not_by_step(store: RunStore):
    save(store, store.open(origin(1)), 200)
    save(store, store.open(origin(2)), 150)  # attempt 2 went back to an earlier step
    assert steps(store.state().usable()) == [150, 200]


def test_an_attempt_that_was_replaced_cannot_commit(store: RunStore):
    old = again(store)
    first = old.open(origin(1))
    store.open(origin(2))
    with pytest.raises(Fenced, match="attempt 2 of job 7 has taken over this run from attempt 1 of job 7"):
        save(old, first, 10)
    assert restore(again(store)) is None


def test_an_attempt_that_was_replaced_cannot_open(store: RunStore):
    store.open(origin(2))
    with pytest.raises(Fenced, match="attempt 2 of job 7 writes this run; this is attempt 1 of job 7"):
        again(store).open(origin(1))


def test_a_successor_that_opens_between_the_check_and_the_commit_wins(store: RunStore):
    class Slow(MemoryStorage):
        """The successor opens the run when the entry of the commit is about to be created."""

        def create(self, name: str, content: bytes) -> bool:
            if name.endswith("/log/0000000002.json") and b"saved" in content:
                quick = MemoryStorage()
                quick.objects = self.objects
                RunStore(quick, "r").open(origin(2))
            return super().create(name, content)

    slow = RunStore(Slow(), "r")
    first = slow.open(origin(1))
    with pytest.raises(Fenced):
        save(slow, first, 10)
    assert not slow.state().checkpoints


def test_a_later_job_may_continue_a_run_and_an_earlier_one_may_not(store: RunStore):
    save(store, store.open(origin(3, job=7)), 10)
    save(store, store.open(origin(1, job=9)), 20)
    with pytest.raises(Fenced, match="attempt 1 of job 9 writes this run"):
        store.open(origin(4, job=7))


def test_a_process_outside_corral_takes_over(store: RunStore):
    store.open(origin(3))
    by_hand = replace(origin(0), job="")
    save(store, store.open(by_hand), 10)
    assert steps(store.state().usable()) == [10]


def test_unchanged_pieces_are_stored_once(store: RunStore):
    writer = store.open(origin(1))
    first, manifest = save(store, writer, 1)
    second, _ = save(store, writer, 2, base=(first.number, manifest))
    assert (first.size, first.new) == (256, 256)
    assert (second.size, second.new) == (256, 128)


def test_packs_of_a_removed_checkpoint_stay_while_another_uses_them(store: RunStore):
    writer = store.open(origin(1))
    first, manifest = save(store, writer, 1)
    save(store, writer, 2, base=(first.number, manifest))
    store.prune(KeepRules(last=1))
    assert steps(store.state().usable()) == [2]
    assert restore(again(store)) is not None


def test_a_save_whose_base_was_removed_meanwhile_is_refused(store: RunStore):
    writer = store.open(origin(1))
    first, manifest = save(store, writer, 1)
    save(store, writer, 2)
    again(store).prune(KeepRules(last=1))
    with pytest.raises(Damaged, match="removed meanwhile"):
        save(store, writer, 3, base=(first.number, manifest))
    assert restore(again(store)) is not None


def test_removing_leaves_nothing_behind(store: RunStore):
    writer = store.open(origin(1))
    for step in (1, 2, 3):
        save(store, writer, step)
    store.prune(KeepRules(last=1))
    kept = [name for name in store.storage.names("r/packs") if "-0000000000000003-" in name]
    assert len(store.storage.names("r/packs")) == len(kept) == 2
    assert len(store.storage.names("r/manifests")) == 1


def test_what_an_interrupted_save_has_left_is_removed_by_the_next_writer(store: RunStore):
    writer = store.open(origin(1))
    save(store, writer, 1)
    store.write_pack("0000000001-0000000000000002-000000-0000-00000000.pack", [b"half"])
    assert store.clean(writer.number) == 0  # it may be in progress
    assert store.clean(store.open(origin(2)).number) == 1
    assert restore(again(store)) is not None


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (KeepRules(last=2), [7, 8]),
        (KeepRules(last=1, every=4), [4, 8]),
        (KeepRules(last=1, best=2, metric="loss"), [2, 3, 8]),
        (KeepRules(last=1, best=1, metric="loss", highest=True), [1, 8]),
        (KeepRules(), [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_which_checkpoints_are_kept(store: RunStore, keep: KeepRules, kept: list[int]):
    writer = store.open(origin(1))
    losses = [9.0, 1.0, 2.0, 3.0, 4.0, float("nan"), 6.0, 7.0]
    for step, loss in enumerate(losses, start=1):
        save(store, writer, step, metrics={"loss": loss})
    store.prune(keep)
    assert sorted(steps(store.state().usable())) == kept


def test_rules_without_meaning_are_refused():
    with pytest.raises(ValueError, match="give their number and the metric"):
        KeepRules(best=2)


def test_a_manifest_that_contradicts_itself_is_damaged(store: RunStore):
    import hashlib

    _, manifest = save(store, store.open(origin(1)), 1)
    for wrong in (
        replace(manifest, pieces=manifest.pieces[1:]),
        replace(manifest, pieces=(replace(manifest.pieces[0], offset=1 << 40), *manifest.pieces[1:])),
        replace(manifest, pieces=(replace(manifest.pieces[0], place=(1 << 40,)), *manifest.pieces[1:])),
        replace(manifest, packs={"../../etc/passwd": 1}),
        replace(manifest, step=-1),
    ):
        content = encode(wrong)
        with pytest.raises(Damaged):
            decode(content, hashlib.sha256(content).hexdigest())
    assert decode(encode(manifest), hashlib.sha256(encode(manifest)).hexdigest()) == manifest


def test_lineage(store: RunStore):
    checkpoint, _ = save(store, store.open(origin(1)), 5)
    store.note_used(checkpoint, "other", origin(2, job=9))
    found = again(store).state().checkpoints[checkpoint.number]
    assert [(use.run, use.job, use.attempt) for use in found.uses] == [("other", "9", 2)]


def test_a_copy_is_complete_and_stores_what_is_new(store: RunStore, tmp_path: Path):
    writer = store.open(origin(1))
    first, manifest = save(store, writer, 1)
    second, _ = save(store, writer, 2, base=(first.number, manifest))
    target = RunStore(DirectoryStorage(tmp_path), "copies")
    assert copy(store, first, target).new == 256
    assert copy(store, second, target).new == 128
    assert [each.run for each in runs_in(target.storage)] == ["copies"]
    found = restore(again(target))
    assert found is not None
    assert found[1].origin == origin(1)


def test_new_checkpoints_are_copied_once_and_in_order(store: RunStore, tmp_path: Path):
    writer = store.open(origin(1))
    target = RunStore(DirectoryStorage(tmp_path), "r")
    for step in (1, 2):
        save(store, writer, step)
    assert steps(copy_new(store, target)) == [1, 2]
    save(store, store.open(origin(2)), 2)  # the next attempt went back, and saved the same step
    assert steps(copy_new(again(store), again(target))) == [2]
    assert copy_new(again(store), again(target)) == []
    found = restore(again(target))
    assert found is not None
    assert found[1].origin.attempt == 2


def test_the_store_with_the_newest_checkpoint_is_chosen(store: RunStore, tmp_path: Path):
    target = RunStore(DirectoryStorage(tmp_path), "r")
    assert newest_store([store, target]) is store
    save(store, store.open(origin(1)), 1)
    copy_new(store, target)
    assert newest_store([store, target]) is store
    for found in store.state().usable():
        store.note_damaged(found, "lost")
    assert newest_store([store, target]) is target
    save(store, store.open(origin(2)), 1)
    assert newest_store([store, target]) is store


def test_a_damaged_checkpoint_is_not_copied(store: RunStore, tmp_path: Path):
    checkpoint, manifest = save(store, store.open(origin(1)), 1)
    assert isinstance(store.storage, MemoryStorage)
    store.storage.objects[f"r/packs/{manifest.pieces[0].pack}"] = b"x" * 128
    with pytest.raises(Damaged):
        copy(store, checkpoint, RunStore(DirectoryStorage(tmp_path), "copies"))
    assert not RunStore(DirectoryStorage(tmp_path), "copies").state().checkpoints


@pytest.mark.parametrize("name", ["", ".", "../up", "a/b", "x" * 129])
def test_names_of_runs_are_checked(name: str):
    with pytest.raises(ValueError, match="is no name of a run"):
        RunStore(MemoryStorage(), name)
