"""Checkpoints without torch: pieces whose content follows from step, attempt and rank, so that a mixture is noticed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from corral.checkpoints.manifest import Damaged, Manifest, Origin, Piece, TensorKind
from corral.checkpoints.piece_writer import PieceWriter
from corral.checkpoints.run_log import StoredCheckpoint, Writer
from corral.checkpoints.run_store import RunStore

SIZE = 64


@dataclass(frozen=True)
class Content:
    name: str
    content: memoryview
    place: tuple[int, ...] | None
    shape: tuple[int, ...] | None


def frozen(rank: int) -> bytes:
    """The same in every checkpoint: stored once."""
    return hashlib.sha256(f"frozen {rank}".encode()).digest() * (SIZE // 32)


def trained(step: int, attempt: int, rank: int) -> bytes:
    return hashlib.sha256(f"{step} {attempt} {rank}".encode()).digest() * (SIZE // 32)


def contents(step: int, attempt: int, rank: int) -> list[Content]:
    rows = {"frozen": frozen(rank), "trained": trained(step, attempt, rank)}
    return [Content(name, memoryview(held), (rank * SIZE,), (SIZE,)) for name, held in rows.items()]


def origin(attempt: int, job: int = 7) -> Origin:
    return Origin(job=str(job), gang=f"{job}", attempt=attempt, user="ann", host="n1", code="c" * 40)


def save(
    store: RunStore,
    writer: Writer,
    step: int,
    world: int = 2,
    base: tuple[int, Manifest] | None = None,
    metrics: dict[str, float] | None = None,
) -> tuple[StoredCheckpoint, Manifest]:
    """Every rank writes, then rank 0 commits, as in `corral.checkpoints.saver`."""
    pieces: list[Piece] = []
    packs: dict[str, int] = {}
    for rank in range(world):
        piece_writer = PieceWriter(store, threads=1)
        piece_writer.remember(base[1].pieces if base else ())
        stored, written = piece_writer.write(
            writer.number, step, rank, list(contents(step, writer.origin.attempt, rank))
        )
        pieces += stored
        packs.update(written)
    earlier = {piece.pack for piece in pieces} - packs.keys()
    if base:
        packs.update({name: base[1].packs[name] for name in earlier})
    kind = TensorKind("uint8", (world * SIZE,))
    manifest = Manifest(
        run=store.run,
        step=step,
        world=world,
        saved_ms=0,
        save_ms=5,
        origin=writer.origin,
        packs=packs,
        pieces=tuple(pieces),
        tensors={"frozen": kind, "trained": kind},
        metrics=metrics or {},
        base=base[0] if base and earlier else 0,
    )
    return store.commit(writer, manifest), manifest


def restore(store: RunStore) -> tuple[StoredCheckpoint, Manifest] | None:
    """The newest good checkpoint, with everything read and compared with what was saved; None: there is none."""
    while True:
        found, _ = store.choose()
        if found is None:
            return None
        manifest = store.manifest(found)
        try:
            read = {(piece.name, piece.place): bytes(store.read_piece(piece)) for piece in manifest.pieces}
        except Damaged as fault:
            store.refuse(found, str(fault))
            continue
        assert read == expected(manifest), f"step {manifest.step} was loaded and is not what was saved"
        return found, manifest


def expected(manifest: Manifest) -> dict[tuple[str, tuple[int, ...] | None], bytes]:
    ranks = range(manifest.world)
    attempt = manifest.origin.attempt
    return {
        **{("frozen", (rank * SIZE,)): frozen(rank) for rank in ranks},
        **{("trained", (rank * SIZE,)): trained(manifest.step, attempt, rank) for rank in ranks},
    }


def steps(found: Sequence[StoredCheckpoint]) -> list[int]:
    return [each.step for each in found]
