"""What may be unpacked: copies of files and folders, and nothing that a hostile end could send."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from corral.runtime.steps.copy_stream import BadArchive, pack, unpack


def copied(source: Path, target: Path) -> tuple[str, str]:
    stream = io.BytesIO()
    packed = pack(str(source), stream)
    stream.seek(0)
    return packed.digest, unpack(stream, str(target), source.name).digest


def test_a_folder_arrives_as_it_was(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "file").write_bytes(os.urandom(3_000_000))
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o750)
    (source / "link").symlink_to("deep/file")
    os.link(source / "run.sh", source / "same.sh")
    sent, received = copied(source, tmp_path / "target")
    assert sent == received
    target = tmp_path / "target"
    assert (target / "deep" / "file").read_bytes() == (source / "deep" / "file").read_bytes()
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o750
    assert os.readlink(target / "link") == "deep/file"
    assert (target / "same.sh").read_text() == "#!/bin/sh\n"


def test_a_file_gets_the_new_name_or_goes_into_the_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("content")
    copied(tmp_path / "a", tmp_path / "b")
    (tmp_path / "folder").mkdir()
    copied(tmp_path / "a", tmp_path / "folder")
    assert (tmp_path / "b").read_text() == (tmp_path / "folder" / "a").read_text() == "content"


@pytest.mark.parametrize("is_named_by_a_link", [False, True])
def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path, is_named_by_a_link: bool) -> None:
    """Also /dev/null, which root could replace by a file, for every user on the machine."""
    (tmp_path / "a").write_text("content")
    pipe = target = tmp_path / "pipe"
    os.mkfifo(pipe)
    if is_named_by_a_link:
        target = tmp_path / "link"
        target.symlink_to(pipe)
    end = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        copied(tmp_path / "a", target)
        assert os.read(end, 100) == b"content"
    finally:
        os.close(end)
    assert pipe.is_fifo()
    assert target.is_symlink() == is_named_by_a_link


def test_a_pipe_in_a_folder_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "pipe").write_text("content")
    (tmp_path / "target" / "source").mkdir(parents=True)
    os.mkfifo(tmp_path / "target" / "source" / "pipe")
    with pytest.raises(FileExistsError):
        copied(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target" / "source" / "pipe").is_fifo()


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    found.size = size
    return found


TOP = member("top", tarfile.DIRTYPE)
HOSTILE = {
    "another top": [member("/etc/cron.d/x")],
    "absolute": [TOP, member("/etc/cron.d/x")],
    "above": [TOP, member("top/../../x")],
    "above at the end": [TOP, member("top/..", tarfile.DIRTYPE)],
    "an absolute link": [TOP, member("top/l", tarfile.SYMTYPE, "/etc")],
    "a link to above": [TOP, member("top/d", tarfile.DIRTYPE), member("top/d/l", tarfile.SYMTYPE, "../../x")],
    "the top as a link": [member("top", tarfile.SYMTYPE, "elsewhere")],
    "through a link": [TOP, member("top/l", tarfile.SYMTYPE, "d"), member("top/l/x")],
    "a folder over a link": [TOP, member("top/l", tarfile.SYMTYPE, "d"), member("top/l", tarfile.DIRTYPE)],
    "a hard link to above": [TOP, member("top/x", tarfile.LNKTYPE, "../secret")],
    "a hard link to nothing": [TOP, member("top/x", tarfile.LNKTYPE, "top/y")],
    "a device": [TOP, member("top/x", tarfile.CHRTYPE)],
    "a pipe": [TOP, member("top/x", tarfile.FIFOTYPE)],
    "more than the disk holds": [TOP, member("top/x", size=1 << 60)],
    "nothing": [],
}


@pytest.mark.parametrize("members", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_archives_are_refused(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    (tmp_path / "secret").write_text("kept")
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for each in members:
            archive.addfile(each)
    stream.seek(0)
    with pytest.raises(BadArchive):
        unpack(stream, str(tmp_path / "target"), "name")
    outside = {path.name for path in tmp_path.iterdir()}
    assert outside <= {"secret", "target"}
    assert (tmp_path / "secret").read_text() == "kept"


def test_a_stream_that_ends_early_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(100_000))
    stream = io.BytesIO()
    pack(str(tmp_path / "a"), stream)
    for cut in (b"", stream.getvalue()[:50_000], b"not an archive" * 1000):
        with pytest.raises((BadArchive, OSError)):
            unpack(io.BytesIO(cut), str(tmp_path / "target"), "a")
        assert [path.name for path in tmp_path.iterdir()] == ["a"]
