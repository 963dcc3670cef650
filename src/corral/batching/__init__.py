"""Batching queues: which items run together, when, and on which worker (pure)."""
