"""Training frameworks, preempted at random: with Corral's callbacks, and as they are. The last line is JSON.

    PYTHONPATH=src:. python -m tests.e2e.frameworks [--count 10] [--only NAME]...

Each program runs with two processes on one node; a job of higher priority takes its GPUs ``count`` times at random
moments. ``false_successes``: the job succeeded, but its last step was never reached. ``deadlocks``: attempts that were
killed at their deadline. ``unsaved``: of programs with a callback, preempted attempts that ended without a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.e2e.live import ROOT, Live

PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"
TORCH = ROOT / ".venv-torch" / "bin"
EXAMPLES = ROOT / "examples" / "training"
STEPS = 400
PATIENCE_S = 240.0
OVER = ("succeeded", "failed", "cancelled")

#: Lightning without Corral: it saves every 20 steps, and resumes from its last checkpoint.
LIGHTNING = """
import os, sys, time
sys.path.insert(0, {examples!r})
import lightning, torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning_module import Regression
from torch.utils.data import DataLoader, TensorDataset
folder, steps = sys.argv[1], int(sys.argv[2])
class Slow(Callback):
    def on_train_start(self, trainer, _):
        print("rank", trainer.global_rank, "begins at step", trainer.global_step, flush=True)
    def on_train_batch_end(self, *_):
        time.sleep(0.02)
values = torch.randn(4096, 8)
saves = ModelCheckpoint(folder, save_last=True, every_n_train_steps=20, save_top_k=1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_steps=steps, max_epochs=-1, default_root_dir=folder,
    callbacks=[saves, Slow()], logger=False, enable_progress_bar=False, enable_model_summary=False)
last = os.path.join(folder, "last.ckpt")
trainer.fit(Regression(), DataLoader(TensorDataset(values, values.sum(1, keepdim=True)), batch_size=4),
            ckpt_path=last if os.path.exists(last) else None, weights_only=False)
print("rank 0 ends at step", trainer.global_step, flush=True)
"""
#: Hugging Face without Corral: every 20 steps, or just in time.
HUGGINGFACE = """
import os, sys, time
sys.path.insert(0, {examples!r})
from huggingface_trainer import Text
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
folder, steps = sys.argv[1], int(sys.argv[2])
class Slow(TrainerCallback):
    def on_train_begin(self, arguments, state, *_, **__):
        print("rank", arguments.process_index, "begins at step", state.global_step, flush=True)
    def on_step_end(self, *_, **__):
        time.sleep(0.02)
arguments = TrainingArguments(output_dir=folder, max_steps=steps, per_device_train_batch_size=2, save_strategy="steps",
    save_steps=20, save_total_limit=2, report_to=[], disable_tqdm=True, logging_steps=100, {more})
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
trainer = Trainer(model, arguments, train_dataset=Text(), callbacks=[Slow()])
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder) if os.path.isdir(folder) else None)
print("rank 0 ends at step", trainer.state.global_step, flush=True)
"""


def programs(folder: Path) -> dict[str, dict[str, Any]]:
    """Documents of jobs, by name. Those of ``CALLBACKS`` save when they are preempted."""
    written = {
        "lightning": LIGHTNING.format(examples=str(EXAMPLES)),
        "huggingface": HUGGINGFACE.format(examples=str(EXAMPLES), more=""),
        "huggingface_jit": HUGGINGFACE.format(examples=str(EXAMPLES), more="enable_jit_checkpoint=True"),
    }
    for name, text in written.items():
        (folder / f"plain_{name}.py").write_text(text)
    run, end = str(folder / "runs"), ["--steps", str(STEPS)]
    model = [str(EXAMPLES / "language_model.py"), "--steps", str(STEPS), "--pause", "0.02", "--folder"]
    return {
        "lightning_callback": _ranks(str(EXAMPLES / "lightning_module.py"), *end, "--folder", f"{run}/1"),
        "huggingface_callback": _ranks(str(EXAMPLES / "huggingface_trainer.py"), *end, "--folder", f"{run}/2"),
        "accelerate": _ranks(str(EXAMPLES / "accelerate_loop.py"), *end, "--pause", "0.02", "--folder", f"{run}/3"),
        "torchrun": _alone(str(TORCH / "torchrun"), "--standalone", "--nproc-per-node", "2", *model, f"{run}/4"),
        "torchrun_elastic": _alone(str(TORCH / "torchrun"), "--standalone", "--nnodes", "1:1", "--nproc-per-node", "2",
                                   "--max-restarts", "3", *model, f"{run}/5"),
        "lightning": _ranks(str(folder / "plain_lightning.py"), f"{run}/6", str(STEPS)),
        "huggingface": _ranks(str(folder / "plain_huggingface.py"), f"{run}/7", str(STEPS)),
        "huggingface_jit": _ranks(str(folder / "plain_huggingface_jit.py"), f"{run}/8", str(STEPS)),
    }  # fmt: skip


CALLBACKS = ("lightning_callback", "huggingface_callback", "accelerate", "torchrun", "torchrun_elastic")


def _ranks(*words: str) -> dict[str, Any]:
    return {"command": [str(PYTHON), *words], "processes": 2}


def _alone(*words: str) -> dict[str, Any]:
    return {"command": list(words)}


def measure(folder: Path, count: int, only: list[str], seed: int = 1) -> dict[str, Any]:
    live, draw = Live(folder / "data", gpus=2), random.Random(seed)
    live.start()
    found: dict[str, Any] = {"preemptions": 0, "false_successes": 0, "deadlocks": 0, "unsaved": 0, "failed": []}
    try:
        for name, document in programs(folder).items():
            if not only or name in only:
                _one(live, name, document, count, draw, found)
    finally:
        live.stop()
    return found


def _one(
    live: Live, name: str, document: dict[str, Any], count: int, draw: random.Random, found: dict[str, Any]
) -> None:
    env = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    job = live.submit({**document, "gpus": 2, "env": env, "name": name, "grace": "60s", "retries": 2})
    preempted = 0
    while preempted < count and live.job(job)["state"] not in OVER:
        until_training(live, job, preempted + 1)
        time.sleep(draw.uniform(0, 5))
        if live.job(job)["state"] not in OVER:
            urgent = live.submit({"command": "true", "gpus": 2, "priority": 100})
            preempted += 1
            live.until_over([urgent], PATIENCE_S)
    live.until_over([job], PATIENCE_S)
    shown, out = live.job(job), "".join(_logs(live, job))
    is_done = f"ends at step {STEPS}" in out
    runs = [run for run in shown["history"] if run["cause"]]
    lost = [run for run in runs if run["exit_code"] not in (0, 85, 1, 143)]
    ended = runs[:-1] if runs and is_done and runs[-1]["exit_code"] == 0 else runs  # it had finished by then
    unsaved = [run for run in ended if run["exit_code"] != 85 and name in CALLBACKS and "torchrun" not in name]
    print(f"{name}: {preempted} preemptions, {shown['state']}, exits {[run['exit_code'] for run in runs]}", flush=True)
    found["preemptions"] += preempted
    found["false_successes"] += shown["state"] == "succeeded" and not is_done
    found["deadlocks"] += len(lost)
    found["unsaved"] += len(unsaved)
    found["failed"] += [name] if shown["state"] != "succeeded" else []


def until_training(live: Live, job: str, attempt: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while "begins at step" not in "".join(_logs(live, job, attempt)) and live.job(job)["state"] not in OVER:
        assert time.monotonic() < end, f"job {job} does not train"
        time.sleep(0.1)


def _logs(live: Live, job: str, attempt: int | str = "") -> list[str]:
    logs = (live.data / "tasks" / "logs").rglob("stdout.*")
    return [path.read_text(errors="replace") for path in sorted(logs) if f"/{job}%2Fmain@{attempt}" in str(path)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--only", action="append", default=[])
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server must be stopped then, too
    if not PYTHON.exists():
        sys.exit("no training frameworks beside the checkout: make services")
    with tempfile.TemporaryDirectory(prefix="corral-frameworks-") as folder:
        print(json.dumps(measure(Path(folder), asked.count, asked.only)))


if __name__ == "__main__":
    main()
