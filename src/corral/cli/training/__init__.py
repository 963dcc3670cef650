"""Commands about training runs: their checkpoints, and how much of their time is training."""
