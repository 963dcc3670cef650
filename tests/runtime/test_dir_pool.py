"""Directories of tasks that are over serve the next ones; nothing of one task may reach another by that."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from corral.runtime.base import TaskKey
from corral.runtime.local.dir_pool import DirPool
from corral.runtime.local.state_dir import TaskState
from corral.runtime.local.task import records
from tests.runtime.local_backend import Harness
from tests.runtime.reports import until as until_within

SLOW_DISK_S = 90.0  # a supervisor makes the exit durable before it is free


def until(is_so: Callable[[], bool]) -> None:
    until_within(is_so, SLOW_DISK_S)


def forgotten(harness: Harness, key: TaskKey) -> None:
    """Once no process uses it any more: then its directory is kept."""
    harness.collector.down(key)
    until(lambda: not TaskState(str(harness.state(key))).is_supervised())
    harness.backend.forget(key)
    until(lambda: not harness.state(key).exists())


def blanks(harness: Harness) -> list[Path]:
    return list((harness.data / "tasks" / "blank").iterdir())


def test_the_directory_of_a_task_that_is_over_serves_the_next(harness: Harness):
    first = harness.launch("false")
    harness.collector.down(first)
    inode = os.stat(harness.state(first)).st_ino
    forgotten(harness, first)
    until(lambda: len(blanks(harness)) == 1)
    second = harness.launch("true")
    assert harness.collector.down(second).exit_code == 0
    assert os.stat(harness.state(second)).st_ino == inode
    assert not blanks(harness)
    assert harness.ordered(second).order.key == second


def test_what_no_one_is_at_any_more_is_cleared_at_once_so_that_it_does_not_outlive_a_server_that_is_killed_soon(
    tmp_path: Path,
):
    harness = Harness(tmp_path, scan_ms=600_000)
    key = harness.launch("true")
    harness.collector.down(key)
    until(lambda: not TaskState(str(harness.state(key))).is_supervised())
    harness.backend.forget(key)
    until(lambda: len(blanks(harness)) == 1)
    assert not harness.state(key).exists()
    harness.close()


def test_blank_ones_are_used_after_a_restart_and_what_was_left_half_way_is_no_task(harness: Harness):
    first, second = harness.launch("true"), harness.launch("true")
    forgotten(harness, first)
    harness.collector.down(second)
    until(lambda: len(blanks(harness)) == 1)
    harness.backend.close()
    records.make_blank(str(harness.state(second)))  # and then the server was killed
    harness.open()
    assert second not in harness.backend.known()
    assert not harness.state(second).exists()
    third = harness.launch("true")
    assert harness.collector.down(third).exit_code == 0
    assert not blanks(harness)


def test_an_order_that_comes_again_does_not_take_the_place_of_the_task(tmp_path: Path):
    blank, state = tmp_path / "blank", tmp_path / "state"
    blank.mkdir()
    os.mkfifo(blank / records.CONTROL)
    assert records.make_state(str(state), str(blank))
    records.begin(str(state), b"{}")
    assert not records.make_state(str(state), str(blank)), "it has been moved already"
    blank.mkdir()
    assert not records.make_state(str(state), str(blank)), "another one would be moved over it"
    assert blank.exists()


@pytest.mark.parametrize("done", ["mkdir", "mkfifo", "moved"])
def test_what_a_spawner_left_half_made_is_finished_by_the_next(tmp_path: Path, done: str):
    state = tmp_path / "state"
    state.mkdir()
    if done != "mkdir":
        os.mkfifo(state / records.CONTROL)
    if done == "moved":
        (state / records.RECORD).write_bytes(b"\n")
    assert records.make_state(str(state), "")
    records.begin(str(state), b"{}")
    assert {path.name for path in state.iterdir()} == {records.CONTROL, records.RECORD}
    assert not records.make_state(str(state), "")


def test_only_what_looks_as_it_was_made_is_kept(tmp_path: Path):
    kept = DirPool(str(tmp_path / "blank"))
    for name, extra in (("with-steps", records.STEP), ("with-a-stranger", "x")):
        state = _state(tmp_path, name)
        Path(state.folder, extra).touch()
        assert not kept.keep(state)
    assert not kept.keep(TaskState(str(tmp_path / "gone")))
    assert kept.keep(_state(tmp_path, "plain"))
    assert TaskState(kept.take()).record().exit() is None
    assert kept.take() == ""


def test_there_is_an_end_to_how_many_are_kept(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("corral.runtime.local.dir_pool._KEPT_MAX", 2)
    kept = DirPool(str(tmp_path / "blank"))
    assert [kept.keep(_state(tmp_path, str(n))) for n in range(3)] == [True, True, False]


def _state(place: Path, name: str) -> TaskState:
    folder = str(place / name)
    assert records.make_state(folder, "")
    records.begin(folder, b"{}")
    records.add(folder, records.EXIT, b'{"at_ms": 1, "exit_code": 3}')
    return TaskState(folder)


# --- private directories --------------------------------------------------------------------------------------------


SHOW = "stat -c %i $TMPDIR; stat -c %a $TMPDIR; ls -A $TMPDIR $TMPDIR/.. | wc -l; echo $TMPDIR"


def test_a_private_directory_that_nothing_was_put_into_serves_the_next_task_under_another_name(harness: Harness):
    """Of the same supervisor: while that is not ready again, another one runs the next task."""
    place = Path(harness.backend._site.scratch)
    seen: dict[tuple[str, ...], set[str]] = {}  # inode, mode and links -> paths
    for _ in range(10):
        *same, path = harness.ran(SHOW)[1].split()
        seen.setdefault(tuple(same), set()).add(path)
        until(lambda: all(entry.name.startswith("blank-") for entry in place.iterdir()))
    assert any(len(paths) > 1 for paths in seen.values()), seen


@pytest.mark.parametrize(
    "mischief",
    ["touch $TMPDIR/x", "touch $TMPDIR/../x", "chmod 755 $TMPDIR", "chmod 755 $TMPDIR/..", "rmdir $TMPDIR",
     "rmdir $TMPDIR; ln -s / $TMPDIR", "mkdir -p $TMPDIR/a/b"],
)  # fmt: skip
def test_what_a_task_does_to_its_private_directory_does_not_reach_the_next(harness: Harness, mischief: str):
    _, *before = harness.ran(SHOW)[1].split()
    harness.ran(mischief)
    _, *after = harness.ran(SHOW)[1].split()
    assert after[:2] == before[:2] == ["700", before[1]]
    assert Path("/bin").exists()


@pytest.mark.parametrize("part", ["blank-*/tmp", "blank-*"])
def test_who_cleans_up_temporary_directories_does_no_harm(harness: Harness, part: str):
    harness.ran("true")
    place = Path(harness.backend._site.scratch)
    until(lambda: any(place.glob("blank-*/tmp")))
    for path in place.glob(part):
        shutil.rmtree(path)
    assert harness.ran("touch $TMPDIR/x && echo fine")[1] == "fine\n"


def test_supervisors_take_their_empty_directories_with_them(harness: Harness):
    harness.ran("true")
    place = Path(harness.backend._site.scratch)
    until(lambda: [entry.name[:6] for entry in place.iterdir()] == ["blank-"])
    harness.backend.close()  # waits for them, but on a busy machine not for ever; then the place stays, empty
    until(lambda: not place.exists() or not any(place.iterdir()))
    harness.open()
