"""Tasks as plain processes of this machine, each under its own small supervisor.

This is the server's side: `backend` (the interface), `state` (reads a state directory), `logs`, `orders`, `cleanup`.
The task's side is `task`. Nothing is imported here: the task's side is below and must start quickly.
"""
