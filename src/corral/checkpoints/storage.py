"""Where checkpoints are stored: named objects that are created once, read, listed and removed.

Knows names and bytes, not what they mean. Two things make everything else possible: an object is created only if its
name is free, and it is durable and whole when `create` or `write` returns. `DirectoryStorage` is a directory, local or
shared between nodes; the object store is in `object_storage`; `MemoryStorage` is the fake, which can crash.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from typing import Protocol

_CHUNK = 8 << 20
_NEW = ".new-"


class Storage(Protocol):
    """``name``: parts with slashes between them, all of them names that Corral has made."""

    @property
    def url(self) -> str: ...

    def create(self, name: str, content: bytes) -> bool:
        """Store an object, durably. False: the name is taken, and nothing has changed."""

    def write(self, name: str, chunks: Iterable[memoryview | bytes]) -> int:
        """Store a large object under a name that nothing else uses, durably; returns its size. After an error the
        object may exist in part."""

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Raises FileNotFoundError if there is none. The answer is shorter if the object is."""

    def read_into(self, name: str, offset: int, target: memoryview) -> int:
        """The same into memory that exists; returns the number of bytes."""

    def names(self, folder: str) -> dict[str, int]:
        """The objects directly in a folder, with their sizes; none if there is no such folder."""

    def folders(self, folder: str = "") -> list[str]: ...

    def remove(self, name: str) -> None:
        """Nothing happens if there is none."""


def open_storage(url: str | os.PathLike[str]) -> Storage:
    """The storage at a path, or at a URL such as ``s3://bucket/prefix``, ``gs://…``, ``az://…``."""
    text = os.fspath(url)
    scheme, mark, rest = text.partition("://")
    if not mark:
        return DirectoryStorage(text)
    if scheme == "file":
        return DirectoryStorage(rest)
    from .object_storage import ObjectStorage

    return ObjectStorage(text)


class DirectoryStorage:
    """Objects are files. The file system must support hard links, as local ones, NFS, Lustre and GPFS do."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.abspath(os.fspath(root))

    @property
    def url(self) -> str:
        return self._root

    def create(self, name: str, content: bytes) -> bool:
        path = self._path(name)
        folder = self._make_folder(path)
        beside = os.path.join(folder, f"{_NEW}{os.getpid()}-{os.urandom(6).hex()}")
        try:
            _write_durably(beside, [content])
            return self._link(beside, path)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            _sync(folder)

    def _link(self, beside: str, path: str) -> bool:
        try:
            os.link(beside, path)
        except FileExistsError:
            # NFS may answer a repeated request so, although the first one was executed.
            return os.stat(beside).st_nlink > 1 and os.path.samefile(beside, path)
        except OSError as fault:
            if fault.errno in (errno.EPERM, errno.ENOTSUP, errno.EMLINK):
                raise OSError(
                    fault.errno, "the file system does not support hard links; store checkpoints elsewhere", path
                ) from fault
            raise
        return True

    def write(self, name: str, chunks: Iterable[memoryview | bytes]) -> int:
        path = self._path(name)
        folder = self._make_folder(path)
        size = _write_durably(path, chunks)
        _sync(folder)
        return size

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        with open(self._path(name), "rb") as file:
            file.seek(offset)
            return file.read() if length is None else file.read(length)

    def read_into(self, name: str, offset: int, target: memoryview) -> int:
        done = 0
        with open(self._path(name), "rb", buffering=0) as file:
            file.seek(offset)
            while done < len(target):
                got = file.readinto(target[done : done + _CHUNK])
                if not got:
                    break
                done += got
        return done

    def names(self, folder: str) -> dict[str, int]:
        found = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self._path(folder)) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    if entry.is_file(follow_symlinks=False) and not entry.name.startswith(_NEW):
                        found[entry.name] = entry.stat(follow_symlinks=False).st_size
        return found

    def folders(self, folder: str = "") -> list[str]:
        try:
            with os.scandir(self._path(folder)) as entries:
                return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
        except FileNotFoundError:
            return []

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(name))

    def _path(self, name: str) -> str:
        return os.path.join(self._root, name) if name else self._root

    def _make_folder(self, path: str) -> str:
        folder = os.path.dirname(path)
        if not os.path.isdir(folder):
            missing = []
            above = folder
            while not os.path.isdir(above):
                missing.append(above)
                above = os.path.dirname(above)
            os.makedirs(folder, exist_ok=True)
            for made in missing:
                _sync(os.path.dirname(made))
        return folder


def _write_durably(path: str, chunks: Iterable[memoryview | bytes]) -> int:
    size = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        for chunk in chunks:
            view = memoryview(chunk)
            size += len(view)
            while view:
                view = view[os.write(descriptor, view[:_CHUNK]) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return size


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class MemoryStorage:
    """Objects in memory, for tests. ``fails_after``: this many operations later the process crashes (`Crashed`): an
    object that is being written then is left in part, or not at all."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.fails_after: int | None = None
        self.full_after: int | None = None

    class Crashed(BaseException):
        """The process has ended here: nothing after this is executed, not even clean-up."""

    @property
    def url(self) -> str:
        return "memory"

    def create(self, name: str, content: bytes) -> bool:
        self._operate()
        if name in self.objects:
            return False
        self._fill(len(content))
        self.objects[name] = bytes(content)
        self._operate()  # it is stored, and the process crashes before it learns that
        return True

    def write(self, name: str, chunks: Iterable[memoryview | bytes]) -> int:
        content = b""
        for chunk in chunks:
            self._operate()
            self._fill(len(chunk))
            content += bytes(chunk)
            self.objects[name] = content
        self._operate()
        return len(content)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        self._operate()
        if name not in self.objects:
            raise FileNotFoundError(errno.ENOENT, "no such object", name)
        return self.objects[name][offset : None if length is None else offset + length]

    def read_into(self, name: str, offset: int, target: memoryview) -> int:
        content = self.read(name, offset, len(target))
        target[: len(content)] = content
        return len(content)

    def names(self, folder: str) -> dict[str, int]:
        self._operate()
        below = f"{folder}/"
        inside = {name[len(below) :]: len(held) for name, held in self.objects.items() if name.startswith(below)}
        return {name: size for name, size in inside.items() if "/" not in name}

    def folders(self, folder: str = "") -> list[str]:
        below = f"{folder}/" if folder else ""
        rests = [name[len(below) :] for name in self.objects if name.startswith(below)]
        return sorted({rest.partition("/")[0] for rest in rests if "/" in rest})

    def remove(self, name: str) -> None:
        self._operate()
        self.objects.pop(name, None)

    def _operate(self) -> None:
        if self.fails_after is not None:
            self.fails_after -= 1
            if self.fails_after < 0:
                raise MemoryStorage.Crashed

    def _fill(self, size: int) -> None:
        if self.full_after is not None:
            self.full_after -= size
            if self.full_after < 0:
                raise OSError(errno.ENOSPC, "no space left on device")
