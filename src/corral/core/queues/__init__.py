"""Queues: quotas, usage, and the backlog of waiting gangs."""
