"""What the tasks of a gang execute. The engine passes it from submission to start and does not interpret it.

Values only. A backend turns it into a process or a container; the server decides which secrets and accounts a user may
use.
"""

from __future__ import annotations

from msgspec import Struct


class EarlySignal(Struct, frozen=True, gc=False):
    """A signal that the job requested, sent this long before the deadline; if unhandled, it kills.

    ``audience``: "script": only the command of the job itself; "steps": only the processes of job steps, as long as
    there are any; empty: all that handle it.
    """

    signal: str  # SIGUSR1, SIGUSR2, ...
    before_ms: int
    audience: str = ""


class Mount(Struct, frozen=True, gc=False):
    source: str
    target: str
    read_only: bool = False


class Work(Struct, frozen=True, gc=False, kw_only=True):
    """A command and its environment. Every task of the gang runs the same, and they differ only in rank; with
    ``launch`` "first" only the first task runs it, and the others hold their seats for job steps.

    ``processes``: the number in each task, each with a rank of its own; 0: one for each GPU of the task; None: one
    without a rank. ``secrets``: variables and the names of the secrets that fill them; the values are not here.
    """

    command: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[tuple[str, str], ...] = ()
    directory: str = ""
    processes: int | None = None
    image: str = ""
    mounts: tuple[Mount, ...] = ()
    output: str = ""  # a file of the user that also gets the output, with the patterns of sbatch
    error: str = ""
    early_signal: EarlySignal | None = None
    compat: str = ""  # "slurm": also set the variables of Slurm
    rerun_after_exit_0: bool = True  # exit code 0 after a signal of a preemption means: not finished
    hold_on_fail_ms: int = 0  # keep the task this long after a failure, for debugging
    stall_ms: int = 0  # restart after this time without a step; 0: never
    launch: str = "all"
    script: str = ""  # the text of a script; the command is then its name and arguments
    umask: str = ""  # of its processes and output files, in octal as the shell prints it; empty: 022
