"""Reproduction of published results: simulators, workloads and comparisons. Nothing else imports it."""
