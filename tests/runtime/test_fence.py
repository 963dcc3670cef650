"""The highest epoch is kept on disk, and waits between attempts grow up to a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from corral.runtime.backoff import Backoff
from corral.runtime.base import StaleEpoch
from corral.runtime.fence import Fence
from corral.runtime.local.task import records


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


def test_waits_double_up_to_the_longest_and_start_again_after_a_success() -> None:
    backoff = Backoff(lambda: 1.0, 0.1, 5.0)
    waits = [round(backoff.failed(), 3) for _ in range(8)]
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    backoff.succeeded()
    assert backoff.failed() == 0.1


def test_a_wait_is_from_half_to_all_of_the_step() -> None:
    assert [Backoff(lambda chance=chance: chance).failed() for chance in (0.0, 1.0)] == [0.05, 0.1]  # type: ignore[misc]


def test_a_file_is_replaced_as_a_whole_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    records.write_whole(str(path), b"old", mode=0o640, suffix=".7.new")
    records.write_durable(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
