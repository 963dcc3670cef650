"""What tasks may keep on a disk: logs leave some of it free, private directories and logs of a user have a quota."""

import contextlib
import os
import time
from pathlib import Path
from typing import Any

import pytest

from corral.runtime.base import TaskKey
from corral.runtime.local import backend
from corral.runtime.local.log_quota import fair_share
from corral.runtime.local.logs import LogStore
from corral.runtime.local.scratch_quota import ScratchQuota
from corral.runtime.local.state_dir import name_of
from corral.runtime.local.task import streams
from corral.runtime.local.task.streams import USER, Stream
from tests.runtime.local_backend import Harness
from tests.runtime.reports import until

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


def test_who_keeps_too_much_is_reported_then_ended(tmp_path: Path):
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
    assert ended == [], "first they are warned"
    quota.look()
    assert [key for key, _ in ended] == [large], "the one that has most"
    Path(folders[large], "deep", "file").unlink()
    quota.look()
    Path(folders[large], "deep", "file").write_bytes(os.urandom(12 * MIB))
    said.clear()
    quota.look()
    assert said, "warned again before anything is ended again"


def test_links_out_of_the_folder_are_not_counted_and_missing_folders_are_no_ones(tmp_path: Path):
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
    from corral.runtime.local import scratch_quota

    monkeypatch.setattr(scratch_quota, "_LOOK_S", 0.3)
    harness = Harness(tmp_path, scratch_mib_max=4)
    try:
        key = harness.sh("head -c 20000000 /dev/urandom > $TMPDIR/x; sleep 60")
        down = harness.collector.down(key)
        assert down.exit_code == 137
        assert "scratch quota exceeded" in down.why
        assert "this task uses most of it and is killed" in harness.log(key, "stderr")
    finally:
        harness.backend.close()


# --- kept logs ------------------------------------------------------------------------------------------------------


def _keep(store: LogStore, name: str, user: str, size: int, age_s: float) -> Path:
    folder = Path(store.folder(name))
    folder.mkdir(parents=True)
    (folder / "stdout.0000000000000000").write_bytes(b"x" * size)
    (folder / USER).write_text(user)
    for file in folder.iterdir():
        os.utime(file, (time.time() - age_s,) * 2)
    return folder


def _rounds(store: LogStore, count: int, **bounds: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for _ in range(256 * count):
        found |= store.prune(30 * 86_400_000, **bounds)
    return found


def test_who_writes_endless_output_takes_no_other_users_logs(tmp_path: Path):
    store = LogStore(tmp_path)
    loud = [_keep(store, f"loud-{n}", "loud", 1_000, 60 + n) for n in range(100)]
    quiet = [_keep(store, f"quiet-{n}", "quiet", 1_000, 20 * 86_400 + n) for n in range(10)]
    _rounds(store, 2, bytes_max=50_000)
    assert all(folder.exists() for folder in quiet), "less than a fair share"
    left = sum(folder.exists() for folder in loud)
    assert 35 <= left <= 40, "the rest, and no more than that is lost"


def test_of_a_user_with_too_many_logs_the_oldest_go_first(tmp_path: Path):
    store = LogStore(tmp_path)
    ages = [60 * 2**n for n in range(12)]
    folders = [_keep(store, f"task-{n}", "ann", 1_000, age) for n, age in enumerate(ages)]
    other = _keep(store, "other", "ben", 4_000, 86_400)
    _rounds(store, 2, bytes_max=1 << 30, user_bytes_max=5_000)
    assert [folder.exists() for folder in folders] == [True] * 4 + [False] * 8
    assert other.exists()
    _rounds(store, 3, bytes_max=1 << 30, user_bytes_max=5_000)
    assert [folder.exists() for folder in folders] == [True] * 4 + [False] * 8, "nothing goes that fits"


def test_logs_of_tasks_that_run_stay_and_are_reported_how_much_they_may_keep(tmp_path: Path):
    store = LogStore(tmp_path)
    folders = [_keep(store, name, "ann", 10_000, 0) for name in ("a", "b", "done")]
    limits = _rounds(store, 2, bytes_max=1 << 30, user_bytes_max=8_000, is_live=lambda name: name != "done")
    assert limits == {"a": 4_000, "b": 4_000}
    assert [folder.exists() for folder in folders] == [True, True, False]


@pytest.mark.parametrize(
    ("sizes", "total", "share"), [([], 10, 10), ([1, 2, 3], 10, 10), ([1, 50], 10, 9), ([50, 50, 2], 10, 4)]
)
def test_who_keeps_less_leaves_the_rest_to_the_others(sizes: list[int], total: int, share: int):
    assert fair_share(sizes, total) == share


def test_a_running_task_of_a_user_with_too_many_logs_keeps_the_last_of_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(backend, "_PRUNE_S", 0.001)
    harness = Harness(tmp_path / "data", log_user_mib=1)
    endless = "while :; do head -c 65536 /dev/zero | tr '\\0' x; echo; sleep 0.05; done"
    try:
        key = harness.sh(endless, env=(("CORRAL_USER", "loud"),))
        quiet = harness.sh("echo hello", env=(("CORRAL_USER", "quiet"),))
        harness.collector.down(quiet)
        until(lambda: "exceed the limit for one user" in harness.log(key) + _all(harness, key))
        folder = Path(harness.backend._logs.folder(name_of(key)))
        until(lambda: _size(folder) <= 3 * MIB)
        for _ in range(20):
            assert _size(folder) <= 3 * MIB
            time.sleep(0.05)
        assert harness.log(quiet) == "hello\n"
        harness.backend.kill(key)
        harness.collector.down(key)
    finally:
        harness.close()


def _size(folder: Path) -> int:
    total = 0
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def _all(harness: Harness, key: TaskKey) -> str:
    found = ""
    for file in sorted(Path(harness.backend._logs.folder(name_of(key))).glob("stdout.*")):
        with contextlib.suppress(FileNotFoundError):
            found += file.read_text()
    return found
