"""The output of jobs, as people ask for it, against a real server on this machine."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Type

Submit = Callable[..., str]

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


# ---- the root of a failure -------------------------------------------------------------------------------------------


def test_a_program_that_is_not_there_is_named(corral: Type) -> None:
    done = corral("run", "--", "nosuchprog")
    assert done.code == 127
    assert done.err.splitlines()[-1].endswith(": nosuchprog: not found (exit 127)")
    assert "user_error" not in done.err


def test_a_program_that_the_shell_does_not_find_is_named(corral: Type) -> None:
    done = corral("run", "--", "nosuchprog; exit $?")
    assert done.code == 127
    assert re.search(r": nosuchprog: (command )?not found \(exit 127\)$", done.err.splitlines()[-1])


ONE_BAD_RANK = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    raise ValueError("bad batch\\x1b[31m")
signal.signal(signal.SIGTERM, lambda *_: sys.exit("I was told to stop"))
time.sleep(60)
"""


@pytest.mark.parametrize(
    "shape", [("--tasks", "3", "--cpus", "0.1"), ("--processes", "3")], ids=["three tasks", "one task"]
)
def test_the_rank_that_failed_first_is_named_everywhere(corral: Type, submit: Submit, shape: tuple[str, ...]) -> None:
    job = submit(*shape, "--", sys.executable, "-c", ONE_BAD_RANK)
    told = corral("wait", job)
    assert told.code == 1
    node = corral("node", "list", "--json").out.split('"name": "')[1].split('"')[0]
    root = f"rank 1 on {node} failed first: ValueError: bad batch\\x1b[31m"
    assert f"{root} (exit 1)" in told.err
    for words in (("show", job), ("why", job), ("ps", "--over", "--fields", "id,why"), ("events", "--job", job)):
        assert root in " ".join(corral(*words).out.split()), words
    view = json.loads(corral("show", job, "--json").out)
    first = view["history"][-1]["first_failure"]
    assert (first["rank"], first["said"], first["text"]) == (1, root.partition("first: ")[2], root)
