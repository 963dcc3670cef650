"""``scancel``: cancel jobs, elements of arrays and steps, or send a signal to their processes."""

from __future__ import annotations

import signal
import sys

from corral.cli.slurm.shim_parts.arguments import OptionTable
from corral.cli.slurm.shim_parts.shim_session import ShimError, ShimJob, jobs_of, run_shim, users_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.client.blocking import Client

TABLE = OptionTable(
    "account/A name/n jobname partition/p qos/q reservation/R signal/s state/t user/u wckey "
    "nodelist/w clusters/M sibling admin-comment",
    "batch/b ctld/c full/f hurry/H interactive/i me quiet/Q verbose/v version/V help usage cron",
)
_FILTERS = frozenset(["account", "name", "jobname", "partition", "state", "user", "me", "nodelist", "qos"])
_ENDS = ("TERM", "KILL")


def main(words: list[str]) -> int:
    return run_shim("scancel", TABLE, words, _cancel)


def _cancel(client: Client, options: list[tuple[str, str]], rest: list[str]) -> int:
    given = dict(options)
    number = _number(given["signal"]) if "signal" in given else 0
    named = [job for word in rest for job in jobs_of(word, "Invalid job id {}")]
    filters = {
        name
        for name in ("account", "name", "jobname", "partition", "state", "user", "me", "nodelist", "qos")
        if name in given
    }
    if not named and not filters:
        raise ShimError("No job identification provided")
    if not named:
        named = _matching(client, given)
    code = 0
    for job in named:
        code = max(code, _end(client, job, number, given))
    return code


def _number(text: str) -> int:
    if text.isdecimal() and 0 < int(text) < 65:
        return int(text)
    name = text.upper() if text.upper().startswith("SIG") else f"SIG{text.upper()}"
    try:
        return int(signal.Signals[name])
    except KeyError:
        raise ShimError(f"Unknown job signal: {text}") from None


def _end(client: Client, job: ShimJob, number: int, given: dict[str, str]) -> int:
    from corral.client.errors import NotFound, Problem

    is_quiet = "quiet" in given or "verbose" not in given
    try:
        if job.step or (number and signal.Signals(number).name[3:] not in _ENDS):
            from corral.cli.slurm.shim_parts.step_signal import signal_job

            signal_job(client, job, number or int(signal.SIGTERM), is_script="batch" in given or "full" in given)
            return 0
        answer = client.change_jobs("cancel", [job.selector], now=number == signal.SIGKILL)
        if answer.refused and not answer.changed and not is_quiet:
            print(f"scancel: error: Kill job error on job id {job.number}: {answer.refusals[0].why}", file=sys.stderr)
        return 1 if answer.refusals and answer.refusals[0].code == "forbidden" else 0
    except NotFound:
        if not is_quiet:  # as Slurm: a job that has ended long ago is no error
            print(f"scancel: error: Kill job error on job id {job.number}: Invalid job id specified", file=sys.stderr)
        return 0
    except Problem as problem:
        if problem.code in ("already_over", "not_running", "job_over"):
            return 0
        print(f"scancel: error: Kill job error on job id {job.number}: {problem}", file=sys.stderr)
        return 1


def _matching(client: Client, given: dict[str, str]) -> list[ShimJob]:
    states: dict[str, tuple[str, ...]] = {
        "PENDING": ("waiting",), "PD": ("waiting",), "RUNNING": ("starting", "running"), "R": ("starting", "running")
    }  # fmt: skip
    chosen = states.get(given.get("state", "").upper(), ("waiting", "starting", "running"))
    filters: dict[str, Any] = {"states": chosen}
    if "user" in given or "me" in given:
        filters["user"] = users_of(client, given.get("user", ""))[0]
    name = given.get("name", given.get("jobname", ""))
    found = []
    for job in client.jobs(**filters):
        if name and job.name != name:
            continue
        partition, account = job.labels.get("slurm.partition", job.queue), job.labels.get("slurm.account", job.queue)
        if given.get("partition", partition) != partition or given.get("account", account) != account:
            continue
        if "nodelist" in given:
            from corral.runtime.hostlist import expand

            if not set(expand(given["nodelist"])) & set(job.nodes):
                continue
        found.append(ShimJob(job.id))
    return found
