"""A loop with Hugging Face Accelerate that loses no step when it is preempted.

corral submit --gpus 2 --processes 2 -- python accelerate_loop.py --folder runs/accelerate
"""

from __future__ import annotations

import argparse
import time

import corral_training as training
import torch
from accelerate import Accelerator


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step, for tests")
    asked = parser.parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())  # otherwise ranks on CPUs would not find each other
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    model, optimiser = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    checkpoint = training.resume_from()
    step = training.resume_step()
    if checkpoint is not None:
        accelerator.load_state(checkpoint.path)
    print(f"rank {training.rank()} of {accelerator.num_processes} begins at step {step}", flush=True)
    while step < asked.steps:
        generator = torch.Generator().manual_seed(step * training.world_size() + training.rank())
        values = torch.randn(4, 8, generator=generator).to(accelerator.device)
        loss = torch.nn.functional.mse_loss(model(values), values.sum(1, keepdim=True))
        optimiser.zero_grad()
        accelerator.backward(loss)
        optimiser.step()
        time.sleep(asked.pause)
        step += 1
        training.report(step, loss)
        training.stop_accelerate(accelerator, step, asked.folder)
    print(f"rank {training.rank()} ends at step {step}", flush=True)
    training.finished()


if __name__ == "__main__":
    main()
