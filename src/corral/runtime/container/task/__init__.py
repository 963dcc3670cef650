"""The task's side of a container: its supervisor, and its requests to the container runtime.

Loaded by a supervisor only when its task has an image. Uses the standard library and the task's side of processes.
"""
