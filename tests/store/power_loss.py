"""Loss of power, replayed: a process writes under a shim that notes what it does to its disk; then, for many moments,
the disk is made as it may look when the power goes at that moment, and the journal is opened on it.

    python -m tests.store.power_loss --points 1000 [--seed 1]

What was synced is there. Of what was not, each write may be there, be missing, or be torn at any sector of 512 bytes,
whatever became of the others; of the names that came, went or changed since their folder was synced, the first few did.
Ends with one line of JSON. Needs gcc.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from corral.store.journal import JournalBroken, JournalUnusable
from corral.store.sqlite import SqliteJournal
from corral.store.verify import verify

SECTOR = 512
_HEAD = struct.Struct("<cQQI")


@dataclass
class Note:
    """One thing that the process did; see power_shim.c."""

    kind: str
    file: int
    at: int
    content: bytes
    what: File | None = None  # the file that a name was given to


def has_compiler() -> bool:
    return shutil.which("gcc") is not None


def record(scratch: Path, records: int, *, runs: int = 3, careless: bool = False) -> list[Note]:
    """Have a process write, end and start again, and return all that it did."""
    shim, log, folder = scratch / "shim.so", scratch / "log", (scratch / "data").resolve()
    source = Path(__file__).with_name("power_shim.c")
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", shim, source, "-ldl", "-lpthread"], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(shim), "POWER_FOLDER": str(folder), "POWER_LOG": str(log)}
    for run in range(runs):
        command = [sys.executable, "-m", "tests.store.crash_writer", str(folder), str(records * (run + 1) // runs)]
        command += ["--careless"] if careless else []
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, timeout=300)
    return list(_notes(log.read_bytes()))


def _notes(log: bytes) -> Iterator[Note]:
    at = 0
    while at < len(log):
        kind, file, offset, length = _HEAD.unpack_from(log, at)
        at += _HEAD.size
        yield Note(kind.decode(), file, offset, log[at : at + length])
        at += length


@dataclass
class File:
    """What is certainly on disk, and what was done since."""

    synced: bytearray = field(default_factory=bytearray)
    unsynced: list[Note] = field(default_factory=list)

    def sync(self) -> None:
        for note in self.unsynced:
            _do(self.synced, note)
        self.unsynced.clear()

    def after_loss(self, rng: Random) -> bytes:
        content = bytearray(self.synced)
        keeps = rng.choice((0.0, 0.2, 0.5, 0.8, 1.0))
        for note in self.unsynced:
            if rng.random() < 0.2 and note.kind == "W":
                for torn in _sectors(note):
                    if rng.random() < keeps:
                        _do(content, torn)
            elif rng.random() < keeps:
                _do(content, note)
        return bytes(content)


def _do(content: bytearray, note: Note) -> None:
    if note.kind == "T":
        del content[note.at :]
        content.extend(bytes(note.at - len(content)))
    else:
        content.extend(bytes(max(0, note.at - len(content))))
        content[note.at : note.at + len(note.content)] = note.content


def _sectors(note: Note) -> Iterator[Note]:
    begin, end = note.at, note.at + len(note.content)
    while begin < end:
        stop = min(end, (begin // SECTOR + 1) * SECTOR)
        yield Note("W", note.file, begin, note.content[begin - note.at : stop - note.at])
        begin = stop


@dataclass
class Disk:
    """A folder and all below it, as far as it is certain, with what is not."""

    files: dict[int, File] = field(default_factory=dict)
    names: dict[str, File | None] = field(default_factory=dict)  # durable; None: a folder
    unsynced: list[Note] = field(default_factory=list)  # what happened to names
    acknowledged: int = 0

    def take(self, note: Note) -> None:
        if note.kind == "A":
            self.acknowledged = max(self.acknowledged, *map(int, note.content.split()))
        elif note.kind == "S":
            self.files[note.file].sync()
        elif note.kind in "WT":
            self.files[note.file].unsynced.append(note)
        elif note.kind == "D":
            self._sync_names(note.content.decode())
        else:
            if note.kind == "O":
                self.files[note.file] = File()
            self.unsynced.append(Note(note.kind, note.file, 0, note.content, self.files.get(note.file)))

    def _sync_names(self, folder: str) -> None:
        """Names become durable in order: those of other folders that came before go with them."""
        last = max((n for n, note in enumerate(self.unsynced) if _folder_of(note) == folder), default=-1)
        for note in self.unsynced[: last + 1]:
            _rename(self.names, note)
        del self.unsynced[: last + 1]

    def lose_power(self, target: Path, rng: Random) -> None:
        """The folder as it may be found afterwards."""
        names = dict(self.names)
        for note in self.unsynced[: rng.randint(0, len(self.unsynced))]:
            _rename(names, note)
        target.mkdir(parents=True)
        contents: dict[int, bytes] = {}
        for name, file in sorted(names.items()):
            path = target / name
            if file is None:
                path.mkdir(parents=True, exist_ok=True)
            elif path.parent.is_dir():
                path.write_bytes(contents.setdefault(id(file), file.after_loss(rng)))


def _folder_of(note: Note) -> str:
    return note.content.decode().rpartition("/")[0]


def _rename(names: dict[str, File | None], note: Note) -> None:
    name, file = note.content.decode(), note.what
    if note.kind == "U":
        names.pop(name, None)
    elif note.kind == "M":
        names[name] = None
    else:
        for other in [other for other, known in names.items() if known is file and file is not None]:
            del names[other]
        names[name] = file


def try_points(notes: list[Note], points: int, seed: int, scratch: Path) -> dict[str, int]:
    """Lose power at this many times. Counts what was lost, and what was found wrong."""
    rng = Random(seed)
    first = next(n for n, note in enumerate(notes) if note.kind == "A")  # before, nothing was acknowledged
    early, late = points // 10, points - points // 10
    moments = sorted(rng.choices(range(first), k=early) + rng.choices(range(first, len(notes)), k=late))
    disk, told = Disk(), {"points": points, "lost": 0, "corrupt": 0, "acknowledged": 0}
    at = 0
    for number, moment in enumerate(moments):
        while at <= moment:
            disk.take(notes[at])
            at += 1
        target = scratch / f"after-{number}"
        disk.lose_power(target, Random(seed * 1_000_003 + number))
        lost, wrong = _found(target, disk.acknowledged)
        told["lost"] += lost
        told["corrupt"] += bool(wrong)
        if lost or wrong:
            print(f"point {number} (note {moment} of {len(notes)}): {lost} lost; {wrong}", file=sys.stderr)
        told["acknowledged"] = disk.acknowledged
        shutil.rmtree(target)
    return told


def _found(folder: Path, acknowledged: int) -> tuple[int, list[str]]:
    """How many acknowledged records are not there, and what else is wrong."""
    try:
        journal = SqliteJournal(folder)
    except (JournalBroken, JournalUnusable) as wrong:
        return acknowledged, [str(wrong)]
    head = journal.head.seq
    journal.close()
    return max(0, acknowledged - head), [finding.text for finding in verify(folder)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Lose power at many moments; see that nothing acknowledged is lost.")
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--records", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if not has_compiler():
        sys.exit("power_loss needs gcc, to build the shim that notes what is written")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=quick_folder()) as scratch:
        notes = record(Path(scratch), given.records)
        told = try_points(notes, given.points, given.seed, Path(scratch))
    print(json.dumps({**told, "writes": len(notes), "seconds": round(time.monotonic() - began, 1)}))
    sys.exit(bool(told["lost"] or told["corrupt"]))


def quick_folder() -> str | None:
    """Memory, where there is some: the replayed disks need no disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


if __name__ == "__main__":
    main()
