"""``srun`` outside of jobs: an allocation of its own, and one step in it; or a step in an allocation that exists.

The step is started from here, through the server, so that output, input, signals and the exit code are those of srun.
"""

from __future__ import annotations

import os
import sys

from corral.cli.slurm.salloc import ALLOCATION, allocate, allocation_env, end_politely, until_granted
from corral.cli.slurm.shim_parts.shim_session import ShimError, guarded, with_client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.client.blocking import Client
    from corral.wire.api.jobs import JobView

#: Options that describe the job; the others only the step.
_OF_JOB = frozenset(
    [
        "account",
        "partition",
        "qos",
        "time",
        "nodes",
        "ntasks",
        "ntasks-per-node",
        "tasks-per-node",
        "ntasks-per-gpu",
        "cpus-per-task",
        "cpus-per-gpu",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "gres",
        "mem",
        "mem-per-cpu",
        "mem-per-gpu",
        "constraint",
        "nodelist",
        "exclude",
        "job-name",
        "comment",
        "dependency",
        "begin",
        "deadline",
        "nice",
        "hold",
        "exclusive",
        "reservation",
        "switches",
        "tmp",
        "licenses",
        "container-image",
        "container-mounts",
        "container-workdir",
    ]
)


def run_outside(options: list[tuple[str, str]], command: list[str]) -> int:
    given = dict(options)
    job = given.pop("jobid", "") or os.environ.get(ALLOCATION, "")
    return guarded("srun", lambda: with_client(lambda client: _run(client, options, given, command, job)))


def _run(client: Client, options: list[tuple[str, str]], given: dict[str, str], command: list[str], job: str) -> int:
    def say(text: str) -> None:
        if "quiet" not in given:
            print(f"srun: {text}", file=sys.stderr, flush=True)

    if job:
        return _step(client.job(job), given, command)
    named = [(name, value) for name, value in options if name in _OF_JOB]
    if "job-name" not in given:
        named.append(("job-name", os.path.basename(command[0])))
    end_politely()
    made = allocate(client, named, _nothing)
    try:
        view = until_granted(client, made, lambda text: say(text) if "queued" in text or "error" in text else None)
        return 1 if view is None else _step(view, given, command)
    finally:
        client.cancel(made, now=True)


def _nothing(_: str) -> None:
    """srun does not say that it waits for an allocation before it has to."""


def _step(view: JobView, given: dict[str, str], command: list[str]) -> int:
    from corral.cli.slurm.srun import run_step
    from corral.cli.steps.through_server import ThroughServer
    from corral.client.credentials import find_credentials

    if not view.gangs or not view.gangs[0].seats:
        raise ShimError(f"Job/step already completing or completed: {view.id}")
    stated = {"SLURM_NTASKS": given["ntasks"]} if "ntasks" in given else {}
    os.environ.update(allocation_env(view) | stated)
    return run_step(ThroughServer(find_credentials(), view.id, "", "srun"), given, command)
