"""Every task finds the module for training scripts, and always the one that Corral wrote."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.client import training
from corral.runtime.job_modules import TRAINING
from corral.runtime.local.task.scratch import Scratch
from tests.runtime.local_backend import Harness

SOURCE = Path(training.__file__).read_bytes()
#: An interpreter without site-packages, as in an environment in which nothing is installed.
BARE = [sys.executable, "-S", "-c"]
SAYS = "import corral_training as t, sys; print(t.job_id(), t.attempt(), 'msgspec' in sys.modules)"


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    found = Harness(tmp_path)
    yield found
    found.close()


def said(harness: Harness, *command: str, **rest: object) -> str:
    key = harness.launch(*command, **rest)
    down = harness.collector.down(key)
    assert down.exit_code == 0, harness.log(key, "stderr")
    return harness.log(key).strip()


def test_a_python_without_corral_imports_it(harness: Harness) -> None:
    assert said(harness, *BARE, SAYS, env=(("CORRAL_JOB_ID", "17"),)) == "17 1 False"


def test_a_python_without_corral_imports_the_checkpoints(harness: Harness, tmp_path: Path) -> None:
    script = (
        "import corral_checkpoints as c; from corral_checkpoints.manifest import Origin\n"
        f"store = c.RunStore(c.open_storage({str(tmp_path / 'store')!r}), 'r'); print(store.open(Origin()).number)\n"
        "try: c.Saver\nexcept ImportError as fault: print(fault)"
    )
    assert said(harness, *BARE, script) == "1\nNo module named 'torch'"


def test_the_path_of_the_job_comes_first(harness: Harness, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").write_text("word = 'own'")
    script = "import os, own, corral_training; print(own.word, os.environ['PYTHONPATH'].split(':')[0])"
    mine = str(tmp_path / "mine")
    assert said(harness, *BARE, script, env=(("PYTHONPATH", mine),)) == f"own {mine}"


def test_the_folder_is_named_for_programs_that_set_their_own_path(harness: Harness) -> None:
    assert said(harness, "sh", "-c", f'test -r "$CORRAL_PYTHONPATH/{TRAINING}" && echo there') == "there"


def test_a_module_that_a_task_has_changed_is_not_given_to_the_next(harness: Harness) -> None:
    """Tasks of one supervisor reuse its folder."""
    change = f'chmod u+w "$CORRAL_PYTHONPATH/{TRAINING}"; echo "raise SystemExit(9)" > "$CORRAL_PYTHONPATH/{TRAINING}"'
    for _ in range(3):
        said(harness, "sh", "-c", change)
        assert said(harness, *BARE, SAYS, env=(("CORRAL_JOB_ID", "1"),)) == "1 1 False"


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    return Scratch(str(tmp_path / "scratch" / "one"), os.geteuid(), os.getegid())


def in_place(scratch: Scratch) -> Path:
    return Path(scratch.path) / TRAINING


def changed(file: Path) -> None:
    file.write_bytes(SOURCE.replace(b"SIGTERM", b"SIGTERN"))


def linked(file: Path) -> None:
    os.link(file, file.parent.parent / "kept")


def replaced(file: Path) -> None:
    other = file.parent.parent / "other"
    other.write_bytes(SOURCE)
    file.unlink()
    file.symlink_to(other)


def made_writable(file: Path) -> None:
    file.chmod(0o666)


@pytest.mark.parametrize("harm", [changed, linked, replaced, made_writable, Path.unlink])
def test_a_folder_is_reused_only_as_it_was_made(scratch: Scratch, harm: object) -> None:
    scratch.make()
    before = os.stat(scratch.path).st_ino
    scratch.put_away()
    scratch.make()
    assert os.stat(scratch.path).st_ino == before
    harm(in_place(scratch))  # type: ignore[operator]
    scratch.put_away()
    assert not os.path.exists(scratch.path)
    scratch.make()
    assert in_place(scratch).read_bytes() == SOURCE
    assert stat.S_IMODE(in_place(scratch).lstat().st_mode) == 0o644
    assert in_place(scratch).lstat().st_nlink == 1
