"""Programs of training frameworks without a line for Corral, as texts, and the documents of jobs that run them.

Each takes a folder and a number of steps, saves every `INTERVAL` steps by the means of its framework, prints at which
step it begins and ends, and writes the step that it has reached into the file ``at`` in its folder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from corral.wire.job.sbatch import read_sbatch
from tests.e2e.live import ROOT

PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"
RAY_PYTHON = ROOT / ".venv-raytrain" / "bin" / "python"
TORCH = ROOT / ".venv-torch" / "bin"
EXAMPLES = ROOT / "examples" / "training"
INTERVAL = 20
#: Ray Train registers a checkpoint in another process, a while after it was reported. Lightning goes on after its own
#: save under Slurm, and is killed a second later.
LOSES_MOST = {"ray_train": 2 * INTERVAL, "lightning_slurm": 4 * INTERVAL}

#: Lightning without Corral: it saves every 20 steps, and resumes from its last checkpoint.
LIGHTNING = """
import os, sys, time
sys.path.insert(0, {examples!r})
import lightning, torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning_module import Regression
from torch.utils.data import DataLoader, TensorDataset
folder, steps = sys.argv[1], int(sys.argv[2])
os.makedirs(folder, exist_ok=True)
class Slow(Callback):
    def on_train_start(self, trainer, _):
        print("rank", trainer.global_rank, "begins at step", trainer.global_step, flush=True)
    def on_train_batch_end(self, trainer, *_):
        time.sleep(0.02)
        if trainer.global_rank == 0:
            open(os.path.join(folder, "at"), "w").write(str(trainer.global_step))
devices = int(os.environ.get("SLURM_NTASKS_PER_NODE", "2"))
values = torch.randn(4096, 8)
saves = ModelCheckpoint(folder, save_last=True, every_n_train_steps=20, save_top_k=1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=devices, num_nodes=1, strategy="ddp", max_steps=steps, max_epochs=-1,
    default_root_dir=folder, callbacks=[saves, Slow()], logger=False, enable_progress_bar=False,
    enable_model_summary=False)
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
os.makedirs(folder, exist_ok=True)
class Slow(TrainerCallback):
    def on_train_begin(self, arguments, state, *_, **__):
        print("rank", arguments.process_index, "begins at step", state.global_step, flush=True)
    def on_step_end(self, arguments, state, *_, **__):
        time.sleep(0.02)
        if arguments.process_index == 0:
            open(os.path.join(folder, "at"), "w").write(str(state.global_step))
arguments = TrainingArguments(output_dir=folder, max_steps=steps, per_device_train_batch_size=2, save_strategy="steps",
    save_steps=20, use_cpu=True, save_total_limit=2, report_to=[], disable_tqdm=True, logging_steps=100, {more})
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
trainer = Trainer(model, arguments, train_dataset=Text(), callbacks=[Slow()])
trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
print("rank 0 ends at step", trainer.state.global_step, flush=True)
"""
#: Under Slurm, Lightning saves at SIGUSR1 and asks ``scontrol`` to requeue the job; the next run finds that file. With
#: one rank: with gloo, a rank that still computes the step waits for one whose handler waits for it in a barrier.
SBATCH = """#!/bin/bash
#SBATCH --job-name=lightning
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --signal=SIGUSR1@50
#SBATCH --requeue
export OMP_NUM_THREADS=1 MASTER_ADDR=127.0.0.1  # the name of the test node cannot be resolved
srun {python} {program} {folder} {steps}
"""
#: Ray Train: a cluster of its own inside the job, two workers; it resumes by the name of the run.
RAY = """
import os, sys, tempfile, time
import ray, torch
from ray import train
from ray.train.torch import TorchTrainer
folder, steps = os.path.abspath(sys.argv[1]), int(sys.argv[2])
def work():
    model = torch.nn.Linear(8, 1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    model = train.torch.prepare_model(model)
    step, found = 0, train.get_checkpoint()
    if found is not None:
        with found.as_directory() as place:
            step = torch.load(os.path.join(place, "state.pt"))["step"]
    print("rank", train.get_context().get_world_rank(), "begins at step", step, flush=True)
    while step < steps:
        optimiser.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimiser.step()
        time.sleep(0.02)
        step += 1
        if train.get_context().get_world_rank() == 0:
            open(os.path.join(folder, "at"), "w").write(str(step))
        if step % 20 == 0 or step == steps:
            with tempfile.TemporaryDirectory() as place:
                torch.save({{"step": step, "model": model.state_dict()}}, os.path.join(place, "state.pt"))
                is_first = train.get_context().get_world_rank() == 0
                train.report({{"step": step}}, checkpoint=train.Checkpoint.from_directory(place) if is_first else None)
ray.init(num_cpus=2, include_dashboard=False)
result = TorchTrainer(
    work, scaling_config=train.ScalingConfig(num_workers=2),
    run_config=train.RunConfig(name="run", storage_path=folder)).fit()
print("rank 0 ends at step", result.metrics["step"], flush=True)
"""

#: Programs that have no line for Corral, and the folder of each.
PLAIN = {"lightning": "6", "huggingface": "7", "huggingface_jit": "8", "lightning_slurm": "10", "ray_train": "11"}
CALLBACKS = ("lightning_callback", "huggingface_callback", "accelerate")


def programs(folder: Path, steps: int) -> dict[str, dict[str, Any]]:
    """Documents of jobs, by name. Those of ``CALLBACKS`` save when they are preempted, and those of torchrun too."""
    written = {
        "lightning": LIGHTNING.format(examples=str(EXAMPLES)),
        "huggingface": HUGGINGFACE.format(examples=str(EXAMPLES), more=""),
        "huggingface_jit": HUGGINGFACE.format(examples=str(EXAMPLES), more="enable_jit_checkpoint=True"),
        "ray_train": RAY.format(),
    }
    for name, text in written.items():
        (folder / f"plain_{name}.py").write_text(text)
    run, end = str(folder / "runs"), ["--steps", str(steps)]
    model = [str(EXAMPLES / "language_model.py"), "--steps", str(steps), "--pause", "0.02", "--folder"]
    found = {
        "lightning_callback": _ranks(str(EXAMPLES / "lightning_module.py"), *end, "--folder", f"{run}/1"),
        "huggingface_callback": _ranks(str(EXAMPLES / "huggingface_trainer.py"), *end, "--folder", f"{run}/2"),
        "accelerate": _ranks(str(EXAMPLES / "accelerate_loop.py"), *end, "--pause", "0.02", "--folder", f"{run}/3"),
        "torchrun": _alone(str(TORCH / "torchrun"), "--standalone", "--nproc-per-node", "2", *model, f"{run}/4"),
        "torchrun_c10d": _agents(2, "2", *model, f"{run}/5"),
        "torchrun_elastic": _agents(2, "1:2", "--max-restarts", "3", *model, f"{run}/9", tasks_min=1),
        "lightning": _ranks(str(folder / "plain_lightning.py"), f"{run}/6", str(steps)),
        "lightning_slurm": _slurm(str(folder / "plain_lightning.py"), f"{run}/10", steps),
        "huggingface": _ranks(str(folder / "plain_huggingface.py"), f"{run}/7", str(steps)),
        "huggingface_jit": _ranks(str(folder / "plain_huggingface_jit.py"), f"{run}/8", str(steps)),
    }  # fmt: skip
    if RAY_PYTHON.exists():
        found["ray_train"] = _alone(str(RAY_PYTHON), str(folder / "plain_ray_train.py"), f"{run}/11", str(steps))
    else:
        print("Ray Train is not here (sh tools/services.sh raytrain), so it is left out", file=sys.stderr)
    return found


def _ranks(*words: str) -> dict[str, Any]:
    return {"command": [str(PYTHON), *words], "processes": 2, "gpus": 2}


def _alone(*words: str) -> dict[str, Any]:
    return {"command": list(words), "gpus": 2}


def _agents(tasks: int, nodes: str, *words: str, tasks_min: int = 0) -> dict[str, Any]:
    """One elastic agent of torchrun in each task; they find each other by its own rendezvous."""
    meeting = f'--nnodes {nodes} --nproc-per-node 1 --rdzv-backend c10d --rdzv-id "$CORRAL_JOB_ID"'
    command = f'exec {TORCH / "torchrun"} {meeting} --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" {" ".join(words)}'
    return {"command": command, "gpus": 1, "tasks": f"{tasks_min}..{tasks}" if tasks_min else tasks}


def _slurm(program: str, folder: str, steps: int) -> dict[str, Any]:
    script = SBATCH.format(python=PYTHON, program=program, folder=folder, steps=steps)
    document: dict[str, Any] = read_sbatch(script, "lightning.sbatch").document
    return document
