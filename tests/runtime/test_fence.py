"""The highest epoch is kept on disk, and attempts do not overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.runtime.base import StaleEpoch, TaskKey
from corral.runtime.fence import Fence, earlier_attempts, refuse_stale
from tests.runtime.reports import order


def test_an_earlier_epoch_is_refused_also_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "below" / "epoch"
    fence = Fence(path)
    fence.pass_through(3)
    fence.pass_through(3)
    again = Fence(path)
    with pytest.raises(StaleEpoch):
        again.pass_through(2)
    assert (again.epoch, path.read_bytes()) == (3, b"3\n")


def test_a_later_epoch_of_another_process_is_seen(tmp_path: Path) -> None:
    ours, theirs = Fence(tmp_path / "epoch"), Fence(tmp_path / "epoch")
    ours.pass_through(1)
    theirs.pass_through(2)
    assert (ours.epoch, ours.stored()) == (1, 2)


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "epoch").write_bytes(b"x")
    assert Fence(tmp_path / "epoch").epoch == 0


def test_no_order_is_executed_if_one_is_of_an_earlier_server() -> None:
    new, old = order(TaskKey("7/main", 2, 0), "true", epoch=3), order(TaskKey("7/main", 2, 1), "true", epoch=2)
    refuse_stale([new], 3)
    with pytest.raises(StaleEpoch):
        refuse_stale([new, old], 3)


def test_earlier_attempts_of_the_same_gang_must_have_ended() -> None:
    key = TaskKey("7/main", 3, 0)
    before = [TaskKey("7/main", 1, 4), TaskKey("7/main", 2, 0)]
    others = [key, TaskKey("7/main", 3, 1), TaskKey("7/main", 4, 0), TaskKey("8/main", 1, 0), TaskKey("7/side", 2, 0)]
    assert earlier_attempts(key, [*others, *before]) == before
