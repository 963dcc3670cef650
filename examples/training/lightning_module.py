"""A Lightning module that loses no step when it is preempted: a callback saves, and the next attempt resumes.

corral submit --gpus 2 --processes 2 -- python lightning_module.py --folder runs/lightning
"""

from __future__ import annotations

import argparse

import corral_training as training
import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        values, targets = batch
        return torch.nn.functional.mse_loss(self.layer(values), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=300)
    asked = parser.parse_args()
    torch.manual_seed(0)
    values = torch.randn(4096, 8)
    data = DataLoader(TensorDataset(values, values.sum(1, keepdim=True)), batch_size=4)
    trainer = lightning.Trainer(
        accelerator="auto",
        devices=training.local_world_size(),
        strategy="ddp" if training.world_size() > 1 else "auto",
        max_steps=asked.steps,
        max_epochs=-1,
        default_root_dir=asked.folder,
        callbacks=[training.lightning_callback()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    print(f"rank {training.rank()} of {trainer.world_size} begins at step {training.resume_step()}", flush=True)
    trainer.fit(Regression(), data, ckpt_path=training.resume_path(), weights_only=False)
    print(f"rank {training.rank()} ends at step {trainer.global_step}", flush=True)
    training.finished()


if __name__ == "__main__":
    main()
