"""The task's side: a spawner that forks a supervisor for each task, and what a supervisor needs.

All of this is forked with every task, so it uses only small parts of the standard library. No msgspec, no typing, no
json, no subprocess, and no other package of Corral.
"""
