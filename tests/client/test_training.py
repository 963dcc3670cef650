"""What training scripts import: within Corral, and anywhere else."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from corral import training
from tests.cli.typed import environment

VARIABLES = (
    "CORRAL_JOB_ID", "CORRAL_ATTEMPT", "CORRAL_ARRAY_INDEX", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
    "CORRAL_CHECKPOINT_FILE", "CORRAL_WARNING_FILE",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_outside_corral_it_does_nothing() -> None:
    assert not training.is_managed()
    assert (training.rank(), training.world_size(), training.local_rank(), training.local_world_size()) == (0, 1, 0, 1)
    assert (training.job_id(), training.attempt(), training.array_index()) == (None, 1, None)
    assert not training.should_stop()
    assert training.deadline() is None
    assert training.seconds_left() is None
    assert training.why_stop() == ""
    training.checkpoint_saved(3)


def test_ranks_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    stated = {"CORRAL_JOB_ID": "17", "RANK": "5", "WORLD_SIZE": "8", "CORRAL_ATTEMPT": "3", "CORRAL_ARRAY_INDEX": "0"}
    for name, value in stated.items():
        monkeypatch.setenv(name, value)
    assert training.is_managed()
    assert (training.rank(), training.world_size()) == (5, 8)
    assert (training.job_id(), training.attempt(), training.array_index()) == ("17", 3, 0)


def test_a_checkpoint_is_a_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "checkpoints"
    monkeypatch.setenv("CORRAL_CHECKPOINT_FILE", str(file))
    training.checkpoint_saved(10)
    training.checkpoint_saved(20)
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [10, 20]


def test_a_warning_says_until_when_and_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "warning"
    monkeypatch.setenv("CORRAL_WARNING_FILE", str(file))
    assert not training.should_stop()
    at_ms = int(time.time() * 1000) + 30_000
    file.write_text(json.dumps({"deadline_ms": at_ms, "why": "priority"}))
    assert training.should_stop()
    assert training.deadline() == at_ms / 1000
    assert 25 < (training.seconds_left() or 0) <= 30
    assert training.why_stop() == "priority"


def test_half_a_warning_is_a_warning_without_a_deadline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "warning"
    monkeypatch.setenv("CORRAL_WARNING_FILE", str(file))
    file.write_text('{"deadl')
    assert training.should_stop()
    assert training.deadline() is None


def test_it_loads_the_standard_library_only() -> None:
    show = "import sys; print(*sys.modules); from corral import training; training.rank(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", show], env=environment(), capture_output=True, text=True, check=True)
    before, after = ({name.partition(".")[0] for name in line.split()} for line in done.stdout.splitlines())
    assert after - before - set(sys.stdlib_module_names) == {"corral"}
