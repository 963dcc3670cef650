"""The files of tasks, one by one: records, logs and their segments, steps, names; groups of a version 2 machine."""

import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.runtime.base import TaskKey
from corral.runtime.local import spawner_client
from corral.runtime.local.activity.rank_files import read_paces
from corral.runtime.local.cleanup import make_scratch_root, remove_deserted
from corral.runtime.local.logs import LogStore
from corral.runtime.local.spawner_client import LIGHT_IMPORT
from corral.runtime.local.state_dir import ExitRecord, StartRecord, TaskState, name_of
from corral.runtime.local.task import cgroups, records
from corral.runtime.local.task.classify import symptom
from corral.runtime.local.task.scratch import Scratch, last_saved
from corral.runtime.local.task.streams import EMPTY, OVER, Stream
from tests.runtime.local_backend import IS_ROOT

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(
    st.dictionaries(TEXT, TEXT | st.integers() | st.booleans() | st.none() | st.lists(st.integers()) | st.lists(TEXT))
)
def test_records_are_json(record):
    assert json.loads(records.to_json(record)) == record


def test_the_tasks_side_loads_nothing_heavy():
    code = LIGHT_IMPORT + "import corral.runtime.local.task.spawner; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code, str(Path(spawner_client.__file__).parents[2])]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    # job steps need sockets and JSON: loaded once by the spawner, and shared by the supervisors that it forks
    heavy = {"msgspec", "typing", "subprocess", "contextlib", "signal", "logging", "asyncio", "ssl"}
    assert "corral.runtime.local.task.supervisor" in loaded
    assert not loaded & heavy


@given(st.lists(st.builds(TaskKey, TEXT, st.integers(1, 30), st.integers(0, 30)), unique=True))
def test_names_are_different_and_fit_for_files(keys):
    names = {name_of(key) for key in keys}
    assert len(names) == len(keys)
    assert all("/" not in name and "\n" not in name and 0 < len(name.encode()) <= 200 for name in names)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        (b"", None),
        (b'{"step": 1}\n{"step": 2}\n', 2),
        (b'{"step": 1}\n{"step": 2', 1),
        (b'{"step": 1}\nnoise\n[]\n{"loss": 3}\n{"step": "x"}\n{"step": true}\n{"step": -1}\n', 1),
        (b"\xff\xfe\n", None),
    ],
)
def test_the_last_step_is_that_of_the_last_whole_line(text, step):
    saved = last_saved(text)
    assert (None if saved is None else saved["step"]) == step


def test_symptoms_are_reported_with_the_phrase_that_was_found():
    assert symptom(b"...\nRuntimeError: HIP out of memory.")[0] == "out_of_memory"
    assert symptom(b"all is well") == (None, "")


# --- logs -----------------------------------------------------------------------------------------------------------


def written(folder: Path, *pieces: bytes, bytes_max: int = 1 << 20) -> Stream:
    stream = Stream(str(folder), "stdout", bytes_max)
    for piece in pieces:
        os.write(stream.sink, piece)
        while stream.pump() != EMPTY:
            pass
    return stream


def test_a_stream_without_a_byte_makes_no_file(tmp_path: Path):
    stream = written(tmp_path / "logs")
    os.close(stream.sink)
    assert stream.pump() == OVER
    stream.drain()
    assert not (tmp_path / "logs").exists()


def test_segments_begin_where_the_one_before_ended(tmp_path: Path):
    stream = written(tmp_path, *[bytes([n]) * 40_000 for n in range(10)], bytes_max=1 << 18)
    os.close(stream.sink)
    stream.drain()
    starts = sorted(int(path.name.split(".")[1]) for path in tmp_path.iterdir())
    assert starts[-1] > 0
    for start, following in pairwise(starts):
        assert start + (tmp_path / f"stdout.{start:016d}").stat().st_size == following
    assert stream.tail(10) == b"\x09" * 10
    assert len(stream.tail(100_000)) >= 100_000


def test_a_gap_left_by_a_full_disk_is_skipped(tmp_path: Path):
    store = LogStore(tmp_path)
    folder = Path(store.folder("t"))
    folder.mkdir(parents=True)
    (folder / "stdout.0000000000000000").write_bytes(b"abc")
    (folder / "stdout.0000000000000099").touch()  # begun, and nothing could be written
    (folder / "stdout.0000000000000100").write_bytes(b"xyz")

    def read(offset: int):
        part = store.read("t", "stdout", offset, 10, lambda: True, True)
        assert part is not None
        return part.offset, part.data, part.is_over

    assert read(0) == (0, b"abc", False)
    assert read(3) == (100, b"xyz", True)
    assert read(50) == (100, b"xyz", True)
    assert read(-1) == (102, b"z", True)
    assert read(-20) == (100, b"xyz", True)


def test_logs_are_dropped_when_they_are_old(tmp_path: Path):
    store = LogStore(tmp_path)
    for name, days in (("old", 31), ("young", 29)):
        folder = Path(store.folder(name))
        folder.mkdir(parents=True)
        segment = folder / "stdout.0000000000000000"
        segment.touch()
        os.utime(segment, (time.time() - days * 86_400,) * 2)
    for _ in range(256):
        store.prune(30 * 86_400_000, 1 << 30)
    assert not Path(store.folder("old")).exists()
    assert Path(store.folder("young")).exists()


def test_logs_are_kept_for_a_shorter_time_when_there_are_too_many(tmp_path: Path):
    store = LogStore(tmp_path)
    for day in range(20):
        folder = Path(store.folder(f"day{day}"))
        folder.mkdir(parents=True)
        segment = folder / "stdout.0000000000000000"
        segment.write_bytes(b"x" * 1000)
        os.utime(segment, (time.time() - day * 86_400,) * 2)
    for _ in range(256 * 10):
        store.prune(30 * 86_400_000, 8_000)
    left = [day for day in range(20) if Path(store.folder(f"day{day}")).exists()]
    assert left == list(range(len(left)))
    assert 1 <= len(left) <= 8


# --- the machine ----------------------------------------------------------------------------------------------------


def test_a_scratch_directory_of_someone_else_is_refused(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "corral-abcdefgh").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="belongs to another account"):
        make_scratch_root(str(tmp_path), "abcdefgh")


def test_places_that_servers_left_behind_are_removed_if_nothing_is_in_them(tmp_path: Path):
    """Only those that look like one, are ours and empty, and were not touched for a while."""
    old = time.time() - 3600
    for name in ("corral-0123abcd", "corral-0123abce", "corral-ssh-0", "corral-0123ABCD", "corral-0123abcdef"):
        (tmp_path / name).mkdir(mode=0o711)
    (tmp_path / "corral-0123abce" / "task").mkdir()
    (tmp_path / "corral-0123abcf").symlink_to(tmp_path / "corral-0123abcd")
    (tmp_path / "corral-00000000").write_text("a file")
    (tmp_path / "corral-00000001").mkdir(mode=0o700)
    for path in tmp_path.iterdir():
        os.utime(path, (old, old), follow_symlinks=False)
    (tmp_path / "corral-00000002").mkdir(mode=0o711)
    before = {path.name for path in tmp_path.iterdir()}
    remove_deserted(str(tmp_path))
    assert before - {path.name for path in tmp_path.iterdir()} == {"corral-0123abcd"}
    remove_deserted(str(tmp_path / "nowhere"))


def test_a_place_that_is_removed_while_a_task_begins_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = tmp_path / "corral-0123abcd"
    made, mkdir = list[str](), os.mkdir

    def removed_once(path: str, mode: int = 0o777) -> None:
        if path == f"{root}/task" and not made:
            made.append(path)
            root.rmdir()
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", removed_once)
    Scratch(f"{root}/task", os.geteuid(), os.getegid()).make()
    assert made
    assert (root / "task" / "tmp").is_dir()


def test_limits_of_version_2_are_written_as_its_files_want_them(tmp_path: Path):
    names = ("memory.max", "memory.swap.max", "memory.oom.group", "cpu.weight", "cpu.max", "pids.max")
    for name in names:
        (tmp_path / name).touch()
    groups = cgroups.TaskGroups(2, dict.fromkeys(cgroups.LIMITS, str(tmp_path)))
    groups.make(memory_mib=64, cpu_milli=1500, has_quota=True, pids_max=100)
    assert [(tmp_path / name).read_text() for name in names] == ["67108864", "0", "1", "150", "150000 100000", "100"]
    (tmp_path / "memory.events").write_text("low 0\noom 1\noom_kill 2\noom_group_kill 1\n")
    assert groups.oom_kills() == 2


def test_a_place_of_our_own_in_version_2(tmp_path: Path, monkeypatch):
    """On folders that only look like cgroups: the server is alone in its group, steps aside and enables controllers."""
    own = tmp_path / "service"
    for folder in (own, own / "corral-server", own / "corral-x"):
        folder.mkdir()
        (folder / "cgroup.procs").write_text(f"{os.getpid()}\n")
        (folder / "cgroup.controllers").write_text("cpuset cpu io memory\n")
        (folder / "cgroup.subtree_control").touch()
    monkeypatch.setattr(cgroups, "mounts", lambda: {"v2": str(tmp_path)})
    monkeypatch.setattr(cgroups, "groups_of", lambda _: {"": "/service"})
    layout = cgroups.detect("corral-x")
    assert layout.version == 2
    assert layout.parents == dict.fromkeys(("memory", "cpu"), str(own / "corral-x"))
    assert list(layout.unenforced) == ["pids"]
    assert (own / "corral-server" / "cgroup.procs").read_text().startswith("0")


def test_without_any_right_the_reason_says_what_to_do(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(cgroups, "mounts", lambda: {"v2": str(tmp_path)})
    monkeypatch.setattr(cgroups, "groups_of", lambda _: {"": "/service"})
    layout = cgroups.detect("corral-x")
    assert layout.parents == {}
    assert "run the server as root, or delegate a cgroup to it" in layout.unenforced["memory"]


@pytest.mark.skipif(not IS_ROOT, reason="cgroups need root")
def test_a_group_of_version_2_is_killed_at_once():
    mount = cgroups.mounts().get("v2")
    if mount is None:
        pytest.skip("no version 2 hierarchy is mounted")
    folder = Path(mount) / f"corral-test-{os.getpid()}"
    groups = cgroups.TaskGroups(2, {"pids": str(folder)})
    folder.mkdir()
    try:
        child = subprocess.Popen(["sleep", "600"], preexec_fn=groups.enter)
        assert groups.members() == {child.pid}
        groups.kill()
        assert child.wait(10) == -9
    finally:
        groups.remove()
    assert not folder.exists()


def test_a_record_is_read_line_by_line_and_a_torn_end_does_no_harm(tmp_path: Path):
    state = TaskState(str(tmp_path))
    assert state.record().exit() is None
    records.begin(state.folder, b"{}")
    records.add(state.folder, records.STARTED, b'{"at_ms": 1, "supervisor": 2, "pids": [3]}')
    with (tmp_path / records.RECORD).open("ab") as file:
        file.write(b'exit {"at_ms": 4, "exit_co')  # a full disk, or a loss of power
    record = state.record()
    assert record.started() == StartRecord(1, 2, (3,))
    assert record.exit() is None
    state.record_exit(ExitRecord(5, 137))
    assert state.record().exit() == ExitRecord(5, 137)
    assert state.record().order() is None  # {} says too little
    state.remove()
    with pytest.raises(FileNotFoundError):
        records.add(state.folder, records.EXIT, b"{}")


def test_paces_are_read_and_what_a_task_may_put_there_instead_is_not(tmp_path: Path):
    (tmp_path / "pace.1").write_text("120")
    (tmp_path / "pace.0").write_text("99\n")
    (tmp_path / "pace.2").write_text("quick")
    (tmp_path / "pace.3").write_text("9" * 60)
    (tmp_path / "pace.4").symlink_to(tmp_path / "pace.1")
    (tmp_path / "pace.x").write_text("1")
    os.mkfifo(tmp_path / "pace.5")
    (tmp_path / "pace.6").mkdir()
    assert read_paces(str(tmp_path)) == ((0, 99), (1, 120), (3, 86_400_000))
    assert read_paces(str(tmp_path / "nowhere")) == ()
