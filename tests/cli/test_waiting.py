"""A full cluster, as people meet it: commands say why a job waits, and when it is expected to start."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest

from tests.cli.conftest import Type
from tests.cli.typed import command

Submit = Callable[..., str]


@pytest.fixture
def full(corral: Type, submit: Submit) -> Iterator[str]:
    """A job that holds all GPUs and states no limit."""
    job = submit("--gpus", "8", "--", "sleep", "600")
    _until(lambda: json.loads(corral("show", "--json", job).out)["state"] == "running")
    yield job
    corral("cancel", "--now", "--all", "--yes")
    _until(lambda: not json.loads(corral("ps", "--json").out))


def _until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_ps_tells_reason_node_and_expected_start(corral: Type, submit: Submit, full: str) -> None:
    waiting = submit("--gpus", "4", "--time", "1h", "--", "true")
    _until(lambda: json.loads(corral("ps", "--json").out)[0]["starts_ms"] is not None)
    rows = {job["id"]: job for job in json.loads(corral("ps", "--json").out)}
    assert rows[full]["nodes"]
    assert rows[full]["gpus_held"] == 8
    assert rows[waiting]["reason"].startswith("needs 4 GPUs")
    lines = {line.split()[0]: line for line in corral("ps").out.splitlines()}
    assert "NODES (REASON)" in lines["ID"]
    assert rows[full]["nodes"][0] in lines[full]
    assert "(needs 4 GPUs" in lines[waiting]
    assert "; expected to start in 23h" in lines[waiting]


def test_why_says_what_is_assumed(corral: Type, submit: Submit, full: str) -> None:
    waiting = submit("--gpus", "4", "--time", "1h", "--", "true")
    told = corral("why", waiting).out
    assert f"job {full}" in told
    assert "no limit stated; 1 day assumed" in told
    assert "expected to start in 23h" in told
    stated = submit("--gpus", "8", "--time", "1h", "--", "true")
    assert "expected to start in 1d" in corral("why", stated).out  # behind the one before it


def test_a_dry_run_gives_the_expected_start_when_full(corral: Type, submit: Submit, full: str) -> None:
    submit("--gpus", "8", "--time", "1h", "--", "true")
    told = corral("submit", "--dry-run", "--gpus", "8", "--time", "1h", "--", "true")
    assert "it waits; expected in 1d" in told.out
    assert "needs 8 GPUs" in told.out


@pytest.mark.parametrize("words", [("run", "--gpus", "8", "--", "true"), ("logs", "-f", "JOB")])
def test_on_a_pipe_it_is_printed_once_why_it_waits(corral: Type, submit: Submit, full: str, words: tuple[str]) -> None:
    job = submit("--gpus", "8", "--", "true") if words[0] == "logs" else ""
    typed = [job if word == "JOB" else word for word in words]
    with subprocess.Popen(command(*typed), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        line = next(line for line in running.stderr if "waits: " in line)
        assert "needs 8 GPUs" in line
        assert "\r" not in line
        corral("cancel", "--now", full)
        rest = running.stderr.read()
        assert "waits: needs 8 GPUs" not in rest
        assert running.wait(60) == 0


def test_on_a_terminal_one_line_is_kept_current(corral: Type, submit: Submit, full: str) -> None:
    main, side = pty.openpty()
    with subprocess.Popen(command("run", "--gpus", "8", "--", "true"), stderr=side, stdout=side, stdin=side) as running:
        os.close(side)
        seen = _read_until(main, b"waits: needs 8 GPUs")
        assert b"\n" not in seen[seen.rindex(b"waits: ") :]
        corral("cancel", "--now", full)
        seen += _read_until(main, b"succeeded")
        assert b"\r\x1b[K" in seen
        assert running.wait(60) == 0
    os.close(main)


def _read_until(terminal: int, mark: bytes, seconds: float = 60.0) -> bytes:
    seen, end = b"", time.monotonic() + seconds
    while mark not in seen:
        assert select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0], seen
        seen += os.read(terminal, 4096)
    return seen


def test_an_array_is_told_by_its_elements_and_what_it_really_holds(corral: Type, submit: Submit) -> None:
    script = "case $CORRAL_ARRAY_INDEX in 0) exit 1;; 1|2) exit 0;; esac; sleep 600"
    job = submit("--gpus", "1", "--array", "0-9%3", "--", "sh", "-c", script)

    def line() -> str:
        return next(line for line in corral("ps").out.splitlines() if line.split()[0] == job)

    _until(lambda: "2/10 done, 1 failed, 3 running" in line())
    assert " 3/10 " in line()
    shown = corral("show", job).out
    assert "2/10 done, 1 failed, 3 running" in shown
    assert "3 GPUs on 1 node" in shown
    corral("cancel", "--now", job)
    assert "2/10 done, 1 failed, 7 cancelled" in corral("wait", job).err
