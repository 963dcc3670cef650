"""The second try of `make test`: it forgives a race once, in the open, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import second_try

RACE = """
from pathlib import Path

def test_race():
    seen = Path({seen!r})
    first = not seen.exists()
    seen.touch()
    assert not first
"""
BROKEN = "def test_broken():\n    assert False\n"
MANY = (
    "import pytest\n\n@pytest.mark.parametrize('number', range(4))\ndef test_one_of_many(number):\n    assert False\n"
)


def run(
    folder: Path, source: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_sample.py").write_text(source)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("ONE_TRY", raising=False)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # nothing of the project's plugins is needed here
    return second_try.main(["-q", "test_sample.py"], folder / "cache"), capfd.readouterr().out


def test_a_race_is_forgiven_once_and_named(tmp_path, monkeypatch, capfd):
    status, told = run(tmp_path, RACE.format(seen=str(tmp_path / "seen")), monkeypatch, capfd)
    assert status == 0
    assert "1 failed" in told
    assert told.rstrip().endswith("passed only at the second try: test_sample.py::test_race")


def test_what_fails_twice_fails_the_run(tmp_path, monkeypatch, capfd):
    status, told = run(tmp_path, BROKEN, monkeypatch, capfd)
    assert status == 1
    assert told.count("1 failed") == 2
    assert "passed only" not in told


def test_many_failures_are_not_tried_again(tmp_path, monkeypatch, capfd):
    status, told = run(tmp_path, MANY, monkeypatch, capfd)
    assert status == 1
    assert "second try" not in told


def test_a_few_of_thousands_are_tried_again(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(second_try, "ONE_IN", 1)  # of four tests, four
    status, told = run(tmp_path, MANY, monkeypatch, capfd)
    assert status == 1
    assert told.count("4 failed") == 2


def test_a_file_that_cannot_be_read_is_not_tried_again(tmp_path, monkeypatch, capfd):
    status, told = run(tmp_path, "this is not Python", monkeypatch, capfd)
    assert status == 2
    assert "second try" not in told


def test_one_try_can_be_asked_for(tmp_path, monkeypatch, capfd):
    (tmp_path / "test_sample.py").write_text(RACE.format(seen=str(tmp_path / "seen")))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONE_TRY", "1")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    assert second_try.main(["-q", "test_sample.py"], tmp_path / "cache") == 1
    assert "second try" not in capfd.readouterr().out
