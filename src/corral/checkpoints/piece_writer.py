"""Writes the pieces of one rank: hashes them, finds those that are stored already, and puts the others into packs.

Knows bytes and a run, no torch: a piece is anything with ``name``, ``content``, ``place`` and ``shape``. Threads share
the work; hashing and writing large pieces run in parallel, because both release Python's lock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from .manifest import Piece
from .run_store import RunStore, pack_name


class PieceContent(Protocol):
    """A piece before it is stored."""

    @property
    def name(self) -> str: ...
    @property
    def content(self) -> memoryview: ...
    @property
    def place(self) -> tuple[int, ...] | None: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...


class PieceWriter:
    """``threads``: at most this many packs are written at a time, so a save writes at most this many per rank."""

    def __init__(self, store: RunStore, threads: int) -> None:
        self._store = store
        self._threads = threads
        self._known: dict[tuple[str, int], Piece] = {}

    def remember(self, pieces: Iterable[Piece]) -> None:
        """Pieces of the checkpoint that the next one continues: the same content is not stored again."""
        self._known = {(piece.sha256, piece.length): piece for piece in pieces}

    def write(
        self, writer: int, step: int, rank: int, contents: list[PieceContent]
    ) -> tuple[list[Piece], dict[str, int]]:
        """The pieces as they are stored, durably, and the sizes of the new packs."""
        written: dict[str, int] = {}
        try:
            with ThreadPoolExecutor(self._threads, thread_name_prefix="checkpoint") as pool:
                digests = list(pool.map(_digest, contents))
                pairs = list(zip(contents, digests))  # noqa: B905  `strict` needs Python 3.10
                stored = [self._stored(content, digest) for content, digest in pairs]
                new = [pair for pair, piece in zip(pairs, stored) if piece is None]  # noqa: B905
                shares = [share for share in _shares(new, self._threads) if share]
                names = [pack_name(writer, step, rank, count) for count in range(len(shares))]
                written.update(dict.fromkeys(names, 0))
                for pieces in pool.map(self._write_pack, names, shares):
                    stored += pieces
                    written[pieces[0].pack] = sum(piece.length for piece in pieces)
        except BaseException:
            self._discard(written)
            raise
        return [piece for piece in stored if piece is not None], written

    def _stored(self, content: PieceContent, digest: str) -> Piece | None:
        held = self._known.get((digest, len(content.content)))
        if held is None:
            return None
        return Piece(content.name, held.pack, held.offset, held.length, digest, content.place, content.shape)

    def _write_pack(self, name: str, share: list[tuple[PieceContent, str]]) -> list[Piece]:
        self._store.write_pack(name, (content.content for content, _ in share))
        return list(_laid_out(name, share))

    def _discard(self, written: dict[str, int]) -> None:
        """Make room again where the disk was full. What cannot be removed now is removed by the next writer."""
        try:
            self._store.remove_packs(written)
        except OSError:
            return


def _digest(content: PieceContent) -> str:
    return hashlib.sha256(content.content).hexdigest()


def _shares(pairs: list[tuple[PieceContent, str]], count: int) -> list[list[tuple[PieceContent, str]]]:
    """Of about equal size: the largest first, each to the share that is the smallest then."""
    shares: list[list[tuple[PieceContent, str]]] = [[] for _ in range(count)]
    sizes = [0] * count
    for pair in sorted(pairs, key=lambda pair: -len(pair[0].content)):
        smallest = sizes.index(min(sizes))
        shares[smallest].append(pair)
        sizes[smallest] += len(pair[0].content) + 1
    return shares


def _laid_out(pack: str, share: list[tuple[PieceContent, str]]) -> Iterator[Piece]:
    offset = 0
    for content, digest in share:
        length = len(content.content)
        yield Piece(content.name, pack, offset, length, digest, content.place, content.shape)
        offset += length
