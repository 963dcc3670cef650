"""Quota of queues, where a plan needs more than sums."""
