"""The task's side: a spawner that forks a supervisor for each task, and what a supervisor needs.

Everything in here is forked with every task: standard library only, and of that only what is small. No msgspec, no
typing, no json, no subprocess, nothing of Corral but this package.
"""
