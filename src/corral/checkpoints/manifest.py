"""The manifest of a checkpoint: what it consists of, with sizes and checksums, and where it comes from.

Pure. A checkpoint is a set of *pieces* (the part of a tensor that one rank holds, or an object), stored one after the
other in *packs*. A manifest may refer to packs of earlier checkpoints: unchanged pieces are stored once. What is read
here was stored by strangers or damaged by a disk: everything is checked, and only `Damaged` is raised.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 1
STEP_MAX = (1 << 53) - 1
PACK_NAME = re.compile(r"[0-9]{10}-[0-9]{16}-[0-9]{6}-[0-9]{4}-[0-9a-f]{8}\.pack")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class Damaged(Exception):
    """A checkpoint is not as it was saved: incomplete, truncated or changed."""


@dataclass(frozen=True)
class Piece:
    """The bytes of a part of a tensor, or of an object: then ``place`` and ``shape`` are None.

    ``place``: where the part begins in the whole tensor, by dimension.
    """

    name: str
    pack: str
    offset: int
    length: int
    sha256: str
    place: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class TensorKind:
    """The whole tensor: its type as torch names it (``float32``), and its shape."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Origin:
    """Which process saved it. ``job``: empty outside Corral. ``code``: the commit of the code in its directory."""

    job: str = ""
    gang: str = ""
    attempt: int = 0
    user: str = ""
    host: str = ""
    code: str = ""


@dataclass(frozen=True)
class Manifest:
    """``paths``: where each name is in the nested state, as keys from the outside. ``base``: the position in the log of
    the checkpoint whose packs it uses too; 0: it uses only its own."""

    run: str
    step: int
    world: int
    saved_ms: int
    save_ms: int
    origin: Origin
    packs: dict[str, int]
    pieces: tuple[Piece, ...]
    tensors: dict[str, TensorKind]
    paths: dict[str, tuple[str | int, ...]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    base: int = 0

    @property
    def size(self) -> int:
        """Bytes of the state, whether stored for this checkpoint or for an earlier one."""
        return sum(piece.length for piece in self.pieces)


def encode(manifest: Manifest) -> bytes:
    record = asdict(manifest)
    record["format"] = FORMAT
    record["pieces"] = [
        [p.name, p.pack, p.offset, p.length, p.sha256, _listed(p.place), _listed(p.shape)] for p in manifest.pieces
    ]
    return json.dumps(record, separators=(",", ":")).encode()


def _listed(sizes: tuple[int, ...] | None) -> list[int] | None:
    return None if sizes is None else list(sizes)


def decode(content: bytes, sha256: str) -> Manifest:
    """Raises `Damaged` unless it is the manifest with this checksum, and complete in itself."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise Damaged("the manifest is not as it was saved")
    try:
        record = json.loads(content)
        if record["format"] != FORMAT:
            raise Damaged(f"the manifest has format {record['format']!r}; this version reads {FORMAT}")
        found = _manifest(record)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MemoryError) as fault:
        raise Damaged(f"the manifest cannot be read: {fault!r:.200}") from None
    for problem in _contradictions(found):
        raise Damaged(problem)
    return found


def _manifest(record: dict[str, Any]) -> Manifest:
    return Manifest(
        run=str(record["run"]),
        step=_count(record["step"]),
        world=_count(record["world"]),
        saved_ms=_count(record["saved_ms"]),
        save_ms=_count(record["save_ms"]),
        origin=Origin(**record["origin"]),
        packs={_pack(name): _count(size) for name, size in record["packs"].items()},
        pieces=tuple(_piece(*fields) for fields in record["pieces"]),
        tensors={
            name: TensorKind(str(kind["dtype"]), _sizes(kind["shape"])) for name, kind in record["tensors"].items()
        },
        paths={name: tuple(_key(key) for key in path) for name, path in record["paths"].items()},
        metrics={str(name): float(value) for name, value in record["metrics"].items()},
        base=_count(record["base"]),
    )


def _piece(name: str, pack: str, offset: int, length: int, sha256: str, place: Any, shape: Any) -> Piece:
    if not _DIGEST.fullmatch(sha256):
        raise ValueError(f"{sha256!r} is no checksum")
    sizes = None if place is None else _sizes(place)
    return Piece(
        str(name), pack, _count(offset), _count(length), sha256, sizes, None if place is None else _sizes(shape)
    )


def _pack(name: str) -> str:
    if not PACK_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a pack")
    return name


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= STEP_MAX:
        raise ValueError(f"{value!r} is no count")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    return tuple(_count(value) for value in values)


def _key(value: Any) -> str | int:
    if not isinstance(value, (str, int)):
        raise TypeError(f"{value!r} is no key")
    return value


def _contradictions(manifest: Manifest) -> list[str]:
    """Whether the pieces are in the packs, and cover every tensor exactly."""
    found = []
    covered: dict[str, int] = {}
    for piece in manifest.pieces:
        if piece.offset + piece.length > manifest.packs.get(piece.pack, -1):
            found.append(f"a piece of {piece.name} is outside of its pack")
        if piece.place is None or piece.shape is None:
            continue
        kind = manifest.tensors.get(piece.name)
        is_within = kind is not None and len(piece.place) == len(piece.shape) == len(kind.shape)
        if kind is None or not is_within or not _is_inside(piece, kind):
            found.append(f"a piece of {piece.name} is outside of its tensor")
            continue
        covered[piece.name] = covered.get(piece.name, 0) + _product(piece.shape)
    missing = [name for name, kind in manifest.tensors.items() if covered.get(name, 0) < _product(kind.shape)]
    return [*found, f"{len(missing)} tensors are incomplete, such as {missing[0]}"] if missing else found


def _is_inside(piece: Piece, kind: TensorKind) -> bool:
    place, shape = piece.place or (), piece.shape or ()
    return all(place[at] + shape[at] <= kind.shape[at] for at in range(len(kind.shape)))


def _product(sizes: tuple[int, ...]) -> int:
    product = 1
    for size in sizes:
        product *= size
    return product
