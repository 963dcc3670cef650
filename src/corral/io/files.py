"""Files that are replaced as a whole: written under a temporary name, then renamed.

Knows the file system and nothing about the content. A file is private to its owner unless its mode says otherwise.
"""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

    AnyPath = str | os.PathLike[str]


def append(path: AnyPath, line: bytes) -> None:
    """Append to a file, which is created if there is none. Lines of several writers do not mix."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


class Replacement:
    """A new content for a file: a descriptor to write to, in ``with``. At the end the file has the whole new content;
    after an error or a crash it has the old. ``durable``: also after a power failure."""

    def __init__(self, path: AnyPath, mode: int = 0o600, *, durable: bool = True) -> None:
        self._path = os.fspath(path)
        self._durable = durable
        refuse_special(self._path)
        self._folder, name = os.path.split(self._path)
        unique = f".{name}.{os.getpid()}.{os.urandom(4).hex()}.new"  # several may replace the file at the same time
        self._beside = os.path.join(self._folder, unique)
        self._file = os.open(self._beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)

    def __enter__(self) -> int:
        return self._file

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_replaced = False
        try:
            try:
                if kind is None and self._durable:
                    os.fsync(self._file)
            finally:
                os.close(self._file)
            if kind is None:
                os.replace(self._beside, self._path)
                is_replaced = True
        finally:
            if not is_replaced:
                os.unlink(self._beside)
        if is_replaced and self._durable:
            sync(self._folder or ".")


def refuse_special(path: str) -> None:
    """A device or a pipe, such as /dev/null, is not replaced by a file: as root that would harm every user. OSError."""
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
        raise FileExistsError(17, "is a device or a pipe, and no file", path)


def write_file(path: AnyPath, content: bytes, mode: int = 0o600, *, durable: bool = True) -> None:
    """Replace a file. A reader sees the old or the new content."""
    with Replacement(path, mode, durable=durable) as file:
        while content:
            content = content[os.write(file, content) :]


def make_folder(folder: Path) -> None:
    """Create a private folder and its parents, durably, if it does not exist."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
        sync(folder.parent)


def sync(path: AnyPath) -> None:
    """Make the content of a file survive a power failure; of a folder: the names created, renamed and removed in it."""
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
