"""``salloc``: get an allocation, run a command (by default a shell) with its variables, and give it back.

The command runs here, as with Slurm; ``srun`` in it starts job steps through the server. With ``--no-shell`` the
allocation stays until it is cancelled.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from corral.cli.slurm.sbatch import BAD_OPTION, option_table, sound
from corral.cli.slurm.shim_parts.shim_session import run_shim
from corral.cli.slurm.shim_parts.slurm_submission import read_script, submit_document

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.cli.slurm.shim_parts.arguments import OptionTable
    from corral.client.blocking import Client
    from corral.wire.api.jobs import JobView

#: It holds the seats: ends with the allocation.
HOLDER = "#!/bin/sh\nwhile :; do sleep 3600 & wait $!; done\n"
ALLOCATION = "CORRAL_ALLOCATION"  # the job whose steps srun starts from outside
_OWN = frozenset(
    {"no-shell", "bell", "no-bell", "immediate", "kill-command", "quiet", "verbose", "help", "usage", "version"}
)
_LOOK_S = 0.2


def table() -> OptionTable:
    known = option_table()
    for name, kind in (("no-shell", "flag"), ("bell", "flag"), ("no-bell", "flag"), ("x11", "maybe"),
                       ("immediate", "maybe"), ("kill-command", "maybe")):  # fmt: skip
        known.takes[name] = kind
    return known


def main(words: list[str]) -> int:
    return run_shim("salloc", table(), words, _allocate, bad_option=BAD_OPTION)


def _allocate(client: Client, options: list[tuple[str, str]], command: list[str]) -> int:
    given = dict(options)

    def say(text: str) -> None:
        if "quiet" not in given:
            print(f"salloc: {text}", file=sys.stderr, flush=True)

    end_politely()
    job = allocate(client, options, say)
    view = until_granted(client, job, say)
    if view is None:
        return 1
    if "no-shell" in given:
        return 0
    signal.signal(signal.SIGINT, _nothing)  # Ctrl-C belongs to the command, which gets it from the terminal too
    try:
        done = subprocess.run(
            command or [os.environ.get("SHELL", "/bin/sh")], env={**os.environ, **allocation_env(view)}, check=False
        )
        return 128 - done.returncode if done.returncode < 0 else done.returncode
    except OSError as fault:
        say(f"error: {command[0]}: {fault.strerror}")
        return 127 if isinstance(fault, FileNotFoundError) else 126
    finally:
        say(f"Relinquishing job allocation {job}")
        client.cancel(job, now=True)


def end_politely() -> None:
    """A signal that ends this process gives the allocation back first."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, leave)


def _nothing(_number: int, _frame: object) -> None:
    """A handler, so that the command does not inherit that the signal is ignored."""


def allocate(client: Client, options: list[tuple[str, str]], say: object) -> str:
    assert callable(say)
    words = [f"--{name}={value}" if value else f"--{name}" for name, value in options if name not in _OWN]
    if not any(name == "job-name" for name, _ in options):
        words.append("--job-name=interactive")
    parsed = read_script(HOLDER, "interactive", [*words, "--output=/dev/null"], [])
    job = submit_document(client, sound(parsed, lambda _: None), say).id
    say(f"Pending job allocation {job}")
    return job


def until_granted(client: Client, job: str, say: object) -> JobView | None:
    """None: it ended before it began. Ctrl-C while it waits cancels it."""
    assert callable(say)
    has_waited = False
    try:
        while True:
            view = client.job(job)
            if view.state == "running":
                break
            if view.ended_ms is not None:
                say(f"error: Job allocation {job} has been revoked: {view.why or view.state}")
                return None
            if view.state == "waiting" and not has_waited:
                has_waited = True
                say(f"job {job} queued and waiting for resources")
            time.sleep(_LOOK_S)
    except (KeyboardInterrupt, SystemExit):
        client.cancel(job, now=True)
        say(f"error: Job allocation {job} has been revoked")
        raise
    if has_waited:
        say(f"job {job} has been allocated resources")
    say(f"Granted job allocation {job}")
    return view


def allocation_env(view: JobView) -> dict[str, str]:
    """What the command finds of the allocation."""
    from corral.runtime.hostlist import compress

    nodes = list(dict.fromkeys(seat.node for gang in view.gangs for seat in gang.seats))
    listed, count = compress(nodes), str(len(nodes))
    return {
        ALLOCATION: view.id,
        "SLURM_JOB_ID": view.id,
        "SLURM_JOBID": view.id,
        "SLURM_JOB_NAME": view.name,
        "SLURM_JOB_NODELIST": listed,
        "SLURM_NODELIST": listed,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_NNODES": count,
        "SLURM_JOB_PARTITION": view.labels.get("slurm.partition", view.queue),
        "SLURM_JOB_ACCOUNT": view.labels.get("slurm.account", view.queue),
        "SLURM_SUBMIT_DIR": os.getcwd(),
        "SLURM_CLUSTER_NAME": "corral",
    }
