"""Signals for processes of a running job: for the steps, for one step, or for the script.

Inside the job by the supervisor of the own seat; from outside through the server, with the right to change the job.
"""

from __future__ import annotations

import os
import socket

from corral.cli.slurm.shim_parts.shim_session import ShimError, ShimJob
from corral.runtime.steps import step_frames as frames
from corral.runtime.steps.seat_link import NotReachable, StepRefused, ask, own_finder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from corral.client.blocking import Client
    from corral.runtime.steps.seat_link import SeatFinder


def signal_job(client: Client, job: ShimJob, number: int, *, is_script: bool) -> None:
    """Raises ``ShimError`` if a step is named that does not run."""
    finder, seats = _seats(client, job)
    is_batch = job.step == "batch" or (is_script and not job.step)
    step = "" if job.step in ("", "batch") else job.step
    said = {"step": step, "signal": number, "script": is_batch, "steps": not (is_batch and not step) or is_script}
    reached = 0
    for seat in range(seats):
        try:
            connection = finder.find(seat)
        except (NotReachable, StepRefused) as lost:
            raise ShimError(f"Kill job error on job id {job.number}: {lost}") from None
        with connection:
            reached += _told(connection, said)
    if step and not reached:
        raise ShimError(f"Kill job error on job step id {job.number}.{step}: Invalid job id specified")


def _told(connection: socket.socket, said: dict[str, object]) -> int:
    try:
        return int(ask(connection, frames.SIGNAL_STEP, said).get("reached", 0))
    except (OSError, StepRefused) as lost:
        raise ShimError(f"Kill job error: {lost}") from None


def _seats(client: Client, job: ShimJob) -> tuple[SeatFinder, int]:
    own = own_finder()
    if own is not None and os.environ.get("SLURM_JOB_ID") == job.number and not job.element:
        with own.find(0) as first:
            return own, len(ask(first, frames.SEATS, {})["seats"])
    from corral.cli.steps.through_server import ThroughServer
    from corral.client.credentials import find_credentials

    view = client.job(job.number)
    gangs = [each for each in view.gangs if not job.element or str(each.index) == job.element]
    if not gangs or not gangs[0].seats:
        raise ShimError(f"Kill job error on job id {job.number}: Job/step already completing or completed")
    return ThroughServer(find_credentials(), job.number, job.element, "signal"), len(gangs[0].seats)
