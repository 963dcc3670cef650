"""The Trainer of Hugging Face with a callback that saves when the job is preempted.

corral submit --gpus 2 --processes 2 -- python huggingface_trainer.py --folder runs/huggingface
"""

from __future__ import annotations

import argparse

import corral_training as training
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Text(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(16) * (index % 7 + 1)) % 64
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=300)
    asked = parser.parse_args()
    arguments = TrainingArguments(
        output_dir=asked.folder,
        use_cpu=not torch.cuda.is_available(),  # otherwise ranks on CPUs would not find each other
        max_steps=asked.steps,
        per_device_train_batch_size=2,
        save_strategy="steps",
        save_steps=asked.steps,
        report_to=[],
        disable_tqdm=True,
        logging_steps=100,
    )
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    trainer = Trainer(model, arguments, train_dataset=Text(), callbacks=[training.huggingface_callback()])
    print(f"rank {training.rank()} of {arguments.world_size} begins at step {training.resume_step()}", flush=True)
    trainer.train(resume_from_checkpoint=training.resume_path())
    print(f"rank {training.rank()} ends at step {trainer.state.global_step}", flush=True)
    training.finished()


if __name__ == "__main__":
    main()
