"""Crashes at random points, damage to random objects, and attempts that outlive their successors, by seed.

    python -m tests.checkpoints.crash_points --points 1000

Each seed is a run of several attempts. After every crash the next attempt restores: what it gets must be, byte for
byte, a checkpoint that was committed, and the newest one that was not damaged. The last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random

from corral.checkpoints.keep_rules import KeepRules
from corral.checkpoints.manifest import Damaged, Manifest
from corral.checkpoints.run_log import Fenced, StoredCheckpoint, Writer
from corral.checkpoints.run_store import RunStore
from corral.checkpoints.storage import MemoryStorage
from tests.checkpoints.written import origin, restore, save

KEEP = KeepRules(last=2, every=4)
ATTEMPTS = 4


class Run:
    """One seed. ``acknowledged``: the newest commit that was reported to the user, as long as nothing was damaged."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.storage = MemoryStorage()
        self.acknowledged = 0
        self.is_damaged = False
        self.zombies: list[tuple[Writer, int]] = []
        self.counts = {"crashes": 0, "damaged": 0, "fenced": 0, "restored": 0, "full": 0}

    def play(self) -> dict[str, int]:
        for attempt in range(1, ATTEMPTS + 1):
            self.attempt(attempt)
            if self.chance.random() < 0.5:
                self.damage()
        self.restart()
        return self.counts

    def attempt(self, attempt: int) -> None:
        self.storage.fails_after = None
        found = self.restart()
        self.storage.fails_after = self.chance.randrange(1, 120)
        self.storage.full_after = self.chance.randrange(1, 3000) if self.chance.random() < 0.2 else None
        store = RunStore(self.storage, "r", now_ms=lambda: 0)
        step = found[0].step if found else 0
        base = (found[0].number, found[1]) if found else None
        writer = None
        try:
            writer = store.open(origin(attempt))
            store.clean(writer.number)
            self.check_zombies()
            for _ in range(self.chance.randrange(1, 6)):
                step += 1
                checkpoint, manifest = save(store, writer, step, base=base)
                base = (checkpoint.number, manifest)
                self.acknowledged = checkpoint.number
                store.prune(KEEP)
        except MemoryStorage.Crashed:
            self.counts["crashes"] += 1
        except OSError:
            self.counts["full"] += 1
        except Damaged:
            self.counts["damaged"] += 1
        self.storage.fails_after = self.storage.full_after = None
        if writer is not None:
            self.zombies.append((writer, step))

    def check_zombies(self) -> None:
        """Attempts that were replaced and do not know it: whatever they do, they cannot commit."""
        for writer, step in self.zombies:
            try:
                save(RunStore(self.storage, "r", now_ms=lambda: 0), writer, step + 1)
            except Fenced:
                self.counts["fenced"] += 1
                continue
            raise AssertionError(
                f"attempt {writer.origin.attempt} has committed after its successor has opened the run"
            )

    def restart(self) -> tuple[StoredCheckpoint, Manifest] | None:
        found = restore(RunStore(self.storage, "r", now_ms=lambda: 0))
        self.counts["restored"] += found is not None
        if not self.is_damaged:
            assert (found[0].number if found else 0) >= self.acknowledged, "an acknowledged checkpoint was not found"
        self.acknowledged = found[0].number if found else 0
        self.is_damaged = False
        return found

    def damage(self) -> None:
        """Flip a bit of, truncate or delete some objects; entries of the log too."""
        names = sorted(self.storage.objects)
        for name in self.chance.sample(names, min(len(names), self.chance.randrange(1, 4))):
            held = self.storage.objects[name]
            at = self.chance.randrange(len(held)) if held else 0
            kind = self.chance.choice(["flip", "truncate", "delete"]) if "/log/" not in name else "flip"
            if kind == "flip" and held:
                flipped = bytes([held[at] ^ 1 << self.chance.randrange(8)])
                self.storage.objects[name] = held[:at] + flipped + held[at + 1 :]
            elif kind == "truncate":
                self.storage.objects[name] = held[:at]
            else:
                self.storage.objects.pop(name)
            self.is_damaged = True
            self.counts["damaged"] += 1


def play(points: int, seed: int = 0) -> dict[str, int]:
    """Until this many crashes have happened."""
    total: dict[str, int] = {}
    while total.get("crashes", 0) < points:
        with contextlib.redirect_stderr(io.StringIO()):
            counts = Run(seed).play()
        seed += 1
        for name, count in counts.items():
            total[name] = total.get(name, 0) + count
    return {**total, "seeds": seed, "bad_resumes": 0}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(json.dumps(play(given.points, given.seed)))


if __name__ == "__main__":
    main()
