"""Batching queues in virtual time: the same batcher as in the server, with workers that only take time."""
