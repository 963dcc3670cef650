"""Between the manifest and torch.distributed.checkpoint: what its planners call metadata, and reading by their plans.

Imports torch. Knows nothing about ranks that wait for each other: that is `saver`.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType

from .manifest import Manifest, Piece, TensorKind
from .run_store import RunStore

_Key = tuple[str, "tuple[int, ...] | None"]


def tensors_of(metadata: Metadata) -> dict[str, TensorKind]:
    return {
        name: TensorKind(dtype_name(kind.properties.dtype), tuple(kind.size))
        for name, kind in metadata.state_dict_metadata.items()
        if isinstance(kind, TensorStorageMetadata)
    }


def metadata_of(manifest: Manifest) -> Metadata:
    chunks: dict[str, list[ChunkStorageMetadata]] = {}
    objects: dict[str, BytesStorageMetadata] = {}
    for piece in manifest.pieces:
        if piece.place is None or piece.shape is None:
            objects[piece.name] = BytesStorageMetadata()
        else:
            chunk = ChunkStorageMetadata(torch.Size(piece.place), torch.Size(piece.shape))
            chunks.setdefault(piece.name, []).append(chunk)
    tensors = {
        name: TensorStorageMetadata(TensorProperties(dtype=dtype(kind.dtype)), torch.Size(kind.shape), chunks[name])
        for name, kind in manifest.tensors.items()
    }
    return Metadata(state_dict_metadata={**tensors, **objects}, planner_data=dict(manifest.paths))


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"this version of torch has no type {name!r}")
    return found


class PieceReader:
    """Reads what a plan needs in two steps: everything into memory, with checksums checked; then into the tensors."""

    def __init__(self, store: RunStore, manifest: Manifest, threads: int) -> None:
        self._store = store
        self._pieces = {_key(piece.name, piece.place): piece for piece in manifest.pieces}
        self._kinds = manifest.tensors
        self._threads = threads
        self._contents: dict[_Key, bytearray] = {}

    def read(self, items: list[Any]) -> None:
        """Raises `Damaged`; then nothing has been loaded."""
        wanted = {_key_of(item.storage_index): self._pieces[_key_of(item.storage_index)] for item in items}
        with ThreadPoolExecutor(self._threads) as pool:
            read = pool.map(self._store.read_piece, wanted.values())
            self._contents = dict(zip(wanted, read))  # noqa: B905  `strict` needs Python 3.10

    def load(self, items: list[Any], planner: Any) -> None:
        for item in items:
            piece, content = self._pieces[_key_of(item.storage_index)], self._contents[_key_of(item.storage_index)]
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(content))
                continue
            part = _tensor(content, self._kinds[piece.name], piece)
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths)):  # noqa: B905
                part = part.narrow(dimension, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(part)
            planner.commit_tensor(item, target)


def _tensor(content: bytearray, kind: TensorKind, piece: Piece) -> torch.Tensor:
    if not content:
        return torch.empty(piece.shape or (), dtype=dtype(kind.dtype))
    return torch.frombuffer(content, dtype=dtype(kind.dtype)).reshape(piece.shape or ())


def _key(name: str, place: tuple[int, ...] | None) -> _Key:
    return (name, place)


def _key_of(index: MetadataIndex) -> _Key:
    return (index.fqn, None if index.offset is None else tuple(index.offset))
