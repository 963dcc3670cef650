"""Batching queues of a live server: a process of its own for the items, and workers that are jobs of the server."""
