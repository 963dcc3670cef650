"""What the tasks of a gang execute. The engine carries it from submission to start and never looks inside.

Knows words only. How they become a process or a container is the matter of a backend; who may use which secret or
account is decided by the server.
"""

from __future__ import annotations

from msgspec import Struct


class EarlySignal(Struct, frozen=True, gc=False):
    """A signal that a job asked to get ahead of its end, so long before the deadline; unhandled it kills."""

    signal: str  # SIGUSR1, SIGUSR2, ...
    before_ms: int


class Mount(Struct, frozen=True, gc=False):
    source: str
    target: str
    read_only: bool = False


class Work(Struct, frozen=True, gc=False, kw_only=True):
    """A command and what surrounds it. Every task of the gang runs the same; they differ in rank only.

    ``processes``: how many of them in each task, each with a rank of its own; 0: one for each GPU of the task; None:
    one that need not know of ranks.
    ``secrets`` names variables and the secrets that fill them: the values are nowhere in here.
    """

    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()
    directory: str = ""
    processes: int | None = None
    image: str = ""
    mounts: tuple[Mount, ...] = ()
    output: str = ""  # a file of the user's that gets the output too, with %j %A %a %x %N %u as in sbatch
    error: str = ""
    early_signal: EarlySignal | None = None
    compat: str = ""  # "slurm": the variables of Slurm as well
    hold_on_fail_ms: int = 0  # keep the task's place so long after a failure, for a look
