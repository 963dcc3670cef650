"""The programs of examples/training run: by themselves, and the script for Slurm as a job.

What preempts them is elsewhere (`test_training`, `test_frameworks`, `make bench-frameworks`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from corral.wire.job.sbatch import read_sbatch
from tests.e2e.framework_programs import EXAMPLES, PYTHON, TORCH
from tests.e2e.live import ROOT, Live, free_port

pytestmark = [
    pytest.mark.timeout(290),
    pytest.mark.skipif(not PYTHON.exists(), reason="no training frameworks beside the checkout: make services"),
]
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


@pytest.mark.parametrize("name", ["lightning_module", "huggingface_trainer"])
def test_a_framework_completes_outside_of_corral(name: str, tmp_path: Path) -> None:
    (tmp_path / "corral_training.py").write_bytes((ROOT / "src/corral/client/training.py").read_bytes())
    command = [str(PYTHON), str(EXAMPLES / f"{name}.py"), "--folder", str(tmp_path / "run"), "--steps", "6"]
    env = os.environ | QUIET | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert "rank 0 ends at step 6" in done.stdout, done.stderr[-2000:]


def test_the_language_model_computes_the_same_sharded(tmp_path: Path) -> None:
    (tmp_path / "corral_training.py").write_bytes((ROOT / "src/corral/client/training.py").read_bytes())
    losses = []
    for layout in ("--fsdp", ""):
        folder = tmp_path / (layout or "ddp")
        command = [str(TORCH / "torchrun"), "--nproc-per-node", "2", "--master-port", str(free_port())]
        command += [str(EXAMPLES / "language_model.py"), "--folder", str(folder), "--steps", "4", "--save-every", "2"]
        env = os.environ | QUIET | {"PYTHONPATH": str(tmp_path)}
        words = [*command, layout] if layout else command
        subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, timeout=240, check=True)
        losses.append((folder / "losses.json").read_text())
    assert pytest.approx(json.loads(losses[0]), abs=1e-5) == json.loads(losses[1])


def test_the_script_for_slurm_completes_as_a_job(tmp_path: Path) -> None:
    text = (EXAMPLES / "train.sbatch").read_text()
    document = read_sbatch(text, "train.sbatch", arguments=("--steps", "4", "--save-every", "2")).document
    (tmp_path / "language_model.py").write_bytes((EXAMPLES / "language_model.py").read_bytes())
    path = f"{TORCH}:{os.environ['PATH']}"
    env = {**document.get("env", {}), **QUIET, "PATH": path}
    live = Live(tmp_path / "data", gpus=2)
    live.start()
    try:
        job = live.submit({**document, "cpus": 1, "directory": str(tmp_path), "env": env})
        shown = live.until_over([job], 240)[job]
        assert shown["state"] == "succeeded", shown
    finally:
        live.stop()
    assert len(json.loads((tmp_path / "runs" / "lm" / "losses.json").read_text())) == 4
