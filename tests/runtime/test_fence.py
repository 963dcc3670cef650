"""The highest epoch is kept on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.runtime.base import StaleEpoch
from corral.runtime.fence import Fence


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
