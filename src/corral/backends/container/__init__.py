"""Tasks in containers, by the engine of this machine: Podman or Docker, asked over its Unix socket.

Here is the server's side: `engine` (what is there and what it can do), `orders` (what it is told), `host` (the part
that a local backend asks). The task's side is `task`, a supervisor as for plain processes. Nothing is imported here.
"""
