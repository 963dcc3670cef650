"""Figures over time in rings of fixed size: 10 seconds for a day, 5 minutes for 30 days, an hour for a year.

Figures are not events: they are only displayed, and may be lost without harm. A series is stored in chunks of many
points, written every few minutes; what is newer is in memory. Knows names, times and numbers, not what they mean, and
no database: ``ChunkStore`` is one.
"""

from __future__ import annotations

import math
import threading
import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

NAN = math.nan
SERIES_MAX = 60_000  # in memory; those that were not added to for longest are dropped
QUIET_MS = 900_000  # a series without new figures for this time is dropped from memory once it is stored


class Resolution(NamedTuple):
    step_ms: int
    points: int  # of a chunk
    keep_ms: int

    @property
    def chunk_ms(self) -> int:
        return self.step_ms * self.points


RESOLUTIONS = (
    Resolution(10_000, 360, 86_400_000),
    Resolution(300_000, 288, 30 * 86_400_000),
    Resolution(3_600_000, 168, 366 * 86_400_000),
)


class ChunkKey(NamedTuple):
    """``start_ms``: the time of its first point."""

    name: str
    step_ms: int
    start_ms: int


class ChunkStore(Protocol):
    """Stores chunks as bytes, from any thread."""

    def put(self, chunks: Iterable[tuple[ChunkKey, bytes]]) -> None: ...

    def get(self, names: Sequence[str], step_ms: int, since_ms: int, until_ms: int) -> list[tuple[ChunkKey, bytes]]:
        """Chunks that begin from one time up to another, both included."""

    def drop(self, step_ms: int, before_ms: int) -> None:
        """Remove chunks that begin before a time."""


class MemoryChunks:
    """Chunks in memory: for tests, and where there is no data folder."""

    def __init__(self) -> None:
        self._chunks: dict[ChunkKey, bytes] = {}

    def put(self, chunks: Iterable[tuple[ChunkKey, bytes]]) -> None:
        self._chunks.update(chunks)

    def get(self, names: Sequence[str], step_ms: int, since_ms: int, until_ms: int) -> list[tuple[ChunkKey, bytes]]:
        wanted = set(names)
        return [
            (key, body)
            for key, body in self._chunks.items()
            if key.name in wanted and key.step_ms == step_ms and since_ms <= key.start_ms <= until_ms
        ]

    def drop(self, step_ms: int, before_ms: int) -> None:
        self._chunks = {k: v for k, v in self._chunks.items() if k.step_ms != step_ms or k.start_ms >= before_ms}


class _Open:
    """The chunk of one series and resolution that is being filled, and the mean of its present point."""

    __slots__ = ("at_ms", "count", "is_changed", "start_ms", "total", "values")

    def __init__(self, start_ms: int, points: int) -> None:
        self.begin(start_ms, points)

    def begin(self, start_ms: int, points: int) -> None:
        self.start_ms = start_ms
        self.values = array("f", [NAN]) * points
        self.at_ms = -1
        self.total, self.count = 0.0, 0
        self.is_changed = False


class Rings:
    """All series. ``add`` is called in one thread; reading and storing may happen in others."""

    def __init__(self, chunks: ChunkStore | None = None) -> None:
        self._chunks: ChunkStore = chunks or MemoryChunks()
        self._open: dict[str, tuple[_Open, ...]] = {}
        self._added_ms: dict[str, int] = {}  # name -> last time; least recent first
        self._full: list[tuple[ChunkKey, bytes]] = []
        self._lock = threading.Lock()

    def add(self, name: str, at_ms: int, value: float, *, is_count: bool = False) -> None:
        """A point is the mean of its figures; of counts, their sum."""
        with self._lock:
            known = self._open.get(name)
            if known is None:
                known = self._open[name] = self._opened(name, at_ms)
            self._added_ms.pop(name, None)
            self._added_ms[name] = at_ms
            for resolution, chunk in zip(RESOLUTIONS, known, strict=True):
                self._put(name, resolution, chunk, at_ms, value, is_count)

    def _opened(self, name: str, at_ms: int) -> tuple[_Open, ...]:
        """Begin, or go on with the chunks that an earlier process has stored."""
        if len(self._open) >= SERIES_MAX:
            self._forget(next(iter(self._added_ms)))
        found = []
        for resolution in RESOLUTIONS:
            start_ms = at_ms - at_ms % resolution.chunk_ms
            chunk = _Open(start_ms, resolution.points)
            for key, body in self._chunks.get((name,), resolution.step_ms, start_ms, start_ms):
                if key.start_ms == start_ms:
                    chunk.values = _unpacked(body, resolution)
            found.append(chunk)
        return tuple(found)

    def _put(self, name: str, resolution: Resolution, chunk: _Open, at_ms: int, value: float, is_count: bool) -> None:
        if not chunk.start_ms <= at_ms < chunk.start_ms + resolution.chunk_ms:
            if at_ms < chunk.start_ms:
                return  # the clock went back: not worth a chunk
            self._full.append((ChunkKey(name, resolution.step_ms, chunk.start_ms), _packed(chunk.values)))
            chunk.begin(at_ms - at_ms % resolution.chunk_ms, resolution.points)
        point_ms = at_ms - at_ms % resolution.step_ms
        place = (point_ms - chunk.start_ms) // resolution.step_ms
        if point_ms != chunk.at_ms:
            before = chunk.values[place] if is_count else NAN  # of an earlier process
            chunk.at_ms, chunk.count = point_ms, 0
            chunk.total = 0.0 if math.isnan(before) else before
        chunk.total, chunk.count = chunk.total + value, chunk.count + 1
        chunk.values[place] = chunk.total if is_count else chunk.total / chunk.count
        chunk.is_changed = True

    def _forget(self, name: str) -> None:
        for resolution, chunk in zip(RESOLUTIONS, self._open.pop(name), strict=True):
            if chunk.is_changed:
                self._full.append((ChunkKey(name, resolution.step_ms, chunk.start_ms), _packed(chunk.values)))
        del self._added_ms[name]

    def store(self, now_ms: int) -> int:
        """Write what has changed, and remove what is too old. Slow: in a thread. Returns the number of chunks."""
        with self._lock:
            changed, self._full = self._full, []
            for name, known in self._open.items():
                for resolution, chunk in zip(RESOLUTIONS, known, strict=True):
                    if chunk.is_changed:
                        changed.append((ChunkKey(name, resolution.step_ms, chunk.start_ms), _packed(chunk.values)))
                        chunk.is_changed = False
            for name in [name for name, at_ms in self._added_ms.items() if now_ms - at_ms > QUIET_MS]:
                self._forget(name)
        self._chunks.put(changed)
        for resolution in RESOLUTIONS:
            self._chunks.drop(resolution.step_ms, now_ms - resolution.keep_ms - resolution.chunk_ms)
        return len(changed)

    def expanded(self, names: Sequence[str]) -> list[str]:
        return expanded(names, list(self._open))

    def read(
        self, names: Sequence[str], resolution: Resolution, since_ms: int, until_ms: int
    ) -> dict[str, list[float]]:
        """Figures of each series from one time up to another, both included; NaN: unknown."""
        step_ms, chunk_ms = resolution.step_ms, resolution.chunk_ms
        first_ms = since_ms - since_ms % step_ms
        count = (until_ms - first_ms) // step_ms + 1
        found = {name: [NAN] * count for name in names}
        stored = self._chunks.get(names, step_ms, first_ms - chunk_ms, until_ms)
        parts = [(key.name, key.start_ms, _unpacked(body, resolution)) for key, body in stored]
        with self._lock:
            late = [(key, body) for key, body in self._full if key.name in found and key.step_ms == step_ms]
            parts += [(key.name, key.start_ms, _unpacked(body, resolution)) for key, body in late]
            for name in names:
                for chunk in [] if name not in self._open else [self._open[name][RESOLUTIONS.index(resolution)]]:
                    parts.append((name, chunk.start_ms, array("f", chunk.values)))
        for name, start_ms, values in parts:
            _lay(values, (start_ms - first_ms) // step_ms, found[name])
        return found


def expanded(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names, each once; ``a/b/*`` stands for the known ones that begin with ``a/b/``."""
    found: dict[str, None] = {}
    prefixes = [name[:-1] for name in names if name.endswith("/*")]
    found.update(dict.fromkeys(name for name in names if not name.endswith("/*")))
    if prefixes:
        found.update(dict.fromkeys(name for name in known if any(name.startswith(prefix) for prefix in prefixes)))
    return list(found)


def _lay(values: array[float], offset: int, into: list[float]) -> None:
    low, high = max(0, -offset), min(len(values), len(into) - offset)
    for n in range(low, high):
        if values[n] == values[n]:  # not NaN
            into[offset + n] = values[n]


def _packed(values: array[float]) -> bytes:
    return zlib.compress(values.tobytes(), 1)


def _unpacked(body: bytes, resolution: Resolution) -> array[float]:
    """The points of a stored chunk; one that is damaged has none."""
    found = array("f")
    try:
        found.frombytes(zlib.decompress(body, bufsize=4 * resolution.points))
    except (zlib.error, ValueError):
        found = array("f")
    return found if len(found) == resolution.points else array("f", [NAN]) * resolution.points


def resolution_for(span_ms: int) -> Resolution:
    """The finest one that covers a span with at most about a thousand points."""
    if span_ms <= 2 * 3_600_000:
        return RESOLUTIONS[0]
    return RESOLUTIONS[1] if span_ms <= 3 * 86_400_000 else RESOLUTIONS[2]
