"""Files are replaced as a whole, or not at all."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from corral.io.files import Replacement, write_file


def test_a_file_is_replaced_as_a_whole_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old", mode=0o640, durable=False)
    assert path.stat().st_mode & 0o777 == 0o640
    write_file(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["file"]


def test_after_an_error_the_file_is_as_before(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, b"old")
    with contextlib.suppress(ValueError), Replacement(path) as file:
        os.write(file, b"ne")
        raise ValueError("no more")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_renamed_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path / "folder", b"x")
    assert os.listdir(tmp_path) == ["folder"]


def test_several_may_replace_a_file_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write(letter: bytes) -> None:
        for _ in range(20):
            write_file(path, letter * 100_000, durable=False)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = path.read_bytes()
    assert len(found) == 100_000
    assert len(set(found)) == 1
    assert os.listdir(tmp_path) == ["file"]


def test_a_file_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_file("file", b"x")
    assert Path("file").read_bytes() == b"x"


def test_a_device_or_a_pipe_is_never_replaced(tmp_path: Path) -> None:
    """As root, /dev/null would become a file for every user."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileExistsError, match="is a device or a pipe"):
        write_file(pipe, b"content")
    assert pipe.is_fifo()
    assert os.listdir(tmp_path) == ["pipe"]
