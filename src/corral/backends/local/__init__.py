"""Tasks as plain processes of this machine, each under a small supervisor of its own.

Here is the server's side: `backend` (the seam), `state` (what a state directory says), `logs`, `orders`, `remains`. The
task's side is `task`. Nothing is imported here: the task's side lies below and must stay light.
"""
