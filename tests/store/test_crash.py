"""What was acknowledged survives: a killed process, and a loss of power."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from corral.store.sqlite import SqliteJournal
from corral.store.verify import verify
from tests.store.power_loss import has_compiler, quick_folder, record, try_points

KILLS = 12
POINTS = 60

needs_gcc = pytest.mark.skipif(not has_compiler(), reason="needs gcc, to build the shim that notes what is written")


def test_killed_at_random_moments(tmp_path):
    """The same journal, killed again and again while it writes."""
    rng, acknowledged, heard = Random(7), 0, 0
    for _ in range(KILLS):
        told = _write_and_kill(tmp_path / "data", after=rng.randint(1, 60))
        heard += len(told)
        acknowledged = max(acknowledged, *told) if told else acknowledged
        journal = SqliteJournal(tmp_path / "data")
        head = journal.head.seq
        journal.close()
        assert head >= acknowledged
    assert acknowledged >= heard >= 200  # each of them is a batch of one or more
    assert verify(tmp_path / "data") == []


def _write_and_kill(folder: Path, after: int) -> list[int]:
    """Let a process write until it has acknowledged this many appends, kill it, and return what it had printed."""
    command = [sys.executable, "-m", "tests.store.crash_writer", str(folder), str(1 << 60)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    lines = [writer.stdout.readline() for _ in range(after)]
    writer.kill()
    rest = writer.stdout.read()
    writer.stdout.close()
    assert writer.wait(30) == -signal.SIGKILL
    return [int(line) for line in b"".join([*lines, rest]).splitlines(keepends=True) if line.endswith(b"\n")]


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=quick_folder()) as folder:
        yield Path(folder)


@needs_gcc
def test_power_lost_at_random_moments(scratch):
    told = try_points(record(scratch, 200), POINTS, 1, scratch)
    assert (told["lost"], told["corrupt"]) == (0, 0)
    assert told["acknowledged"] > 150


@needs_gcc
def test_that_carelessness_would_be_found(scratch):
    """Were commits not forced to disk, the same moments would lose something."""
    told = try_points(record(scratch, 100, careless=True), 20, 1, scratch)
    assert told["lost"]
