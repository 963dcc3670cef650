"""What tasks do travels from their processes to the server: CPU, memory, GPUs, steps and loss."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from msgspec import json
from msgspec.structs import replace

from corral.agent.observed import Observed
from corral.agent.startup import begin
from corral.core.cluster.topology import NodeSpec
from corral.remote.activity_border import checked_activity
from corral.remote.border import Given, checked_report
from corral.remote.messages import AgentReport
from corral.runtime.base import ActivityReport, Process, TaskActivity, TaskKey
from corral.runtime.gpus import simulated
from corral.runtime.local.activity.rank_files import read_progress
from corral.runtime.local.settings import LocalSettings
from corral.wire.details import GpuActivity, RankActivity
from corral.wire.health import HealthSettings
from tests.accounts import OWN
from tests.agent.connections import DirectLine
from tests.agent.one_agent import FleetServer, until_heard
from tests.runtime.reports import Collector, order, until

NODE = NodeSpec("n1", simulated("2xH100"))
KEY, OTHERS = TaskKey("1/main", 1, 0), TaskKey("2/main", 1, 0)
SCRIPT = """
import time
from corral import training
for step in range(10_000_000):
    training.step_done(0.01, step=step, loss=1 / (step + 1), metrics={"lr": 0.1, "grad": float("nan")})
"""


def activity_of(collector: Collector, key: TaskKey) -> list[TaskActivity]:
    reports = [each for each in collector.heard if isinstance(each, ActivityReport)]
    return [task for each in reports for task in each.tasks if task.key == key and task.cpu_milli is not None]


def test_what_a_rank_does_reaches_the_server_through_its_agent(tmp_path: Path) -> None:
    """A script with the SDK on simulated GPUs: CPU time, memory, steps, loss; the GPUs are marked as simulated."""
    line, collector = DirectLine(), Collector()
    settings = LocalSettings(account=OWN, scan_ms=50, activity_ms=200)
    agent = begin(tmp_path / "agent", NODE, line, HealthSettings(clock_jump_ms_max=0), settings)
    server = FleetServer(tmp_path / "server", line)
    path = str(Path(__file__).resolve().parents[2] / "src")
    gpus = tuple(gpu.uuid for gpu in NODE.gpus)
    try:
        server.open(collector, 1)
        until_heard(server, ["n1"])
        ranks = tuple(Process((("RANK", str(rank)),)) for rank in (4, 5))
        env = (("PYTHONPATH", path),)
        server.launch([order(KEY, sys.executable, "-c", SCRIPT, env=env, processes=ranks, gpus=gpus)])
        until(lambda: any(len(task.ranks) == 2 and task.ranks[0].step for task in activity_of(collector, KEY)))
        until(lambda: any((task.cpu_milli or 0) > 50 for task in activity_of(collector, KEY)))
        until(lambda: any(gpu.utilisation_percent for gpu in _gpus(collector)))
        task = next(task for task in activity_of(collector, KEY) if len(task.ranks) == 2 and task.ranks[0].step)
        first = task.ranks[0]
        assert (first.rank, set(first.metrics)) == (4, {"loss", "lr", "grad"})
        assert first.metrics["grad"] is None, "nan is not a number in JSON"
        assert task.memory_mib is not None
        assert task.memory_mib > 5
        assert all(gpu.is_simulated for gpu in _gpus(collector))
        server.kill(KEY)
        collector.down(KEY)
    finally:
        server.close()
        agent.stop()


def _gpus(collector: Collector) -> list[GpuActivity]:
    return [gpu for each in collector.heard if isinstance(each, ActivityReport) for gpu in each.gpus]


def test_a_reading_is_sent_once_and_the_newest_replaces_one_that_was_not_sent() -> None:
    observed = Observed()
    observed.take(ActivityReport("n1", 1))
    observed.take(ActivityReport("n1", 2))
    assert observed.version == 0, "it needs no answer"
    assert observed.pop_activity() == ActivityReport("n1", 2)
    assert observed.pop_activity() is None


# ---- the border ----------------------------------------------------------------------------------------------------

GOOD_RANK = RankActivity(rank=0, cpu_milli=900, step=7, step_ms=100, since_step_ms=50, metrics={"loss": 0.5})
GOOD_GPU = GpuActivity(slot=1, utilisation_percent=93, memory_used_mib=10, memory_mib=80, power_mw=1, idle_ms=0)
GOOD = ActivityReport("n1", 1000, 2000, (GOOD_GPU,), (TaskActivity(KEY, 900, 12, (GOOD_RANK,)),))


def checked(report: ActivityReport) -> ActivityReport:
    return checked_activity(report, 2, lambda key: key == KEY)


def test_what_is_plausible_stays_as_it_is() -> None:
    assert checked(GOOD) == GOOD


@pytest.mark.parametrize(
    "gpu",
    [
        replace(GOOD_GPU, slot=2),
        replace(GOOD_GPU, slot=-1),
        replace(GOOD_GPU, utilisation_percent=101),
        replace(GOOD_GPU, memory_used_mib=-1),
        replace(GOOD_GPU, power_mw=1 << 40),
        replace(GOOD_GPU, idle_ms=1 << 60),
    ],
)
def test_an_impossible_gpu_is_left_out(gpu: GpuActivity) -> None:
    assert checked(replace(GOOD, gpus=(gpu, GOOD_GPU))).gpus == (GOOD_GPU,)


@pytest.mark.parametrize(
    "task",
    [
        TaskActivity(OTHERS, 1, 1),
        TaskActivity(KEY, -1, 1),
        TaskActivity(KEY, 1, 1 << 50),
        TaskActivity(KEY, 1, 1, (GOOD_RANK,) * 65),
        TaskActivity(KEY, 1, 1, (replace(GOOD_RANK, step=-1),)),
        TaskActivity(KEY, 1, 1, (replace(GOOD_RANK, step_ms=1 << 60),)),
        TaskActivity(KEY, 1, 1, (replace(GOOD_RANK, metrics={"x" * 41: 1.0}),)),
        TaskActivity(KEY, 1, 1, (replace(GOOD_RANK, metrics={"a\x1b[2J": 1.0}),)),
        TaskActivity(KEY, 1, 1, (replace(GOOD_RANK, metrics={f"m{n}": 1.0 for n in range(17)}),)),
    ],
    ids=str,
)
def test_an_impossible_task_is_left_out(task: TaskActivity) -> None:
    assert checked(replace(GOOD, tasks=(task,))).tasks == ()


def test_a_node_speaks_for_itself_only() -> None:
    given = Given()
    given.give(KEY, "n1")
    report = AgentReport(node="n1", session=1, seq=1, activity=replace(GOOD, node="n2"))
    assert checked_report(report, given, 2, 0).report.activity is None
    assert checked_report(report, given, 2, 0).dropped == 1
    own = replace(report, activity=GOOD)
    assert checked_report(own, given, 2, 0).report.activity == GOOD


def test_a_server_reads_reports_without_and_with_activity() -> None:
    """An agent of before sends none; one of later may send more fields."""
    old = b'{"node":"n1","session":1,"seq":1}'
    assert json.decode(old, type=AgentReport).activity is None
    new = b'{"node":"n1","session":1,"seq":1,"activity":{"node":"n1","fans":3}}'
    assert json.decode(new, type=AgentReport).activity == ActivityReport("n1")


# ---- what ranks write ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"step": 1}',
        b'{"boot_ms": -1, "step": 1}',
        b'{"boot_ms": 1, "step": -1}',
        b'{"boot_ms": 1, "step": 1e3}',
        b'{"boot_ms": 1, "step": 1, "step_ms": -5}',
        b'{"boot_ms": 1, "step": 1, "metrics": {"a": "text"}}',
        b'{"boot_ms": 1, "step": 1, "metrics": {"a": [1]}}',
        b'{"boot_ms": 1, "step": 1, "metrics": ' + b"[" * 5000,
        b"\xff" * 4096,
    ],
    ids=lambda text: str(text)[:40],
)
def test_a_progress_file_of_no_use_is_ignored(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "progress.0").write_bytes(text)
    (tmp_path / "progress.1").symlink_to("/etc/passwd")
    (tmp_path / "progress.2").mkdir()
    assert read_progress(str(tmp_path)) == {}


def test_metrics_are_numbers_with_short_names_and_few(tmp_path: Path) -> None:
    metrics = {"loss": 0.5, "bad name": 1, "nan": "nan", "inf": "-inf", **{f"m{n}": n for n in range(30)}}
    (tmp_path / "progress.3").write_bytes(json.encode({"boot_ms": 1, "step": 9, "metrics": metrics}))
    found = read_progress(str(tmp_path))[3]
    assert (found.step, found.metrics["loss"], found.metrics["nan"], found.metrics["inf"]) == (9, 0.5, None, None)
    assert len(found.metrics) <= 16
    assert "bad name" not in found.metrics
    assert all(value is None or math.isfinite(value) for value in found.metrics.values())
