"""One run in a storage: its log, its manifests and its packs; committing, verifying, removing.

Knows no torch and no process group: a leader commits what its ranks have written. In the folder of the run, ``log``
holds entries with consecutive numbers, ``manifests`` and ``packs`` what they refer to. The order of writing is the
whole protocol: packs, then the manifest, then the entry (the commit); to remove: the entry, then the packs. Whatever
is interrupted leaves objects that no entry refers to, and these are removed by the next writer.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

from . import run_log
from .keep_rules import KeepRules, to_remove
from .manifest import Damaged, Manifest, Origin, Piece, decode, encode
from .run_log import RunState, StoredCheckpoint, Writer, check_right, claim_of, decode_entry, encode_entry
from .storage import Storage

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ENTRY = re.compile(r"([0-9]{10})\.json")
_READ = 32 << 20
_TRIES = 1000


class NothingUsable(Exception):
    """The run has checkpoints, and none of them can be used."""


class RunStore:
    """``now_ms``: the wall clock, for entries."""

    def __init__(
        self, storage: Storage, run: str, *, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        if not RUN_NAME.fullmatch(run):
            raise ValueError(f"{run!r} is no name of a run: use up to 128 letters, digits, dots, dashes, underscores")
        self.storage = storage
        self.run = run
        self._now_ms = now_ms
        self._state = RunState()

    # --- the log -----------------------------------------------------------------------------------------

    def state(self) -> RunState:
        """As of now: reads the entries that were added since the last call."""
        for name in sorted(self.storage.names(f"{self.run}/log")):
            match = _ENTRY.fullmatch(name)
            if match and int(match[1]) > self._state.head:
                self._state.apply(int(match[1]), decode_entry(self.storage.read(f"{self.run}/log/{name}")))
        return self._state

    def open(self, origin: Origin) -> Writer:
        """Become the writer of the run; raises `Fenced` if a later attempt already is."""
        identity = os.urandom(8).hex()
        number = self._append(
            run_log.OPENED,
            lambda state: {
                "id": identity,
                "origin": asdict(origin),
                "claim": claim_of(state, origin),
                "at_ms": self._now_ms(),
            },
        )
        return self.state().writers[number]

    def commit(self, writer: Writer, manifest: Manifest, stall_ms: int = 0) -> StoredCheckpoint:
        """Make a checkpoint exist. Every pack must be durable. Raises `Fenced`, and `Damaged` if the checkpoint whose
        packs it uses was removed meanwhile."""
        content = encode(manifest)
        name = f"{manifest.step:016d}-{writer.number:010d}-{os.urandom(4).hex()}.json"
        if not self.storage.create(f"{self.run}/manifests/{name}", content):
            raise Damaged(f"the manifest {name} exists already")
        own = f"{writer.number:010d}-{manifest.step:016d}-"

        def entry(state: RunState) -> dict[str, Any]:
            check_right(state, writer)
            base = state.checkpoints.get(manifest.base)
            if manifest.base and (base is None or base.removed):
                raise Damaged("the checkpoint that it continues was removed meanwhile")
            return {
                "step": manifest.step,
                "manifest": name,
                "sha256": hashlib.sha256(content).hexdigest(),
                "size": manifest.size,
                "new": sum(size for pack, size in manifest.packs.items() if pack.startswith(own)),
                "world": manifest.world,
                "writer": writer.number,
                "at_ms": self._now_ms(),
                "save_ms": manifest.save_ms,
                "stall_ms": stall_ms,
                "metrics": manifest.metrics,
            }

        number = self._append(run_log.SAVED, entry)
        return self.state().checkpoints[number]

    def note_damaged(self, checkpoint: StoredCheckpoint, why: str) -> None:
        self._append(run_log.DAMAGED, lambda _: {"checkpoint": checkpoint.number, "why": why, "at_ms": self._now_ms()})

    def note_used(self, checkpoint: StoredCheckpoint, run: str, origin: Origin) -> None:
        fields = {"checkpoint": checkpoint.number, "run": run, "job": origin.job, "attempt": origin.attempt}
        self._append(run_log.USED, lambda _: {**fields, "at_ms": self._now_ms()})

    def _append(self, kind: str, entry: Callable[[RunState], dict[str, Any]]) -> int:
        """Add an entry as the last one. ``entry`` is asked again whenever the log has grown meanwhile, and raises if it
        is no longer right."""
        nonce = os.urandom(8).hex()
        for _ in range(_TRIES):
            state = self.state()
            number = state.head + 1
            content = encode_entry(kind, {**entry(state), "nonce": nonce})
            name = f"{self.run}/log/{number:010d}.json"
            if self.storage.create(name, content) or self.storage.read(name) == content:  # a lost answer
                return number
        raise TimeoutError(f"the log of run {self.run} grew {_TRIES} times while an entry was added")

    # --- reading -----------------------------------------------------------------------------------------

    def choose(self, step: int | None = None) -> tuple[StoredCheckpoint | None, str]:
        """The newest checkpoint whose parts all exist, or the one of ``step``; if there is none, why: empty if there
        never was one. Incomplete ones are marked on the way. Whether the content is good is seen when it is read."""
        found = [each for each in self.state().usable() if step is None or each.step == step]
        reason = "" if found or step is None else f"there is no usable checkpoint of step {step}"
        for each in found:
            try:
                self.check_packs(self.manifest(each))
            except Damaged as fault:
                reason = f"step {each.step}: {fault}"
                self.refuse(each, str(fault))
            else:
                return each, ""
        damaged = [each for each in self.state().checkpoints.values() if each.damaged and not each.removed]
        if damaged and not reason:
            reason = f"step {damaged[-1].step}: {damaged[-1].damaged}"
        return None, reason

    def refuse(self, checkpoint: StoredCheckpoint, why: str) -> None:
        """Mark a checkpoint as damaged and tell the user."""
        print(f"corral: the checkpoint of step {checkpoint.step} is not used: {why}", file=sys.stderr, flush=True)
        self.note_damaged(checkpoint, why)

    def manifest(self, checkpoint: StoredCheckpoint) -> Manifest:
        """Raises `Damaged`."""
        return decode(self.manifest_content(checkpoint), checkpoint.sha256)

    def manifest_content(self, checkpoint: StoredCheckpoint) -> bytes:
        try:
            return self.storage.read(f"{self.run}/manifests/{checkpoint.manifest}")
        except FileNotFoundError:
            raise Damaged("the manifest is missing") from None

    def check_packs(self, manifest: Manifest) -> None:
        """Whether all packs exist with their sizes; raises `Damaged`. Cheap: reads no content."""
        sizes = self.storage.names(f"{self.run}/packs")
        for name, size in manifest.packs.items():
            if name not in sizes:
                raise Damaged(f"pack {name} is missing")
            if sizes[name] != size:
                raise Damaged(f"pack {name} has {sizes[name]} bytes instead of {size}")

    def read_piece(self, piece: Piece) -> bytearray:
        """Its bytes, with the checksum checked; raises `Damaged`."""
        content = bytearray(piece.length)
        view = memoryview(content)
        try:
            size = self.storage.read_into(f"{self.run}/packs/{piece.pack}", piece.offset, view)
        except FileNotFoundError:
            raise Damaged(f"pack {piece.pack} is missing") from None
        if size < piece.length:
            raise Damaged(f"pack {piece.pack} is truncated")
        if hashlib.sha256(view).hexdigest() != piece.sha256:
            raise Damaged(f"{piece.name} in pack {piece.pack} is not as it was saved")
        return content

    def verify(self, checkpoint: StoredCheckpoint) -> Manifest:
        """Read all of it; raises `Damaged` with the first problem."""
        manifest = self.manifest(checkpoint)
        self.check_packs(manifest)
        for piece in manifest.pieces:
            self._verify_piece(piece)
        return manifest

    def _verify_piece(self, piece: Piece) -> None:
        digest = hashlib.sha256()
        for start in range(0, piece.length, _READ):
            length = min(_READ, piece.length - start)
            digest.update(self.storage.read(f"{self.run}/packs/{piece.pack}", piece.offset + start, length))
        if digest.hexdigest() != piece.sha256:
            raise Damaged(f"{piece.name} in pack {piece.pack} is not as it was saved")

    # --- writing -----------------------------------------------------------------------------------------

    def write_pack(self, name: str, chunks: Iterable[memoryview | bytes]) -> int:
        return self.storage.write(f"{self.run}/packs/{name}", chunks)

    def remove_packs(self, names: Iterable[str]) -> None:
        for name in names:
            self.storage.remove(f"{self.run}/packs/{name}")

    def prune(self, rules: KeepRules) -> list[StoredCheckpoint]:
        """Remove the checkpoints that are not to be kept."""
        return self.remove(to_remove(self.state(), rules))

    def remove(self, why: dict[int, str]) -> list[StoredCheckpoint]:
        """Remove checkpoints by number. From its entry on a checkpoint is not used; then what only it needs goes."""
        doomed = [self.state().checkpoints[number] for number in why]
        manifests = [manifest for found in doomed if (manifest := self._manifest_or_none(found))]
        for found in doomed:
            fields = {"checkpoint": found.number, "why": why[found.number]}
            self._append(run_log.REMOVED, lambda _, fields=fields: {**fields, "at_ms": self._now_ms()})  # type: ignore[misc]
        if doomed:
            held = self._packs_in_use()
            self.remove_packs({pack for manifest in manifests for pack in manifest.packs} - held)
            for found in doomed:
                self.storage.remove(f"{self.run}/manifests/{found.manifest}")
        return doomed

    def clean(self, before: int) -> int:
        """Remove what interrupted saves have left: packs and manifests that no entry refers to, of writers whose number
        is below ``before``; returns how many. Such a writer can no longer commit, so nothing will refer to them."""
        held = self._packs_in_use()
        packs = [
            name
            for name in self.storage.names(f"{self.run}/packs")
            if name not in held and _writer_of(name, 0) < before
        ]
        self.remove_packs(packs)
        named = {found.manifest for found in self.state().checkpoints.values() if not found.removed}
        names = self.storage.names(f"{self.run}/manifests")
        manifests = [name for name in names if name not in named and _writer_of(name, 1) < before]
        for name in manifests:
            self.storage.remove(f"{self.run}/manifests/{name}")
        return len(packs) + len(manifests)

    def _packs_in_use(self) -> set[str]:
        kept = [found for found in self.state().checkpoints.values() if not found.removed]
        manifests = [manifest for found in kept if (manifest := self._manifest_or_none(found))]
        return {pack for manifest in manifests for pack in manifest.packs}

    def _manifest_or_none(self, checkpoint: StoredCheckpoint) -> Manifest | None:
        try:
            return self.manifest(checkpoint)
        except Damaged:
            return None


def pack_name(writer: int, step: int, rank: int, count: int) -> str:
    return f"{writer:010d}-{step:016d}-{rank:06d}-{count:04d}-{os.urandom(4).hex()}.pack"


def runs_in(storage: Storage) -> Iterator[RunStore]:
    for name in storage.folders():
        if RUN_NAME.fullmatch(name) and "log" in storage.folders(name):
            yield RunStore(storage, name)


def _writer_of(name: str, part: int) -> int:
    fields = name.split("-")
    return int(fields[part]) if len(fields) > part and fields[part].isdecimal() else 0
