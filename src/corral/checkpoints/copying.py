"""Copies of checkpoints in another storage, and files that other programs read.

Knows no torch, except to write its own format. Everything that is read is checked; a copy is committed as any other
checkpoint, so it exists in whole or not at all, and a copy by an attempt that was replaced is refused.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from .manifest import Damaged, Manifest, Piece, TensorKind
from .piece_writer import PieceWriter
from .run_log import StoredCheckpoint, Writer
from .run_store import RunStore

#: torch's names of types, with the names of safetensors and the sizes of an element.
_TYPES = {
    "float64": ("F64", 8), "float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2),
    "float8_e4m3fn": ("F8_E4M3", 1), "float8_e5m2": ("F8_E5M2", 1), "int64": ("I64", 8), "int32": ("I32", 4),
    "int16": ("I16", 2), "int8": ("I8", 1), "uint8": ("U8", 1), "bool": ("BOOL", 1), "uint16": ("U16", 2),
    "uint32": ("U32", 4), "uint64": ("U64", 8),
}  # fmt: skip


@dataclass(frozen=True)
class ReadPiece:
    """A piece with its bytes, to be stored elsewhere."""

    name: str
    content: memoryview
    place: tuple[int, ...] | None
    shape: tuple[int, ...] | None


def copy(
    source: RunStore, checkpoint: StoredCheckpoint, target: RunStore, writer: Writer | None = None
) -> StoredCheckpoint:
    """Copy a checkpoint to a run of another storage, or to another run; what is there already is not stored again.

    ``writer``: of the target, if it was opened before. Raises `Damaged` if the source is, and `Fenced`.
    """
    manifest = source.manifest(checkpoint)
    writer = target.open(manifest.origin) if writer is None else writer
    held = target.state().usable()
    base = target.manifest(held[0]) if held else None
    pieces_writer = PieceWriter(target, threads=1)
    pieces_writer.remember(base.pieces if base else ())
    pieces: list[Piece] = []
    packs: dict[str, int] = {}
    for group in _by_pack(manifest):
        contents = [
            ReadPiece(piece.name, memoryview(source.read_piece(piece)), piece.place, piece.shape) for piece in group
        ]
        stored, written = pieces_writer.write(writer.number, manifest.step, 0, list(contents))
        pieces += stored
        packs.update(written)
    earlier = {piece.pack for piece in pieces} - packs.keys()
    if base:
        packs.update({name: base.packs[name] for name in earlier})
    copied = replace(manifest, run=target.run, packs=packs, pieces=tuple(pieces), base=held[0].number if earlier else 0)
    return target.commit(writer, copied)


def copy_new(source: RunStore, target: RunStore) -> list[StoredCheckpoint]:
    """Copy the checkpoints that the target does not have yet, oldest first, so that the newest copy is the newest one.

    A second storage that is filled so, by a process beside the job, survives what happens to the first. Checkpoints
    that were removed or damaged meanwhile are left out.
    """
    there = {(saved.step, _claim(target, saved)) for saved in target.state().checkpoints.values()}
    copied = []
    for saved in reversed(source.state().usable()):
        if (saved.step, _claim(source, saved)) not in there:
            try:
                copied.append(copy(source, saved, target))
            except Damaged:
                if source.state().checkpoints[saved.number].is_usable:
                    raise
    return copied


def newest_store(stores: list[RunStore]) -> RunStore:
    """The one with the newest usable checkpoint; of equal ones the first."""
    return max(stores, key=_newest)


def _newest(store: RunStore) -> tuple[tuple[int, int], int]:
    found = store.state().usable()
    return (_claim(store, found[0]), found[0].step) if found else ((-1, -1), -1)


def _claim(store: RunStore, saved: StoredCheckpoint) -> tuple[int, int]:
    writer = store.state().writers.get(saved.writer)
    return writer.claim if writer else (0, 0)


def _by_pack(manifest: Manifest) -> Iterator[list[Piece]]:
    """One pack after the other, so that at most one is in memory."""
    groups: dict[str, list[Piece]] = {}
    for piece in manifest.pieces:
        groups.setdefault(piece.pack, []).append(piece)
    yield from groups.values()


# --- files for other programs ----------------------------------------------------------------------------


def export_safetensors(store: RunStore, checkpoint: StoredCheckpoint, path: str, only: str = "") -> list[str]:
    """Write the tensors to one file; returns the names of what is not a tensor, and so is not in it.

    ``only``: the part of the state with this name, such as ``model``; names in the file are then without it.
    """
    manifest = store.manifest(checkpoint)
    chosen = {name: kind for name, kind in sorted(manifest.tensors.items()) if _is_below(name, only)}
    if not chosen:
        raise ValueError(f"the checkpoint has no tensor below {only!r}" if only else "the checkpoint has no tensor")
    header: dict[str, Any] = {
        "__metadata__": {"format": "pt", "step": str(manifest.step), "run": manifest.run, "job": manifest.origin.job}
    }
    end = 0
    for name, kind in chosen.items():
        size = _product(kind.shape) * _type(name, kind)[1]
        header[_short(name, only)] = {
            "dtype": _type(name, kind)[0],
            "shape": list(kind.shape),
            "data_offsets": [end, end + size],
        }
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, kind in chosen.items():
            file.write(whole_tensor(store, manifest, name, _type(name, kind)[1]))

    _write_whole(path, write)
    return sorted({piece.name for piece in manifest.pieces if piece.place is None and _is_below(piece.name, only)})


def export_torch(store: RunStore, checkpoint: StoredCheckpoint, path: str, only: str = "") -> list[str]:
    """Write the nested state as ``torch.save`` does; needs torch. Objects that are not plain values are left out, and
    their names returned: to read them would run code of the user who saved them."""
    import io
    import pickle

    import torch

    manifest = store.manifest(checkpoint)
    state: dict[Any, Any] = {}
    left: list[str] = []
    for name, kind in manifest.tensors.items():
        if _is_below(name, only):
            content = whole_tensor(store, manifest, name, _type(name, kind)[1])
            dtype = getattr(torch, kind.dtype)
            tensor = torch.frombuffer(content, dtype=dtype) if content else torch.empty(0, dtype=dtype)
            _put(state, manifest.paths.get(name, (name,)), tensor.reshape(kind.shape))
    for piece in manifest.pieces:
        if piece.place is None and _is_below(piece.name, only):
            try:
                value = torch.load(io.BytesIO(store.read_piece(piece)), weights_only=True)
            except (pickle.UnpicklingError, RuntimeError):
                left.append(piece.name)
            else:
                _put(state, manifest.paths.get(piece.name, (piece.name,)), value)
    for key in only.split(".") if only else ():
        state = state[key]
    _write_whole(path, lambda file: torch.save(_lists(state), file))
    return left


def whole_tensor(store: RunStore, manifest: Manifest, name: str, element: int) -> bytearray:
    """The bytes of a tensor, from its pieces."""
    shape = manifest.tensors[name].shape
    whole = bytearray(_product(shape) * element)
    for piece in manifest.pieces:
        if piece.name == name and piece.place is not None and piece.shape is not None:
            part = memoryview(store.read_piece(piece))
            for start, at, length in _runs(shape, piece.place, piece.shape):
                whole[start * element : (start + length) * element] = part[at * element : (at + length) * element]
    return whole


def _runs(whole: tuple[int, ...], place: tuple[int, ...], part: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Consecutive elements of a part: where they are in the whole tensor, where in the part, and how many."""
    if not _product(part):
        return
    split = len(whole)  # dimensions from here on are complete in the part, so they are consecutive in both
    while split > 0 and part[split - 1] == whole[split - 1]:
        split -= 1
    if split == 0:
        yield 0, 0, _product(whole)
        return
    length = part[split - 1] * _product(whole[split:])
    counts = part[: split - 1]
    for number in range(_product(counts)):
        rest = number
        start = place[split - 1] * _product(whole[split:])
        stride = _product(whole[split - 1 :])
        for dimension in range(split - 2, -1, -1):
            rest, index = divmod(rest, counts[dimension])
            start += (place[dimension] + index) * stride
            stride *= whole[dimension]
        yield start, number * length, length


def _put(state: dict[Any, Any], path: tuple[str | int, ...], value: Any) -> None:
    for key in path[:-1]:
        state = state.setdefault(key, {})
    state[path[-1]] = value


def _lists(value: Any) -> Any:
    """Dicts whose keys are 0, 1, 2, … were lists."""
    if not isinstance(value, dict):
        return value
    inside = {key: _lists(each) for key, each in value.items()}
    if (
        inside
        and sorted(map(str, inside)) == sorted(map(str, range(len(inside))))
        and all(isinstance(key, int) for key in inside)
    ):
        return [inside[at] for at in range(len(inside))]
    return inside


def _type(name: str, kind: TensorKind) -> tuple[str, int]:
    if kind.dtype not in _TYPES:
        raise ValueError(f"{name} has the type {kind.dtype}, which cannot be exported")
    return _TYPES[kind.dtype]


def _is_below(name: str, only: str) -> bool:
    return not only or name == only or name.startswith(f"{only}.")


def _short(name: str, only: str) -> str:
    return name[len(only) + 1 :] if only and name != only else name


def _product(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product


def _write_whole(path: str, write: Callable[[BinaryIO], None]) -> None:
    """The file has all of it, or does not exist. A device or a pipe, such as /dev/null, is not replaced: OSError."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise FileExistsError(17, "is no file", path)
    beside = f"{path}.{os.getpid()}.new"
    try:
        with open(beside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        if os.path.exists(beside):
            os.unlink(beside)
        raise
