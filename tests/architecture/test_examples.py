"""What the README and the examples show is run, and gives what they say."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.architecture.repository import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_day_that_the_readme_quotes_is_the_day_that_the_demo_tells() -> None:
    told = run("examples/one_day.py")
    quoted = [line for line in README.splitlines() if re.match(r"  \d\d:\d\d:\d\d  ", line)]
    assert quoted
    assert [line for line in quoted if line not in told.splitlines()] == []


def test_the_day_is_the_same_every_time() -> None:
    assert run("examples/one_day.py") == run("examples/one_day.py")


def test_the_engine_in_twenty_lines_runs() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    first, second = run("-c", snippet).splitlines()
    assert first.startswith("Place(gang='train/main', attempt=1, seats=(Seat(node='a1', gpus=15,")
    assert second.startswith("StartGang(gang='train/main', attempt=1,")
