"""The output of jobs, as people ask for it, against a real server on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Type, live
from tests.cli.typed import command

Submit = Callable[..., str]


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end_s = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_s, "it did not happen"
        time.sleep(0.05)


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
signal.signal(signal.SIGTERM, lambda *_: sys.exit("I was asked to stop"))
time.sleep(60)
"""


@pytest.mark.parametrize(
    "shape", [("--tasks", "3", "--cpus", "0.1"), ("--processes", "3")], ids=["three tasks", "one task"]
)
def test_the_rank_that_failed_first_is_named_everywhere(
    corral: Type, submit: Submit, house: dict[str, str], shape: tuple[str, ...]
) -> None:
    job = submit(*shape, "--", sys.executable, "-c", ONE_BAD_RANK)
    told = subprocess.run(command("wait", job), env=live(house), capture_output=True, text=True, timeout=60)
    assert told.returncode == 1
    assert "ValueError: bad batch" in told.stderr.partition("the end of the log of rank 1 on ")[2]
    assert "I was asked to stop" not in told.stderr
    node = corral("node", "list", "--json").out.split('"name": "')[1].split('"')[0]
    root = f"rank 1 on {node} failed first: ValueError: bad batch\\x1b[31m"
    assert f"{root} (exit 1)" in told.stderr
    for words in (("show", job), ("why", job), ("ps", "--over", "--fields", "id,why"), ("events", "--job", job)):
        assert root in " ".join(corral(*words).out.split()), words
    view = json.loads(corral("show", job, "--json").out)
    first = view["history"][-1]["first_failure"]
    assert (first["rank"], first["said"], first["text"]) == (1, root.partition("first: ")[2], root)


# ---- the output of a job ---------------------------------------------------------------------------------------------

FAILING = "import sys; print('step 1'); print('loading', file=sys.stderr); raise ValueError('bad batch')"
TURNS = """
import os, sys, time
me = int(os.environ.get("RANK", os.environ.get("CORRAL_ARRAY_INDEX", 0)))
for turn in range(3):
    time.sleep(0.4 if turn else 0.4 + 0.1 * me)
    print(f"turn {turn}", file=sys.stderr if turn == 1 else sys.stdout)
"""


def test_the_log_of_a_failed_python_program_has_its_traceback(corral: Type, submit: Submit) -> None:
    job = submit("--", sys.executable, "-c", FAILING)
    corral("wait", "--quiet", job)
    lines = corral("logs", job).out.splitlines()
    assert lines[:3] == ["step 1", "loading", "Traceback (most recent call last):"]
    assert lines[-1] == "ValueError: bad batch"
    assert corral("logs", "--stream", "out", job).out == "step 1\n"
    assert corral("logs", "--stream", "err", job).out.startswith("loading\nTraceback")


def test_the_end_of_the_log_of_a_failed_job_is_shown_by_wait_and_show(corral: Type, submit: Submit) -> None:
    job = submit("--", "sh", "-c", "seq 1 100; echo 'no config' >&2; exit 3")
    told = corral("wait", job)
    assert told.code == 3
    assert told.err.splitlines()[:2] == ["the end of the log:", "82"]
    assert re.search(r"\nno config\njob \d+ failed after \w+: no config \(exit 3\)\n$", told.err)
    assert "\nthe end of the log:\n82\n" in corral("show", job).out
    assert corral("run", "--", "sh", "-c", "echo once; exit 3").out == "once\n"


@pytest.mark.parametrize(
    "shape", [("--tasks", "2", "--cpus", "0.1"), ("--processes", "2"), ("--array", "0-1", "--cpus", "0.1")]
)
def test_all_ranks_and_elements_are_shown_in_order_of_time_with_labels(
    corral: Type, submit: Submit, shape: tuple[str, ...]
) -> None:
    job = submit(*shape, "--", sys.executable, "-c", TURNS)
    followed = corral("logs", "-f", job).out.splitlines()
    expected = {f"[{me}{' err' if turn == 1 else ''}] turn {turn}" for turn in range(3) for me in (0, 1)}
    assert set(followed) == expected
    assert len(followed) == 6
    shown = corral("logs", job).out.splitlines()
    assert set(shown) == expected
    assert [line[-1] for line in shown] == sorted(line[-1] for line in shown) or "--array" in shape
    for me in (0, 1):
        own = [line for line in shown if line.startswith(f"[{me}")]
        assert [line[-1] for line in own] == ["0", "1", "2"]
    assert corral("logs", "-n", "1", job).out.endswith("turn 2\n")
    assert len(corral("logs", "-n", "3", job).out.splitlines()) == 3
    ran = corral("run", *shape, "--quiet", "--", sys.executable, "-c", TURNS)
    assert (len(ran.out.splitlines()), len(ran.err.splitlines())) == (4, 2)


@pytest.mark.parametrize("narrow", [("--rank", "1"), ("--task", "1")])
def test_one_rank_or_task_can_be_asked_for(corral: Type, submit: Submit, narrow: tuple[str, ...]) -> None:
    job = submit("--tasks", "2", "--cpus", "0.1", "--", "sh", "-c", "echo I am $RANK")
    corral("wait", job)
    assert corral("logs", job, *narrow).out == "I am 1\n"
    done = corral("logs", job, narrow[0], "7")
    assert (done.code, done.err.splitlines()[0]) == (5, f"error: job {job} has no {narrow[0][2:]} 7")


def test_an_element_is_shown_without_a_label(corral: Type, submit: Submit) -> None:
    job = submit("--array", "3-4", "--", "sh", "-c", "echo I am $CORRAL_ARRAY_INDEX")
    corral("wait", job)
    assert sorted(corral("logs", job).out.splitlines()) == ["[3] I am 3", "[4] I am 4"]
    assert corral("logs", f"{job}[4]").out == "I am 4\n"
    assert len(corral("logs", f"{job}[3-4]").out.splitlines()) == 2


def test_an_empty_log_says_so(corral: Type, submit: Submit) -> None:
    job = submit("--", "true")
    corral("wait", job)
    assert corral("logs", job) == (0, "", f"job {job} has written no output\n")
    job = submit("--", "sleep", "30")
    until(lambda: '"running"' in corral("show", job, "--json").out)
    assert corral("logs", job).err == f"job {job} has written no output yet; -f waits for it\n"
    corral("cancel", job)


def test_lines_of_ranks_are_never_torn(corral: Type, submit: Submit) -> None:
    flood = "import os\nfor n in range(2000): print(os.environ['RANK'] * 200, flush=True)"
    job = submit("--processes", "4", "--", sys.executable, "-c", flood)
    corral("wait", job)
    lines = corral("logs", job).out.splitlines()
    assert len(lines) == 8000
    assert set(lines) == {f"[{rank}] {str(rank) * 200}" for rank in range(4)}
