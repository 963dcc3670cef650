"""Ranks that make no progress: noticed, their stacks collected, the one that holds the others up named."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from corral.core.model import FailureClass
from corral.runtime.base import Process
from corral.runtime.local.activity.stall_watch import NOTICE_MS, StallWatch
from corral.runtime.local.task.lease import now_ms as boot_ms
from tests.runtime.local_backend import Harness

WAITS = """Thread 0x01 (most recent call first):
  File "/usr/lib/python3/threading.py", line 1 in wait
Current thread 0x02 (most recent call first):
  File "/venv/torch/distributed/distributed_c10d.py", line 2806 in all_reduce
  File "train.py", line 12 in main
"""
WORKS = """Current thread 0x02 (most recent call first):
  File "train.py", line 31 in load
  File "train.py", line 12 in main
"""


def reports(folder: Path, rank: int, at_ms: int, step: int = 7, step_ms: object = 1_000) -> None:
    record = {"boot_ms": at_ms, "step": step, "step_ms": step_ms, "metrics": {}}
    (folder / f"progress.{rank}").write_text(json.dumps(record))


def watched(folder: Path, now_ms: int, timeout_ms: int = 0) -> StallWatch:
    watch = StallWatch(str(folder), timeout_ms)
    watch.is_stalled(0.0, now_ms)
    return watch


@pytest.mark.parametrize(
    ("since_ms", "step_ms", "timeout_ms", "is_stalled"),
    [
        (NOTICE_MS - 1, 1_000, 0, False),
        (NOTICE_MS, 1_000, 0, True),
        (NOTICE_MS, 30_000, 0, False),
        (90_000, 30_000, 0, True),
        (5_000, 1_000, 5_000, True),
        (5_000, 2_000, 5_000, False),
        (5_000, None, 5_000, True),
    ],
)
def test_a_stall_is_a_time_without_a_step_and_three_usual_steps(
    tmp_path: Path, since_ms: int, step_ms: object, timeout_ms: int, is_stalled: bool
) -> None:
    reports(tmp_path, 0, 1_000_000 - since_ms, step_ms=step_ms)
    assert StallWatch(str(tmp_path), timeout_ms).is_stalled(0.0, 1_000_000) is is_stalled


def test_one_rank_that_works_is_enough(tmp_path: Path) -> None:
    reports(tmp_path, 0, 0)
    reports(tmp_path, 1, 1_000_000 - 1_000)
    assert not StallWatch(str(tmp_path), 0).is_stalled(0.0, 1_000_000)


def test_a_stall_is_noticed_once_and_the_next_one_again(tmp_path: Path) -> None:
    reports(tmp_path, 0, 0)
    watch = StallWatch(str(tmp_path), 0)
    assert watch.is_stalled(0.0, 1_000_000)
    assert watch.stall(0.1, 1_000_000) is None, "the processes are still writing"
    assert watch.stall(5.0, 1_000_000) is not None
    assert not watch.is_stalled(6.0, 1_000_000)
    reports(tmp_path, 0, 2_000_000)
    assert not watch.is_stalled(7.0, 2_000_000)
    assert watch.is_stalled(8.0, 3_000_000)


@pytest.mark.parametrize(
    ("stacks", "suspect", "said"),
    [
        ([WAITS, WORKS, WAITS], 1, "rank 1 holds the others up, at \"train.py\", line 31 in load"),
        ([WAITS, WAITS], None, "all ranks here wait for other ranks"),
        ([WORKS, WORKS], None, "no step for 1000 s after step 7"),
        (["", ""], None, "no step for 1000 s after step 7"),
    ],
    ids=["one works", "all wait", "all work", "no stacks"],
)  # fmt: skip
def test_the_rank_that_does_not_wait_is_named(
    tmp_path: Path, stacks: list[str], suspect: int | None, said: str
) -> None:
    for rank, stack in enumerate(stacks):
        reports(tmp_path, rank, 0)
        (tmp_path / f"stacks.{rank}").write_text(stack)
    watch = StallWatch(str(tmp_path), 0)
    assert watch.is_stalled(0.0, 1_000_000)
    found = watch.stall(2.0, 1_000_000)
    assert found is not None
    assert found.suspect == suspect
    assert said in found.why


@pytest.mark.parametrize("text", ["", "[]", "{", '{"boot_ms": "x", "step": 1}', '{"boot_ms": true, "step": 1}'])
def test_what_is_no_progress_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "progress.0").write_text(text)
    (tmp_path / "progress.x").write_text("{}")
    assert not StallWatch(str(tmp_path), 1).is_stalled(0.0, boot_ms())


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    found = Harness(tmp_path)
    yield found
    found.close()


HANGS = """
import os, time
import corral_training as training
training.report(1, 0.5)
def all_wait():
    time.sleep(600)
def stuck_here():
    time.sleep(600)
exec(compile("def wait(): stuck_or_not()", "/x/torch/distributed/fake.py", "exec"))
stuck_or_not = all_wait
wait() if training.rank() != 1 else stuck_here()
"""


def test_a_task_that_hangs_is_ended_and_the_stuck_rank_named(harness: Harness) -> None:
    ranks = tuple(Process((("RANK", str(n)), ("WORLD_SIZE", "3"))) for n in range(3))
    key = harness.launch(
        sys.executable, "-c", HANGS, env=(("CORRAL_JOB_ID", "1"),), processes=ranks, stall_ms=3_000
    )  # fmt: skip
    down = harness.collector.down(key)
    assert down.failure is FailureClass.STALLED
    assert down.rank == 1
    assert "rank 1 holds the others up" in down.why
    log = harness.log(key, "stderr")
    assert "stack of rank 0, which waits for other ranks" in log
    assert "in stuck_here" in log


def test_without_a_timeout_nothing_is_ended(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import corral_training as t, time; t.report(1); time.sleep(4); print('done')"
    key = harness.launch(sys.executable, "-c", script, env=(("CORRAL_JOB_ID", "1"),))
    assert harness.collector.down(key).exit_code == 0
