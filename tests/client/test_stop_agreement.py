"""All ranks stop at the same step: real marks and warnings, random delays, and a server that forgets everything."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from corral.client import training
from corral.runtime.local.step_marks import ASKING, CONTINUES, WAITS, StopMarks, earliest_stop
from corral.runtime.local.task.scratch import Scratch

STEPS = 400


def mark(step: int, answer: int) -> int:
    return step << 2 | answer


@pytest.mark.parametrize(
    ("marks", "step"),
    [
        ([], 0),
        ([mark(7, WAITS)], 7),
        ([mark(7, CONTINUES)], 8),
        ([mark(7, ASKING)], 8),
        ([mark(7, WAITS), mark(7, WAITS)], 7),
        ([mark(7, WAITS), mark(7, CONTINUES)], 8),
        ([mark(6, CONTINUES), mark(7, WAITS)], 7),
    ],
    ids=["no rank asked", "waits", "continues", "unknown", "all wait", "one has gone on", "one is a step behind"],
)
def test_the_earliest_step_that_no_rank_has_passed(marks: list[int], step: int) -> None:
    assert earliest_stop(marks) == step


@pytest.mark.parametrize("content", [b"", b"1234567", b"\xff" * 8, (3).to_bytes(8, "little")])
def test_what_is_no_mark_is_ignored(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "at.0").write_bytes(content)
    (tmp_path / "at.x").write_bytes(b"\0" * 8)
    (tmp_path / "at.1").symlink_to("/etc/hostname")
    os.mkfifo(tmp_path / "at.2")
    marks = StopMarks(str(tmp_path), 0.0)
    assert marks.step(0.1) is None
    assert marks.step(0.2) == 0


class Model:
    """Ranks on nodes, interleaved one action at a time by a seed. A step of a gang ends when all ranks have done it
    (a collective); only then can a rank ask about the next. Actions of ranks, supervisors and the server come in any
    order. The supervisor does what `StopMarks` does; the server forgets everything at random."""

    def __init__(self, seed: int, nodes: int, ranks: int, has_collectives: bool) -> None:
        self.draw = random.Random(seed)
        self.ranks = range(ranks)
        self.node_of = [rank * nodes // ranks for rank in self.ranks]
        self.nodes = range(nodes)
        self.has_collectives = has_collectives
        self.step = [0] * ranks  # the step that a rank asks about, or has asked about
        self.phase = ["work"] * ranks
        self.marks = [0] * ranks
        self.warned = [False] * nodes
        self.proposed: list[int | None] = [None] * nodes
        self.told: list[int | None] = [None] * nodes
        self.heard: dict[int, int] = {}  # what the server knows
        self.stopped: dict[int, int] = {}

    def run(self) -> dict[int, int]:
        for _ in range(100_000):
            if len(self.stopped) == len(self.ranks):
                return self.stopped
            actor = self.draw.random()
            if actor < 0.7:
                self.rank(self.draw.choice(self.ranks))
            elif actor < 0.85:
                self.supervisor(self.draw.choice(self.nodes))
            else:
                self.server()
        raise AssertionError(f"deadlock: {self.phase} at {self.step}, stopped {self.stopped}")

    def rank(self, r: int) -> None:
        node = self.node_of[r]
        if self.phase[r] == "work":
            arrived = min(self.step[other] for other in self.ranks)
            if self.has_collectives and arrived < self.step[r]:
                return  # waits in the collective of the next step
            self.step[r] += 1
            self.marks[r], self.phase[r] = mark(self.step[r], ASKING), "look"
        elif self.phase[r] == "look":
            if self.told[node] is None and self.warned[node]:
                self.marks[r], self.phase[r] = mark(self.step[r], WAITS), "wait"
            else:
                self.answer(r)
        elif self.phase[r] == "wait" and self.told[node] is not None:
            self.answer(r)

    def answer(self, r: int) -> None:
        at = self.told[self.node_of[r]]
        if at is not None and self.step[r] >= at:
            self.stopped[r], self.phase[r] = self.step[r], "stopped"
        else:
            self.marks[r], self.phase[r] = mark(self.step[r], CONTINUES), "work"

    def supervisor(self, node: int) -> None:
        if not self.warned[node]:
            self.warned[node] = self.draw.random() < 0.2
        elif self.proposed[node] is None:
            marks = [self.marks[r] for r in self.ranks if self.node_of[r] == node and self.marks[r]]
            if not any(each & 3 == ASKING for each in marks) or self.draw.random() < 0.1:
                self.proposed[node] = earliest_stop(marks)

    def server(self) -> None:
        if self.draw.random() < 0.1:
            self.heard = {}  # restarted
        node = self.draw.choice(self.nodes)
        known = self.told[node] if self.told[node] is not None else self.proposed[node]
        if known is not None:
            self.heard[node] = known
        if len(self.heard) == len(self.nodes) and self.draw.random() < 0.5:
            self.told[node] = self.told[node] or max(self.heard.values())


@pytest.mark.parametrize(("nodes", "ranks"), [(1, 2), (2, 4), (3, 7)])
@pytest.mark.parametrize("has_collectives", [True, False], ids=["collectives", "ranks run apart"])
def test_in_any_order_of_events_all_stop_at_one_step(nodes: int, ranks: int, has_collectives: bool) -> None:
    for seed in range(STEPS):
        stopped = Model(seed, nodes, ranks, has_collectives).run()
        assert len(set(stopped.values())) == 1, (seed, stopped)


RANK = """
import os, random, sys, time
sys.path.insert(0, {source!r})
import training
draw = random.Random(int(os.environ["RANK"]) + {seed})
step = 0
while True:
    time.sleep(draw.random() * 0.004)
    step += 1
    if training.should_stop({argument}):
        print(step, flush=True)
        break
"""


@pytest.mark.parametrize("argument", ["", "step"])
def test_real_processes_without_any_collective_stop_together(tmp_path: Path, argument: str) -> None:
    """Two folders, as on two nodes, warned 100 ms after each other; a thread is what supervisors and server do."""
    source = RANK.format(source=str(Path(training.__file__).parent), seed=7, argument=argument)
    homes = [Scratch(str(tmp_path / f"node{n}"), os.geteuid(), os.getegid()) for n in range(2)]
    for home in homes:
        home.make()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", source],
            env={
                **os.environ, "CORRAL_JOB_ID": "1", "RANK": str(rank), "WORLD_SIZE": "4",
                "CORRAL_WARNING_FILE": f"{homes[rank // 2].path}/warning.json",
            },
            stdout=subprocess.PIPE, text=True,
        )
        for rank in range(4)
    ]  # fmt: skip
    try:
        while not all(Path(homes[rank // 2].path, f"at.{rank}").exists() for rank in range(4)):
            time.sleep(0.01)
        time.sleep(0.3)
        _agree(homes)
        said = [int(rank.communicate(timeout=20)[0]) for rank in ranks]
        assert len(set(said)) == 1, said
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def _agree(homes: list[Scratch]) -> None:
    found = [0] * len(homes)

    def one(n: int) -> None:
        time.sleep(n * 0.1)
        homes[n].warn(30_000, "priority")
        marks = StopMarks(homes[n].path, time.monotonic())
        while (step := marks.step(time.monotonic())) is None:
            time.sleep(0.005)
        found[n] = step

    threads = [threading.Thread(target=one, args=(n,)) for n in range(len(homes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for home in homes:
        home.stop_at(max(found))
        time.sleep(0.1)


def test_without_an_answer_half_of_the_grace_is_left_for_saving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "warning.json"
    monkeypatch.setenv("CORRAL_WARNING_FILE", str(file))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(training, "_stop", training._Stop())
    boot_ms = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
    file.write_text(json.dumps({"boot_ms": boot_ms + 4_000, "why": "drain", "is_agreed": True}))
    began = time.monotonic()
    assert training.should_stop()
    assert 1.0 < time.monotonic() - began < 3.8


def test_a_process_that_was_restarted_meanwhile_stops_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts its calls from 1 again; those that the others agreed on are of the process before it."""
    file = tmp_path / "warning.json"
    monkeypatch.setenv("CORRAL_WARNING_FILE", str(file))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setattr(training, "_stop", training._Stop())
    boot_ms = int(time.clock_gettime(time.CLOCK_BOOTTIME) * 1000)
    file.write_text(json.dumps({"why": "drain", "is_agreed": True, "stop_at": 500, "agreed_boot_ms": boot_ms - 5_000}))
    assert training.should_stop()
