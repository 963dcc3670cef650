"""A small language model, trained with DDP or FSDP2, that loses no step when it is preempted.

    corral submit --nodes 2 --gpus 2 --processes 2 -- python language_model.py --folder runs/one

It learns to continue its own source. Batches depend on the step alone, so a run that was preempted, resumed and resized
computes the same losses as one that was not. Needs torch; runs on CPUs where there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import corral_training as training
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

BATCH, LENGTH, WIDTH = 12, 32, 32  # the batch of all ranks together
TEXT = torch.tensor(list(Path(__file__).read_bytes()))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens)
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        for layer in self.layers:
            hidden = layer(hidden, src_mask=mask, is_causal=True)
        return self.head(hidden)


def batch_of(step: int, device: torch.device) -> torch.Tensor:
    """The part of this rank of the batch of a step."""
    generator = torch.Generator().manual_seed(step)
    starts = torch.randint(len(TEXT) - LENGTH - 1, (BATCH,), generator=generator)
    own = starts[training.rank() :: training.world_size()]
    return torch.stack([TEXT[start : start + LENGTH + 1] for start in own]).to(device)


class Run:
    """What is trained, and what is in a checkpoint of it."""

    def __init__(self, folder: Path, device: torch.device, is_sharded: bool) -> None:
        torch.manual_seed(0)
        self.folder, self.device = folder, device
        model = Model().to(device)
        if is_sharded:
            for layer in model.layers:
                fully_shard(layer)
            self.model: nn.Module = fully_shard(model)
        else:
            self.model = DistributedDataParallel(model)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach=False)
        self.step, self.losses = 0, list[float]()

    def load(self) -> None:
        """The newest checkpoint: one that was saved and not reported is complete too, because it is renamed last."""
        path = self.folder / "checkpoint.pt"
        if not path.exists():
            return
        saved = torch.load(path, map_location="cpu", weights_only=True)
        options = StateDictOptions(full_state_dict=True)
        set_state_dict(
            self.model,
            self.optimiser,
            model_state_dict=saved["model"],
            optim_state_dict=saved["optimiser"],
            options=options,
        )
        self.step, self.losses = saved["step"], saved["losses"]

    def save(self) -> None:
        """Gathered on rank 0, written beside the old one and renamed. No rank leaves before it is durable."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model, optimiser = get_state_dict(self.model, self.optimiser, options=options)
        if training.rank() == 0:
            path = self.folder / "checkpoint.pt"
            with open(f"{path}.new", "wb") as file:
                torch.save({"model": model, "optimiser": optimiser, "step": self.step, "losses": self.losses}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{path}.new", path)
            training.checkpoint_saved(self.step, path)
        dist.barrier()

    def warm_up(self) -> None:
        """One pass that changes nothing. DDP arranges its buckets after the first one, and with them the order of sums:
        without this the first step of each attempt would differ from others by rounding."""
        tokens = batch_of(0, self.device)
        (self.model(tokens[:, :-1]).sum() * 0).backward()
        self.optimiser.zero_grad()

    def train_step(self) -> float:
        tokens = batch_of(self.step, self.device)
        with training.busy():
            logits = self.model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        self.step += 1
        dist.all_reduce(loss, op=dist.ReduceOp.SUM)
        return loss.item() / training.world_size()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds after each step, for tests")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group(timeout=timedelta(minutes=5))
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", training.local_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    run = Run(asked.folder, device, asked.fsdp)
    run.load()
    run.warm_up()
    print(f"rank {training.rank()} begins at step {run.step}", flush=True)
    stops = False
    while run.step < asked.steps and not stops:
        loss = run.train_step()
        run.losses.append(loss)
        time.sleep(asked.pause)
        training.report(run.step, loss)
        stops = training.should_stop(run.step)
        if stops or run.step % asked.save_every == 0 or run.step == asked.steps:
            run.save()
    print(f"rank {training.rank()} ends at step {run.step}", flush=True)
    if run.step == asked.steps and training.rank() == 0:
        (asked.folder / "losses.json").write_text(json.dumps(run.losses))
    dist.destroy_process_group()
    if run.step < asked.steps:
        sys.exit(training.SAVED)
    training.finished()


if __name__ == "__main__":
    main()
