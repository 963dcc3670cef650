"""Several processes of one task are started in one process group, whichever of them runs first."""

from __future__ import annotations

import os
import select
import time

import pytest

from corral.runtime.local.task.cgroups import TaskGroups
from corral.runtime.local.task.start import Account, Program, start

PROCESSES = 8
SLOW_S = 0.01


def verdicts_of(program: Program, sink: int) -> list[bytes]:
    """What each of them has to say about its start; nothing: its program runs."""
    leader, pids, pipes = 0, [], []
    for _ in range(PROCESSES):
        pid, pipe = start(program, sink, sink, leader)
        leader = leader or pid
        pids.append(pid)
        pipes.append(pipe)
    said = []
    for pipe in pipes:
        select.select([pipe], [], [], 60)
        said.append(os.read(pipe, 4096))
        os.close(pipe)
    for pid in pids:
        os.waitpid(pid, 0)
    return said


@pytest.mark.parametrize("starts", [5])  # the first is late each time
def test_the_first_of_several_processes_may_run_last(monkeypatch: pytest.MonkeyPatch, starts: int):
    """The second joins the group of the first, which it may have to wait for: here the first is always late."""
    parent, real = os.getpid(), os.setpgid

    def late(pid: int, group: int) -> None:
        if os.getpid() != parent and group == 0:
            time.sleep(SLOW_S)
        real(pid, group)

    monkeypatch.setattr(os, "setpgid", late)
    program = Program(["true"], {"PATH": os.environ["PATH"]}, "/", Account(""), TaskGroups(2, {}), 0o022)
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        failed = [said for _ in range(starts) for said in verdicts_of(program, sink) if said]
    finally:
        os.close(sink)
    assert failed == []


def test_all_processes_of_a_task_are_in_the_group_of_the_first(tmp_path):
    sink = os.open(tmp_path / "groups", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    program = Program(
        ["sh", "-c", "ps -o pgid= -p $$"], {"PATH": os.environ["PATH"]}, "/", Account(""), TaskGroups(2, {}), 0o022
    )
    try:
        assert not any(verdicts_of(program, sink))
    finally:
        os.close(sink)
    groups = (tmp_path / "groups").read_text().split()
    assert len(groups) == PROCESSES
    assert len(set(groups)) == 1
    assert groups[0] != str(os.getpgrp())
