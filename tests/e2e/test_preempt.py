"""What `corral.training` prints is what is run: preempted on a real server it loses nothing. A framework that exits
with 0 when it is asked to stop has not finished."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from tests.bench.preempt import measure
from tests.e2e.live import Live
from tests.runtime.reports import until

#: Counts to 300 and saves every step. When it is asked to stop it exits with 0, as frameworks do.
FRAMEWORK = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
step = int(open("step").read()) if os.path.exists("step") else 0
print("from", step, file=open("begun", "a"))
while step < 300:
    time.sleep(0.01)
    step += 1
    print(step, file=open("step.new", "w"))
    os.rename("step.new", "step")
"""


def test_the_loop_of_the_docstring_loses_nothing_when_it_is_preempted(tmp_path: Path):
    """Once with one process, once with four."""
    assert measure(2, tmp_path, per_job=1) == {
        "preemptions": 2, "steps_lost": 0, "wrong_exits": 0, "requeue_exit": 85,
    }  # fmt: skip


def test_a_framework_that_exits_with_0_when_it_is_preempted_is_run_until_it_is_done(
    live: Callable[..., Live], tmp_path: Path
) -> None:
    server = live(gpus=2)
    server.start()
    (tmp_path / "train.py").write_text(FRAMEWORK)
    begun = tmp_path / "begun"
    job = server.submit({"command": [sys.executable, "train.py"], "directory": str(tmp_path), "gpus": 2})
    for attempt in range(1, 4):
        until(lambda n=attempt: begun.exists() and begun.read_text().count("from") == n)  # type: ignore[misc]
        server.until_over([server.submit({"command": "true", "gpus": 2, "priority": 100})])
    assert server.until_over([job])[job]["state"] == "succeeded"
    assert (tmp_path / "step").read_text() == "300\n"
    ends = [(each["exit_code"], each["failure"]) for each in server.job(job)["history"]]
    assert ends == [(85, "preempted")] * 3 + [(0, None)]
