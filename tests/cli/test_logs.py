"""The output of jobs, as people ask for it, against a real server on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Type

# ---- files for the output --------------------------------------------------------------------------------------------


@pytest.fixture(params=["002", "022", "077"])
def umask(request: pytest.FixtureRequest) -> Iterator[str]:
    before = os.umask(int(request.param, 8))
    yield request.param
    os.umask(before)


def test_output_files_have_the_umask_of_who_submitted(corral: Type, at_home: Path, umask: str) -> None:
    done = corral("submit", "--wait", "-o", "%x-%04j.out", "-J", "mask", "--", "sh", "-c", "umask; touch made")
    assert done.code == 0, done.err
    (out,) = at_home.glob("mask-*.out")
    assert len(out.stem) == len("mask-0001")
    assert int(out.read_text(), 8) == int(umask, 8)
    for file in (out, at_home / "made"):
        assert file.stat().st_mode & 0o777 == 0o666 & ~int(umask, 8)
