"""What a task writes into its folder for us to read: whatever it is, it is a small number or it is nothing."""

import os
from pathlib import Path

import pytest

from corral.core import model
from corral.runtime.local.activity.rank_files import read_paces
from corral.runtime.local.state_dir import SavedRecord, TaskState
from corral.runtime.local.task.scratch import CHECKPOINT, STEP_MAX, Scratch, last_saved


def step_of(text: bytes) -> object:
    saved = last_saved(text)
    return None if saved is None else saved["step"]


def step_in(scratch: Scratch, complaints: list[str]) -> object:
    saved = scratch.saved(complaints.append)
    return None if saved is None else saved["step"]


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    scratch = Scratch(str(tmp_path / "root" / "task"), os.geteuid(), os.getegid())
    scratch.make()
    return scratch


@pytest.mark.parametrize(
    "text",
    [
        b'{"step": 9223372036854775808}\n',
        b'{"step": -1}\n',
        b'{"step": NaN}\n',
        b'{"step": true}\n',
        b'{"step": 1e3}\n',
        b'{"step": ' + b"9" * 400 + b"}\n",
        b'{"step": ' + b"9" * 40_000 + b"}\n",
        b'{"step":' * 5_000 + b"1" + b"}" * 5_000 + b"\n",
        b'"step"' + b"[" * 60_000 + b"\n",
        b"[" * 60_000 + b'"step"\n',
        b'\xff\xfe{"step": 1}\n',
        b"\n" * 70_000,
        os.urandom(65_536) + b"step\n",
        b'{"step": 5}',
    ],
)
def test_a_checkpoint_file_of_no_use_says_no_step(scratch: Scratch, complaints: list[str], text: bytes):
    Path(scratch.path, CHECKPOINT).write_bytes(text)
    assert step_in(scratch, complaints) is None


def test_the_largest_step_is_that_of_the_server(scratch: Scratch):
    assert model.STEP_MAX == STEP_MAX
    assert step_of(b'{"step": %d}\n' % STEP_MAX) == STEP_MAX
    assert step_of(b'{"step": %d}\n' % (STEP_MAX + 1)) is None


def test_a_step_is_found_behind_lines_of_no_use_and_the_user_is_reported_of_a_file_without_one(
    scratch: Scratch, complaints: list[str]
):
    path = Path(scratch.path, CHECKPOINT)
    path.write_bytes(b'{"step": 7}\nnonsense\n{"step": -1}\n')
    assert step_in(scratch, complaints) == 7
    assert complaints == []
    path.write_bytes(b"nonsense\n")
    assert step_in(scratch, complaints) is None
    assert "names no valid step" in complaints[0]


@pytest.mark.parametrize("kind", ["fifo", "zero", "folder", "link"])
def test_what_is_no_plain_file_is_not_read(scratch: Scratch, complaints: list[str], kind: str):
    path = Path(scratch.path, CHECKPOINT)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "zero" else "/etc/passwd")
    assert step_in(scratch, complaints) is None
    assert "not a regular file" in complaints[0]
    assert step_in(scratch, complaints) is None
    assert len(complaints) == 1, "it is reported once"


def test_of_a_huge_file_only_the_end_is_read(scratch: Scratch, complaints: list[str]):
    with Path(scratch.path, CHECKPOINT).open("wb") as file:
        file.truncate(1 << 40)
        file.seek(1 << 40)
        file.write(b'\n{"step": 12}\n')
    assert step_in(scratch, complaints) == 12


def test_a_step_that_an_earlier_version_wrote_down_is_bounded_too(tmp_path: Path):
    (tmp_path / "step").write_bytes(b"9223372036854775808")
    assert TaskState(str(tmp_path)).saved() is None
    (tmp_path / "step").write_bytes(b"17")
    assert TaskState(str(tmp_path)).saved() == SavedRecord(17)


@pytest.mark.parametrize(
    ("line", "path", "save_ms"),
    [
        (b'{"step": 1, "path": "runs/a", "save_ms": 120}', "runs/a", 120),
        (b'{"step": 1, "path": "a\\nb", "save_ms": -1}', "", 0),
        (b'{"step": 1, "path": "' + b"x" * 2_000 + b'", "save_ms": 1.5}', "", 0),
        (b'{"step": 1, "path": 7, "save_ms": true}', "", 0),
    ],
)
def test_where_a_checkpoint_is_and_how_long_it_took_is_bounded(line: bytes, path: str, save_ms: int):
    assert last_saved(line + b"\n") == {"step": 1, "path": path, "save_ms": save_ms, "stall_ms": 0}


def test_paces_are_small_numbers_of_ranks_that_can_be(tmp_path: Path):
    for name, text in (
        ("pace.0", b"12"), ("pace.1", b"-5"), ("pace.2", b"9" * 10_000), ("pace.3", b"NaN"), ("pace.4", b"\xb2"),
        ("pace.007", b"1"), ("pace." + "9" * 200, b"1"), ("pace.9999999", b"1"), ("pace.\u0661", b"1"),
    ):  # fmt: skip
        (tmp_path / name).write_bytes(text)
    (tmp_path / "pace.5").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pace.6")
    assert read_paces(str(tmp_path)) == ((0, 12), (2, 86_400_000))
