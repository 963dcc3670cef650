"""``corral goodput`` and ``corral sim training``, as typed."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.cli.conftest import Type
from tests.cli.typed import typed
from tests.runtime.reports import until

SAVES = """sleep 0.3; echo '{"step": 1, "save_ms": 200, "stall_ms": 20}' >> $CORRAL_CHECKPOINT_FILE; sleep 0.7"""


def test_the_time_of_a_job_by_cause(corral: Type, submit: Callable[..., str]):
    job = submit("--gpus", "1", "--", "sh", "-c", SAVES)
    assert corral("wait", job).code == 0
    found = json.loads(corral("goodput", job, "--json").out)
    assert found["saves"] == found["attempts"] == 1
    assert found["ms"]["saving"] == 20
    assert found["ms"]["trained"] > 500
    assert found["advice"]["stall_ms"] == 20
    assert found["advice"]["save_ms"] == 200
    shown = corral("goodput", job).out
    assert f"effective training time of job {job}: " in shown
    assert "stood still to save" in shown
    assert "advised: a checkpoint every " in shown


def test_the_advice_is_shown_with_a_job_that_saves(corral: Type, submit: Callable[..., str]):
    job = submit("--gpus", "1", "--", "sh", "-c", SAVES + "; sleep 600")
    until(lambda: "advised: a checkpoint every " in corral("show", job).out)
    assert corral("cancel", job).code == 0


def test_the_time_of_all_jobs(corral: Type, submit: Callable[..., str]):
    job = submit("--gpus", "1", "--", "sleep", "0.2")
    corral("wait", job)
    found = json.loads(corral("goodput", "--json").out)
    assert found["is_gpu_time"]
    assert found["ms"]["trained"] > 100
    assert corral("goodput", "99999").code == 5


def test_a_simulated_run(capsys: pytest.CaptureFixture[str]):
    words = ("--gpus", "64", "--days", "5", "--failures", "300", "--spares", "1", "--free", "3")
    found = json.loads(typed(capsys, "sim", "training", *words, "--json").out)
    assert 950_000 < found["ratio_ppm"] < 1_000_000
    shown = typed(capsys, "sim", "training", *words, "--interval", "2h").out
    assert "a checkpoint every 2h (given)" in shown
    assert "trained again after failures" in shown
    assert typed(capsys, "sim", "training", "--interval", "often").code == 2
