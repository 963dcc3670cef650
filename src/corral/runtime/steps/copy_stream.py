"""Files and folders as a stream, for ``corral cp``: packed at one end, unpacked at the other, with one digest.

The other end may be hostile. Only files, folders and links that stay inside are unpacked; no name leaves the target, no
link is followed, and no more is written than there is room for. Standard library only: it runs inside tasks too.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import tarfile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

MEMBERS_MAX = 10_000_000
_PIECE = 1 << 20
_RESERVED = 64 << 20  # bytes of the disk that stay free


class BadArchive(Exception):
    """The stream holds what must not be unpacked."""


class Hashing:
    """A stream that is read or written, and hashed on the way."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._hash = hashlib.sha256()
        self.count = 0

    def write(self, data: bytes) -> int:
        self._hash.update(data)
        self.count += len(data)
        self._stream.write(data)
        return len(data)

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._hash.update(data)
        self.count += len(data)
        return data

    def drain(self) -> None:
        while self.read(_PIECE):
            pass

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def pack(path: str, out: IO[bytes]) -> Hashing:
    """Raises OSError. Sockets and devices are left out; links stay links."""
    sink = Hashing(out)
    path = path.rstrip("/") or "/"
    if os.path.islink(path):
        path = os.path.realpath(path)  # what is named is meant, not the link to it
    os.lstat(path)
    with tarfile.open(fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, bufsize=_PIECE) as archive:  # type: ignore[call-overload]
        archive.add(path, arcname="top", filter=_packed)
    out.flush()
    return sink


def _packed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    if member.islnk():  # two names of one file: packed twice would need it to be read again, so the second is a link
        return member
    return member if member.isreg() or member.isdir() or member.issym() else None


def unpack(source: IO[bytes], target: str, name: str) -> Hashing:
    """``target``: the new name; in it, under ``name``, if it is a folder that exists. Raises `BadArchive`, OSError."""
    stream = Hashing(source)
    if os.path.isdir(target) or target.endswith("/"):
        target = os.path.join(target, name)
    top = os.path.abspath(target)
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_PIECE) as archive:  # type: ignore[call-overload]
            _unpack_all(archive, top)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as wrong:
        raise BadArchive(f"the stream is not a sound archive: {wrong}") from None
    stream.drain()
    return stream


def _unpack_all(archive: tarfile.TarFile, top: str) -> None:
    folders: list[tuple[str, tarfile.TarInfo]] = []
    count = 0
    for member in archive:
        count += 1
        if count > MEMBERS_MAX:
            raise BadArchive(f"it has more than {MEMBERS_MAX} files")
        if count == 1 and member.name != "top":
            raise BadArchive(f"it begins with {member.name[:200]!r}")
        path = _place(top, member.name)
        if member.isdir():
            _make_folder(path)
            folders.append((path, member))
        elif member.isreg():
            _write_file(archive, member, path)
        elif member.issym():
            _make_link(top, member, path)
        elif member.islnk():
            _copy_twin(_place(top, member.linkname), path)
        else:
            raise BadArchive(f"{member.name[:200]!r} is neither a file nor a folder")
    if not count:
        raise BadArchive("it is empty")
    for path, member in reversed(folders):  # last: a folder may be read-only
        os.chmod(path, member.mode & 0o777 | 0o700)
        os.utime(path, (member.mtime, member.mtime))


def _place(top: str, name: str) -> str:
    parts = name.split("/")
    if parts[0] != "top" or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise BadArchive(f"{name[:200]!r} leads out of the folder")
    path = top
    for part in parts[1:]:
        if os.path.islink(path):
            raise BadArchive(f"{name[:200]!r} leads through a link")
        path = f"{path}/{part}"
    return path


def _make_folder(path: str) -> None:
    if os.path.islink(path):
        raise BadArchive(f"{path} is a link here")
    os.makedirs(path, mode=0o700, exist_ok=True)


def _write_file(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    """Beside its place first, so that the name never leads to a part of the file."""
    content = archive.extractfile(member)
    assert content is not None
    if _is_special(path):  # /dev/null, /dev/stdout, a pipe: written to, and never replaced by a file
        if member.name != "top":
            raise FileExistsError(17, "exists, and is no file", path)
        with open(os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY), "wb") as sink:
            shutil.copyfileobj(content, sink, _PIECE)
        return
    folder = os.path.dirname(path)
    room = shutil.disk_usage(folder).free - _RESERVED
    if member.size > room:
        raise BadArchive(f"{member.name[:200]!r} has {member.size} bytes, and {max(0, room)} are free in {folder}")
    if os.path.isdir(path) and not os.path.islink(path):
        raise IsADirectoryError(21, "is a folder", path)
    part = f"{path}.{os.getpid()}.part"
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            shutil.copyfileobj(content, file, _PIECE)
        os.chmod(part, member.mode & 0o777 | 0o400)
        os.utime(part, (member.mtime, member.mtime))
        os.replace(part, path)
    except BaseException:
        os.unlink(part)
        raise


def _is_special(path: str) -> bool:
    """Something that is neither a file nor a folder, or a link to that."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _make_link(top: str, member: tarfile.TarInfo, path: str) -> None:
    inside = os.path.normpath(os.path.join(os.path.dirname(path), member.linkname))
    if member.linkname.startswith("/") or not (inside == top or inside.startswith(f"{top}/")) or path == top:
        raise BadArchive(f"the link {member.name[:200]!r} leads out of the folder, to {member.linkname[:200]!r}")
    if os.path.lexists(path):
        if not os.path.islink(path):
            raise FileExistsError(17, "exists, and is no link", path)
        os.unlink(path)
    os.symlink(member.linkname, path)


def _copy_twin(there: str, path: str) -> None:
    """A second name of a file that came before."""
    if os.path.islink(there) or not os.path.isfile(there) or os.path.islink(path):
        raise BadArchive(f"{path} comes as a second name of {there}, which is no file")
    shutil.copy2(there, path, follow_symlinks=False)
