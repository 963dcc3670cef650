"""Real training with torch on two nodes: preempted without a lost step, and restarted when a rank hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.fleet import FleetTrial
from tests.e2e.live import ROOT
from tests.e2e.training_soak import LEASE_MS, measure

PYTHON = ROOT / ".venv-torch" / "bin" / "python"
HANGS = """
import os, time, torch
import torch.distributed as dist
import corral_training as training
dist.init_process_group("gloo")
def stuck():
    time.sleep(600)
for step in range(1, 30):
    time.sleep(0.05)
    if step == 20 and training.attempt() == 1 and training.rank() == 2:
        stuck()
    dist.all_reduce(torch.ones(1))
    training.report(step)
dist.destroy_process_group()
"""

pytestmark = [
    pytest.mark.timeout(290),
    pytest.mark.skipif(not PYTHON.exists(), reason="no torch beside the checkout: make services"),
]


def test_a_preempted_run_computes_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    found = measure(tmp_path, str(PYTHON), steps=120, preemptions=1, slow_ms=100)
    assert found["state"] == "succeeded"
    assert found["loss_equal"], found
    assert (found["preemptions"], found["steps_lost_acked"], found["deadlocks"], found["bad_resumes"]) == (1, 0, 0, 0)


def test_a_rank_that_hangs_is_named_and_the_job_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANGS)
    with FleetTrial(tmp_path / "fleet", 2, LEASE_MS) as trial:
        job = trial.submit(
            command=[str(PYTHON), str(tmp_path / "train.py")], nodes=2, gpus=2, processes=2, stall_timeout="4s"
        )
        trial.until("it is over", lambda: trial.job(job).state in ("succeeded", "failed"), 200)
        runs = trial.job(job).history
        assert [run.failure for run in runs] == ["stalled", None]
        assert "rank 2 holds the others up" in str(runs[0].first_failure)
