"""Batching queues: requests about them, and the worker that runs their batches."""
