"""What tasks may keep on a disk: logs leave some of it free, private directories have a quota."""

import os
from pathlib import Path

import pytest

from corral.backends.base import TaskKey
from corral.backends.local.quota import ScratchQuota
from corral.backends.local.task import streams
from corral.backends.local.task.streams import Stream
from tests.backends.local_ground import Ground

MIB = 1 << 20


def test_logs_leave_the_last_of_the_disk_to_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ten tasks that wrote 300 MB each filled the disk of a server, and its journal failed."""
    stream = Stream(str(tmp_path / "log"), "stdout", 64 * MIB)
    stream.keep(b"a" * MIB)
    monkeypatch.setattr(streams, "has_room", lambda _: False)
    for _ in range(100):
        stream.keep(b"b" * MIB)
    kept = sum(file.stat().st_size for file in (tmp_path / "log").iterdir())
    assert kept <= (1 + streams.CHECK_BYTES // MIB) * MIB, "at most what was under way when it was noticed"
    monkeypatch.setattr(streams, "has_room", lambda _: True)
    monkeypatch.setattr(stream, "_retry_at", 0.0)
    stream.keep(b"c" * 10)
    assert b"bytes of stdout were lost here" in stream.tail(1_000)
    os.close(stream.sink)
    stream.drain()


def test_whoever_keeps_too_much_is_told_then_ended(tmp_path: Path):
    small, large = TaskKey("1/main", 1, 0), TaskKey("2/main", 1, 0)
    folders = {small: str(tmp_path / "small"), large: str(tmp_path / "large")}
    for folder in folders.values():
        Path(folder, "deep").mkdir(parents=True)
    said: list[tuple[TaskKey, str]] = []
    ended: list[tuple[TaskKey, str]] = []
    quota = ScratchQuota(
        8 * MIB, lambda: folders, lambda key, text: said.append((key, text)), lambda key, why: ended.append((key, why))
    )
    Path(folders[small], "deep", "file").write_bytes(os.urandom(MIB))
    quota.look()
    assert said == []
    Path(folders[large], "deep", "file").write_bytes(os.urandom(12 * MIB))
    quota.look()
    assert {key for key, _ in said} == {small, large}
    assert ended == [], "first they are told"
    quota.look()
    assert [key for key, _ in ended] == [large], "the one that has most"
    Path(folders[large], "deep", "file").unlink()
    quota.look()
    Path(folders[large], "deep", "file").write_bytes(os.urandom(12 * MIB))
    said.clear()
    quota.look()
    assert said, "told again before anything is ended again"


def test_links_out_of_the_folder_are_not_counted_and_missing_folders_are_nobodys(tmp_path: Path):
    (tmp_path / "task").mkdir()
    (tmp_path / "big").write_bytes(os.urandom(4 * MIB))
    (tmp_path / "task" / "link").symlink_to(tmp_path / "big")
    (tmp_path / "task" / "up").symlink_to(tmp_path)
    ended: list[object] = []
    tasks = {TaskKey("1/main", 1, 0): str(tmp_path / "task"), TaskKey("2/main", 1, 0): str(tmp_path / "nowhere")}
    quota = ScratchQuota(MIB, lambda: tasks, lambda *_: None, lambda *said: ended.append(said))
    quota.look()
    quota.look()
    assert ended == []


def test_a_task_that_fills_its_private_directory_is_ended_and_its_log_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from corral.backends.local import quota

    monkeypatch.setattr(quota, "_LOOK_S", 0.3)
    ground = Ground(tmp_path, scratch_mib_max=4)
    try:
        key = ground.sh("head -c 20000000 /dev/urandom > $TMPDIR/x; sleep 60")
        down = ground.ear.down(key)
        assert down.exit_code == 137
        assert "scratch quota exceeded" in down.why
        assert "this task has most of it and is ended" in ground.log(key, "stderr")
    finally:
        ground.backend.close()
