"""The task's side of a container: how its supervisor runs it, and requests to the container runtime.

Loaded by a supervisor only when its task has an image. Uses the standard library and the task's side of processes.
"""
