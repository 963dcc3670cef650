"""Workloads from files and from a generator, all as one type."""
