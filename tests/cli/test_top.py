"""`corral top` and the figures of `corral show`, typed at a real server with simulated GPUs."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Type, live
from tests.cli.typed import command

SCRIPT = """
import corral_training as training
step = 0
while True:
    step += 1
    training.step_done(0.01, step=step, loss=0.25, metrics={"lr": 0.001})
"""
PATIENCE_S = 60


@pytest.fixture
def training(submit: Callable[..., str], corral: Type) -> Iterator[str]:
    """A job that computes and reports steps; its number, once its figures are there."""
    path = str(Path(__file__).resolve().parents[2] / "src")
    job = submit("--gpus", "2", "--name", "steps", "--env", f"PYTHONPATH={path}", "--", sys.executable, "-c", SCRIPT)
    until = time.monotonic() + PATIENCE_S
    while True:
        seen = json.loads(corral("top", job, "--json").out)
        if seen["total"]["cpu_milli"] and any(rank["step"] for task in seen["tasks"] for rank in task["ranks"]):
            break
        assert time.monotonic() < until, seen
        time.sleep(0.5)
    yield job
    corral("cancel", job, "--now")


def test_top_shows_what_the_cluster_and_its_jobs_do(training: str, corral: Type, monkeypatch: pytest.MonkeyPatch):
    for columns in (120, 80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = corral("top", "--once")
        assert shown.code == 0, shown.err
        assert max(map(len, shown.out.splitlines())) <= columns, shown.out
        assert "1 node, 2 of 8 simulated GPUs used" in shown.out.splitlines()[0], "made-up figures are marked"
        titles = next(line.split() for line in shown.out.splitlines() if "JOB" in line)
        row = next(line.split() for line in shown.out.splitlines() if line.split()[:2] == [training, "steps"])
        assert titles[:2] == ["JOB", "NAME"]
        assert "0.25" in row, shown.out


def test_top_of_a_job_shows_its_ranks(training: str, corral: Type, monkeypatch: pytest.MonkeyPatch):
    for columns in (120, 80, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        shown = corral("top", training, "--once")
        assert shown.code == 0, shown.err
        assert max(map(len, shown.out.splitlines())) <= columns, shown.out
        assert f"job {training}  steps  running for" in shown.out
        assert "step " in shown.out
        assert "loss 0.25, lr 0.001" in shown.out or columns == 60
        assert "RANK" in shown.out


def test_top_as_json_has_everything(training: str, corral: Type):
    cluster = json.loads(corral("top", "--json").out)
    (line,) = [line for line in cluster["jobs"] if line["job"] == training]
    assert line["loss"] == 0.25
    assert line["total"]["gpus_simulated"] == 2
    assert cluster["total"]["gpus"] == 8
    job = json.loads(corral("top", training, "--json").out)
    (task,) = job["tasks"]
    assert task["ranks"][0]["metrics"] == {"loss": 0.25, "lr": 0.001}
    assert task["gpus"][0]["simulated"] is True


def test_show_says_what_a_running_job_does(training: str, corral: Type):
    shown = corral("show", training).out
    assert "doing" in shown
    assert "2 GPUs" in shown
    assert "(simulated)" in shown
    assert "loss 0.25" in shown


def test_top_of_a_job_that_waits_or_has_ended_says_so(corral: Type, submit: Callable[..., str]):
    waiting = submit("--gpus", "8", "--hold", "--", "true")
    assert f"it is not running; see: corral why {waiting}" in corral("top", waiting, "--once").out
    corral("cancel", waiting)
    assert "it has ended" in corral("top", waiting, "--once").out
    missing = corral("top", "999999", "--once")
    assert missing.code == 5
    assert "999999" in missing.err


def test_an_interval_below_a_second_is_refused(corral: Type):
    refused = corral("top", "--interval", "10ms")
    assert refused.code == 2
    assert "--interval" in refused.err


def test_on_a_terminal_top_refreshes_until_ctrl_c_and_leaves_it_as_it_was(house: dict[str, str]):
    terminal, inside = pty.openpty()
    environment = live(house) | {"COLUMNS": "80", "TERM": "xterm"}
    words = command("top", "--interval", "1s")
    process = subprocess.Popen(words, env=environment, stdin=inside, stdout=inside, stderr=inside)
    os.close(inside)
    seen = b""
    try:
        until = time.monotonic() + PATIENCE_S
        while seen.count(b"\x1b[H\x1b[J") < 2:
            assert time.monotonic() < until, seen
            seen += os.read(terminal, 65_536)
        process.send_signal(signal.SIGINT)
        while not seen.endswith(b"\x1b[?25h\x1b[?1049l"):
            assert time.monotonic() < until, seen
            seen += os.read(terminal, 65_536)
        assert process.wait(PATIENCE_S) == 0, "the usual end is no failure"
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert b"Traceback" not in seen
    assert b"interrupted" not in seen
