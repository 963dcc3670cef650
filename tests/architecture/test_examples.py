"""What the README and the examples show is run, and gives what they say."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT
from tests.bench.preempt import program

README = (ROOT / "README.md").read_text(encoding="utf-8")
ENGINE = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_day_that_the_page_quotes_is_the_day_that_is_reported() -> None:
    told = run("examples/one_day.py")
    quoted = [line for line in ENGINE.splitlines() if re.match(r"  \d\d:\d\d:\d\d  ", line)]
    assert quoted
    assert [line for line in quoted if line not in told.splitlines()] == []


def test_the_day_is_the_same_every_time() -> None:
    assert run("examples/one_day.py") == run("examples/one_day.py")


def test_the_engine_in_twenty_lines_runs() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", ENGINE, re.DOTALL)
    first, second = run("-c", snippet).splitlines()
    assert first.startswith("Place(gang='train/main', attempt=1, seats=(Seat(node='a1', gpus=15,")
    assert second.startswith("StartGang(gang='train/main', attempt=1,")


def test_the_training_loop_that_the_page_shows_is_the_one_that_is_preempted() -> None:
    """`tests/e2e/test_preempt.py` runs it."""
    page = (ROOT / "docs" / "preemption.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert shown.strip() == program().strip()


def commands() -> list[str]:
    """Lines of pages that begin with the name of the program; those of a session are another test's matter."""
    pages = README + (ROOT / "docs/policy-gains.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", pages, re.DOTALL | re.MULTILINE)
    return [
        line for language, text in blocks if not language for line in re.findall(r"^corral .*$", text, re.MULTILINE)
    ]


@pytest.mark.parametrize("line", commands())
def test_commands_of_the_readme_work(line: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    words = [sys.executable, "-m", *shlex.split(line)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    named = re.findall(r"--(?:html|json|csv|out) (\S+)", line)
    assert [name for name in named if not (tmp_path / name).stat().st_size] == []
