"""``corral checkpoint``, as typed: on a store in a directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from corral.checkpoints.run_store import RunStore
from corral.checkpoints.storage import DirectoryStorage
from tests.checkpoints.written import origin, save
from tests.cli.typed import Typed, typed


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    """Three checkpoints of job 7."""
    found = RunStore(DirectoryStorage(tmp_path / "store"), "job-7")
    writer = found.open(origin(1))
    saved = [save(found, writer, step, metrics={"loss": 1 / step})[0] for step in (10, 20, 30)]
    found.note_used(saved[-1], "job-9", origin(1, job=9))
    return found


@pytest.fixture
def corral(store: RunStore, capsys: pytest.CaptureFixture[str]):
    def command(verb: str, *words: str) -> Typed:
        return typed(capsys, "checkpoint", verb, store.storage.url, *words)

    return command


def test_list(corral):
    out = corral("list").out.splitlines()
    assert out[0].split() == ["RUN", "STEP", "SAVED", "JOB", "ATTEMPT", "WORLD", "SIZE", "NEW", "TOOK", "STATE"]
    assert [line.split()[1] for line in out[1:]] == ["10", "20", "30"]
    assert [row["state"] for row in json.loads(corral("list", "job-7", "--json").out)] == ["complete"] * 3


def test_show(corral):
    out = corral("show", "job-7").out
    assert "step 30 of run job-7, complete" in out
    assert "job 7, attempt 1, ann on n1" in out
    assert "c" * 40 in out
    assert "used by      job 9, attempt 1 (run job-9)" in out
    assert json.loads(corral("show", "job-7", "--step", "10", "--json").out)["metrics"] == {"loss": 0.1}


def test_a_damaged_checkpoint_is_found_and_not_used_any_more(corral, store: RunStore):
    pack = sorted((Path(store.storage.url) / "job-7" / "packs").glob("*-0000000000000030-*"))[0]
    held = bytearray(pack.read_bytes())
    held[3] ^= 4
    pack.write_bytes(held)
    found = corral("verify", "job-7", "--all")
    assert found.code == 7
    assert "step 30: damaged" in found.out
    assert "step 20: complete" in found.out
    assert "step 20 of run" in corral("show", "job-7").out
    assert corral("verify", "job-7").code == 0


def test_prune(corral):
    assert corral("prune", "job-7", "--keep-last", "1", "--dry-run").out.count("would be removed") == 2
    assert corral("prune", "job-7", "--keep-last", "1", "--keep-best", "1", "--metric", "loss", "--highest").code == 0
    assert [row["step"] for row in json.loads(corral("list", "--json").out)] == [10, 30]
    assert corral("prune", "job-7", "--keep-best", "2").code == 2


def test_copy(corral, tmp_path: Path):
    assert "step 20 copied" in corral("copy", "job-7", str(tmp_path / "other"), "--step", "20", "--as", "mine").out
    copied = RunStore(DirectoryStorage(tmp_path / "other"), "mine")
    assert copied.verify(copied.state().usable()[0]).origin.job == "7"


def test_copies_of_all_runs_that_match(corral, store: RunStore, tmp_path: Path):
    other = RunStore(DirectoryStorage(store.storage.url), "job-8")
    save(other, other.open(origin(1, job=8)), 5)
    target = str(tmp_path / "other")
    out = corral("copy", "job-*", target, "--new").out.splitlines()
    assert [line.split(" copied")[0] for line in out] == [*(f"job-7: step {n}" for n in (10, 20, 30)), "job-8: step 5"]
    assert corral("copy", "job-*", target, "--new").out == ""
    assert corral("copy", "*", target).code == 2
    assert corral("copy", "*", target, "--new", "--step", "10").code == 2


def test_export(corral, tmp_path: Path):
    target = tmp_path / "a.safetensors"
    assert corral("export", "job-7", str(target)).code == 0
    raw = target.read_bytes()
    head = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert head["trained"] == {"dtype": "U8", "shape": [128], "data_offsets": [128, 256]}
    assert corral("export", "job-7", str(target), "--only", "none").code == 2
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)  # as /dev/null would be
    refused = corral("export", "job-7", str(pipe))
    assert (refused.code, pipe.is_fifo()) == (2, True)
    assert "cannot be written: is no file" in refused.err


def test_what_is_not_there(corral):
    missing = corral("show", "job-8")
    assert missing.code == 5
    assert "there is no run 'job-8'" in missing.err
    assert corral("show", "job-7", "--step", "11").code == 5
    assert corral("show", "../etc").code == 2
