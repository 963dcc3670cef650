"""The logs of pods, fetched by the API of Kubernetes and kept by the server: a pod's log ends with the pod.

The log of a running task is followed while someone reads it; that of an ended one is fetched whole, once. What is here
already is skipped when a log is read again from its beginning. Knows paths of logs and the streams in them.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

from corral.kubernetes.cluster_api import ApiRefused, ApiUnreachable, ClusterApi, LineStream, Stopped, object_path
from corral.kubernetes.pod.log_lines import LineDecoder
from corral.kubernetes.pod_names import CONTAINER
from corral.runtime.base import LogPart, TaskKey
from corral.runtime.local.logs import STREAMS, LogStore
from corral.runtime.local.state_dir import name_of

_FOLLOWED_MAX = 64
_FOLLOW_S = 60.0  # after the last reader
_SILENCE_S = 3_600.0
PODS = "api/v1/pods"


class PodLogs:
    """``data``: the server's folder."""

    def __init__(self, data: Path) -> None:
        self._store = LogStore(data / "kubernetes" / "logs")
        self._api: ClusterApi | None = None
        self._lock = threading.Lock()
        self._copies: dict[TaskKey, _Copy] = {}

    def open(self, api: ClusterApi) -> None:
        self._api = api

    def read(
        self,
        key: TaskKey,
        stream: str,
        offset: int,
        limit: int,
        pod: tuple[str, str] | None,
        is_over: bool,
        is_known: bool,
    ) -> LogPart | None:
        """``pod``: namespace and name, if it is there. ``is_over``: the task has ended."""
        if stream not in STREAMS:
            return None
        if pod is not None and not self.is_whole(key):
            copy = self._copy(key)
            if is_over:
                self.fetch(key, pod)
            elif self._api is not None:
                copy.follow(self._api, pod, self._followed() < _FOLLOWED_MAX)
        over = is_over and (pod is None or self.is_whole(key))
        return self._store.read(name_of(key), stream, offset, limit, lambda: over, is_known)

    def fetch(self, key: TaskKey, pod: tuple[str, str]) -> bytes:
        """Fetch all of the log of an ended task, unless it is here. Returns the record of its end; empty: unknown."""
        copy, api = self._copy(key), self._api
        if api is None:
            return copy.record
        with copy.lock:
            if not copy.is_whole:
                with contextlib.suppress(ApiRefused, ApiUnreachable, Stopped):
                    copy.take_all(api, pod, is_over=True)
            return copy.record

    def is_whole(self, key: TaskKey) -> bool:
        with self._lock:
            return key in self._copies and self._copies[key].is_whole

    def drop(self, key: TaskKey) -> None:
        """The pod is gone; what was fetched stays."""
        with self._lock:
            copy = self._copies.pop(key, None)
        if copy is not None:
            copy.stop()

    def prune(self, keep_ms: int, bytes_max: int) -> None:
        self._store.prune(keep_ms, bytes_max)

    def close(self) -> None:
        with self._lock:
            copies, self._copies = list(self._copies.values()), {}
        for copy in copies:
            copy.stop()
        self._api = None

    def _copy(self, key: TaskKey) -> _Copy:
        with self._lock:
            if key not in self._copies:
                self._copies[key] = _Copy(self._store.folder(name_of(key)))
            return self._copies[key]

    def _followed(self) -> int:
        with self._lock:
            return sum(copy.is_followed for copy in self._copies.values())


class _Copy:
    """The copy of one log."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.lock = threading.Lock()
        self.is_whole = False
        self.record = b""
        self.is_followed = False
        self._stream: LineStream | None = None
        self._is_stopped = False
        self._read_at = 0.0

    def follow(self, api: ClusterApi, pod: tuple[str, str], may_follow: bool) -> None:
        self._read_at = time.monotonic()
        if self.is_followed or self.is_whole:
            return
        if may_follow:
            self.is_followed = True
            threading.Thread(target=self._follow, args=(api, pod), name="pod-log", daemon=True).start()
        else:
            with self.lock, contextlib.suppress(ApiRefused, ApiUnreachable, Stopped):
                self.take_all(api, pod, is_over=False)

    def _follow(self, api: ClusterApi, pod: tuple[str, str]) -> None:
        try:
            with self.lock:
                self.take_all(api, pod, is_over=False, follows=True)
        except (ApiRefused, ApiUnreachable, Stopped, OSError):
            pass  # the next reader asks again
        finally:
            self.is_followed = False

    def take_all(self, api: ClusterApi, pod: tuple[str, str], *, is_over: bool, follows: bool = False) -> None:
        """Read the log from its beginning. Called with the lock held."""
        writers = {name: _Writer(f"{self._folder}/{name}.{0:016d}") for name in STREAMS}
        decoder = LineDecoder()
        params = {"container": CONTAINER} | ({"follow": "true"} if follows else {})
        path = object_path(PODS, *pod, "log")
        try:
            with api.stream(path, params, _SILENCE_S if follows else 30.0) as stream:
                self._stream = stream
                for data in stream.chunks():
                    for writer, part in zip(writers.values(), decoder.feed(data), strict=True):
                        writer.add(part)
                    if self._is_stopped or (follows and time.monotonic() - self._read_at > _FOLLOW_S):
                        return
            self.record = decoder.record or self.record
            self.is_whole = is_over or bool(decoder.record)
        finally:
            self._stream = None
            for writer in writers.values():
                writer.close()

    def stop(self) -> None:
        self._is_stopped = True
        stream = self._stream
        if stream is not None:
            stream.interrupt()


class _Writer:
    """Appends to a file, but skips what is in it already."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1
        self._skip = 0

    def add(self, data: bytes) -> None:
        if not data:
            return
        if self._file < 0:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._skip = os.fstat(self._file).st_size
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        data = data[skipped:]
        while data:
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
