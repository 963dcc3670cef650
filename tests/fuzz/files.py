"""Hostile files of tasks, by a seed: put where a supervisor looks, and read by what it reads them with."""

from __future__ import annotations

import os
import random
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

from corral.runtime.local.activity.rank_files import read_paces
from corral.runtime.local.task.scratch import CHECKPOINT, STEP_MAX, Scratch

_LINES = (
    b'{"step": %d}', b'{"step": -%d}', b'{"step": %d.5}', b'{"step": %de400}', b'{"step": "%d"}', b'{"step": [%d]}',
    b'{"step": {"step": %d}}', b'{"stop": %d}', b"%d", b'[{"step": %d}]', b'{"step": %d, "step": null}',
)  # fmt: skip
_NUMBERS = (0, 1, 17, 2**31, 2**53 - 1, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, 10**400, 10**4299)
_WORDS = (
    b"NaN",
    b"Infinity",
    b"true",
    b"null",
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xef\xbb\xbf{",
    b"step",
    b'"step"',
    b"}" * 9,
)


def read_hostile_files(count: int, seed: int, root: Path) -> list[str]:
    """What went wrong: a fault that escaped, or a number that no column can hold."""
    rng, wrong = random.Random(seed), list[str]()
    root.mkdir(parents=True)
    scratch = Scratch(str(root / "scratch" / "task"), os.geteuid(), os.getegid())
    scratch.make()
    for n in range(count):
        put = rng.choice(_WAYS)
        path = Path(scratch.path, CHECKPOINT if n % 4 else f"pace.{rng.choice(_RANKS)}")
        try:
            put(path, rng)
            saved = scratch.saved(lambda _: None)
            step = None if saved is None else saved["step"]
            if step is not None and not (type(step) is int and 0 <= step <= STEP_MAX):
                wrong.append(f"step {step!r} was believed, from {put.__name__}")
            paces = read_paces(scratch.path) if n % 4 == 0 else ()
            if any(not (0 <= rank < 2**31 and 0 <= ms <= 86_400_000) for rank, ms in paces):
                wrong.append(f"paces {paces!r} were believed")
        except Exception:
            wrong.append(f"{put.__name__}: {traceback.format_exc(limit=-3)}")
        finally:
            _remove(path)
    return wrong


_RANKS = ("0", "7", "007", "9" * 30, "-1", "x", "1.5", "²", "１", "2147483648")


def _text(path: Path, rng: random.Random) -> None:
    parts = [
        rng.choice((*(line % rng.choice(_NUMBERS[:10]) for line in _LINES), *_WORDS)) for _ in range(rng.randint(1, 8))
    ]
    path.write_bytes(rng.choice((b"\n", b"\r\n", b" ", b"")).join(parts) + rng.choice((b"", b"\n")))


def _number(path: Path, rng: random.Random) -> None:
    path.write_bytes(b'{"step": %s}\n' % str(rng.choice(_NUMBERS)).encode() if rng.random() < 0.5 else b"9" * 4_000)


def _noise(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.randbytes(rng.randint(0, 4_000)))


def _flipped(path: Path, rng: random.Random) -> None:
    text = bytearray(b'{"step": 12, "at_ms": 1700000000000}\n' * rng.randint(1, 4))
    for _ in range(rng.randint(1, 5)):
        text[rng.randrange(len(text))] = rng.randrange(256)
    path.write_bytes(bytes(text))


def _deep(path: Path, rng: random.Random) -> None:
    depth = rng.choice((10, 900, 2_000, 20_000))
    path.write_bytes(rng.choice((b'{"step":' * depth, b"[" * depth + b'"step"', b'{"step":' + b"[" * depth)) + b"\n")


def _lines(path: Path, rng: random.Random) -> None:
    path.write_bytes(rng.choice((b"\n", b"{}\n", b'"step"\n', b'{"step": -1}\n')) * rng.choice((10, 1_000, 20_000)))


def _sparse(path: Path, rng: random.Random) -> None:
    with path.open("wb") as file:
        file.truncate(rng.choice((1 << 20, 1 << 33, 1 << 42)))


def _fifo(path: Path, rng: random.Random) -> None:
    del rng
    os.mkfifo(path)


def _link(path: Path, rng: random.Random) -> None:
    path.symlink_to(
        rng.choice(("/dev/zero", "/dev/urandom", "/proc/self/mem", "/etc/passwd", path.name, "nowhere", ".."))
    )


def _folder(path: Path, rng: random.Random) -> None:
    del rng
    path.mkdir()


def _locked(path: Path, rng: random.Random) -> None:
    _text(path, rng)
    path.chmod(0)


_WAYS: tuple[Callable[[Path, random.Random], None], ...] = (
    _text, _text, _text, _number, _noise, _flipped, _flipped, _deep, _lines, _sparse, _fifo, _link, _folder, _locked,
)  # fmt: skip


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
