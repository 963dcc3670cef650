"""The task's side of a container: its supervisor, and the few requests that it makes of the engine.

Loaded by a supervisor only when its task has an image: standard library, and the task's side of plain processes.
"""
