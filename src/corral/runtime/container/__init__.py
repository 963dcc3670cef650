"""Tasks in containers, run by the container runtime of this machine: Podman or Docker, over its Unix socket.

This is the server's side: `engine` (which runtime there is and what it can do), `orders` (the requests to it), `host`
(what a local backend uses). The task's side is `task`. Nothing is imported here.
"""
