"""``corral step``: inside a job, start processes on all or some of its seats."""

from __future__ import annotations

import os
import sys
from typing import Any

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.option_types import Size


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="Exit code: the highest of its processes.",
)
@click.option("--tasks", "-n", type=click.IntRange(1, 4096), help="Number of processes. Default: one on each seat.")
@click.option("--seats", "-N", type=click.IntRange(1, 4096), help="Number of seats to use. Default: all.")
@click.option("--on", "names", multiple=True, metavar="NODE", help="Node to use; may be repeated.")
@click.option("--cpus", type=click.IntRange(1), default=1, help="CPUs of each process.", show_default=True)
@click.option("--gpus", type=click.IntRange(0), help="GPUs of each process. Default: all processes see all of a seat.")
@click.option("--memory", type=Size(), metavar="SIZE", help="Memory on each seat: 512MiB, 4GiB.")
@click.option("--overlap", is_flag=True, help="Share resources with other steps instead of waiting for them.")
@click.option("--label", "-l", is_flag=True, help="Show the rank before each line.")
@click.option("--keep-going", is_flag=True, help="Let the others run when a process has failed.")
@click.option("--stdin", "takes_input", is_flag=True, help="Pass standard input on to all processes.")
@click.argument("command", nargs=-1, required=True, metavar="COMMAND...")
def step(command: tuple[str, ...], **given: Any) -> int:
    """Start processes inside this job.

    Works in the processes of a job. Each process gets the variables of its rank. A step waits until the resources that
    it needs are not used by other steps of the job.
    """
    from corral.runtime.steps.seat_link import own_finder
    from corral.runtime.steps.step_client import StepPlan, StepRun
    from corral.runtime.steps.step_environment import base_environment
    from corral.runtime.steps.step_ranks import torch_env

    finder = own_finder()
    if finder is None:
        raise Complaint("this is not inside a job", "run it in the command of a job with launch: first")
    wanted = {"tasks": given["tasks"] or 0, "nodes": given["seats"] or 0, "cpus": given["cpus"]}
    wanted |= {"names": list(given["names"]), "overlaps": given["overlap"], "memory_mib": given["memory"] or 0}
    plan = StepPlan(wanted, list(command))
    if given["gpus"] is not None:
        plan.wanted |= {"gpus": given["gpus"], "unit": "task"}
        plan.gpus_per_task = given["gpus"]
    plan.env = base_environment(dict(os.environ))
    plan.env_of = torch_env
    plan.directory = os.getcwd()
    plan.labels, plan.kills_on_failure = given["label"], not given["keep_going"]
    plan.input = -1 if given["takes_input"] else -2
    plan.name = os.path.basename(command[0])
    return StepRun(finder, plan, lambda text: print(f"corral step: {text}", file=sys.stderr, flush=True)).run()
