"""Checkpoints in an object store: S3 and what is compatible with it, Google Cloud Storage, Azure; by obstore.

Imports obstore, which is an extra. An object store has no rename and needs none: an object appears whole, and a
conditional request creates it only if its name is free. Credentials and endpoint come from the environment
(``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_ENDPOINT_URL``, ``AWS_REGION``; for others as their tools do).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

_PART = 16 << 20
_PARALLEL = 4


class ObjectStorage:
    """``url``: ``s3://bucket/prefix``. ``timeout_s``: an operation is repeated for this long before it fails."""

    def __init__(self, url: str, timeout_s: float = 60.0) -> None:
        try:
            import obstore
            import obstore.store
        except ImportError:
            raise ImportError(f"{url} needs the package obstore: pip install obstore") from None
        self._obstore: Any = obstore
        self._url = url.rstrip("/")
        endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        options: dict[str, Any] = {"allow_http": True} if endpoint.startswith("http://") else {}
        retry: Any = {"max_retries": 10, "retry_timeout": timedelta(seconds=timeout_s)}
        self._store: Any = self._obstore.store.from_url(self._url, client_options=options, retry_config=retry)

    @property
    def url(self) -> str:
        return self._url

    def create(self, name: str, content: bytes) -> bool:
        with _errors(name):
            try:
                self._obstore.put(self._store, name, content, mode="create")
            except self._obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def write(self, name: str, chunks: Iterable[memoryview | bytes]) -> int:
        size = 0

        def parts() -> Iterator[bytes]:
            nonlocal size
            for chunk in chunks:
                for start in range(0, len(chunk), _PART):
                    part = bytes(chunk[start : start + _PART])
                    size += len(part)
                    yield part

        with _errors(name):
            self._obstore.put(
                self._store, name, parts(), use_multipart=True, chunk_size=_PART, max_concurrency=_PARALLEL
            )
        return size

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if length == 0:
            return b""
        with _errors(name):
            if not offset and length is None:
                return bytes(self._obstore.get(self._store, name).bytes())
            if length is None:
                length = int(self._obstore.head(self._store, name)["size"]) - offset
            return bytes(self._obstore.get_range(self._store, name, start=offset, length=length))

    def read_into(self, name: str, offset: int, target: memoryview) -> int:
        done = 0
        while done < len(target):
            part = self.read(name, offset + done, min(_PART, len(target) - done))
            if not part:
                break
            target[done : done + len(part)] = part
            done += len(part)
        return done

    def names(self, folder: str) -> dict[str, int]:
        below = f"{folder}/"
        found: dict[str, int] = {}
        with _errors(folder):
            for page in self._obstore.list(self._store, prefix=below):
                for each in page:
                    name = str(each["path"]).rsplit(below, 1)[-1]
                    if "/" not in name:
                        found[name] = int(each["size"])
        return found

    def folders(self, folder: str = "") -> list[str]:
        with _errors(folder):
            listed = self._obstore.list_with_delimiter(self._store, prefix=f"{folder}/" if folder else None)
        return sorted(str(path).rstrip("/").rsplit("/", 1)[-1] for path in listed["common_prefixes"])

    def remove(self, name: str) -> None:
        with _errors(name):
            try:
                self._obstore.delete(self._store, name)
            except FileNotFoundError:
                return


class _errors:  # noqa: N801  used like a function
    """What obstore raises as an OSError, as the interface says: its own errors have other types."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: object) -> None:
        if fault is None or isinstance(fault, OSError) or not isinstance(fault, Exception):
            return
        text = str(fault).strip().splitlines()[0][:300] if str(fault).strip() else type(fault).__name__
        raise OSError(errno.EIO, f"the object store failed: {text}", self._name) from fault
