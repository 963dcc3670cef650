"""``sacct``: jobs that ran or run, with exit codes and times."""

from __future__ import annotations

import time

from corral.cli.slurm.shim_parts.arguments import OptionTable
from corral.cli.slurm.shim_parts.shim_session import ShimError, jobs_of, run_shim, users_of
from corral.cli.slurm.shim_parts.slurm_formats import account_columns, long_clock, moment, print_account_rows
from corral.cli.slurm.shim_parts.slurm_jobs import OVER, SHORT, ShownJob, all_rows, rows_of
from corral.runtime.hostlist import compress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from corral.client.blocking import Client

TABLE = OptionTable(
    "accounts/A constraints/C clusters/M endtime/E file/f flags/F format/o delimiter gid/g group jobs/j name units "
    "ncpus/I nnodes/i nodelist/N partition/r qos/q reason/R "
    "starttime/S state/s timelimit-max/K timelimit-min/k uid/u user wckeys/W federation",
    "allusers/a allocations/X array batch-script/B brief/b completion/c duplicates/D env-vars expand-patterns "
    "helpformat/e help/h local long/l noconvert noheader/n parsable/p parsable2/P truncate/T use-local-uid verbose/v "
    "version/V usage",
    "json yaml",
)
USUAL = "jobid,jobname,partition,account,alloccpus,state,exitcode"
BRIEF = "jobid,state,exitcode"
LONG = f"{USUAL},start,end,elapsed,nodelist"
_NAMES = (
    "Account:10 AllocCPUS:10 AllocNodes:10 AllocTRES:10 AveCPU:10 AveRSS:10 AveVMSize:10 Cluster:10 Comment:19 "
    "Constraints:19 CPUTime:10 CPUTimeRAW:10 DerivedExitCode:15 Elapsed:10 ElapsedRaw:10 Eligible:19 End:19 "
    "ExitCode:8 Flags:20 GID:6 Group:9 JobID:12 JobIDRaw:12 JobName:10 Layout:9 MaxRSS:10 MaxVMSize:10 "
    "MaxDiskRead:12 MaxDiskWrite:12 NCPUS:10 NNodes:8 NodeList:15 NTasks:8 Partition:10 Planned:10 Priority:10 "
    "QOS:10 Reason:22 "
    "ReqCPUS:8 ReqMem:10 ReqNodes:8 ReqTRES:10 Reserved:10 Restarts:8 Start:19 State:10 Submit:19 SubmitLine:20 "
    "Suspended:10 SystemCPU:10 Timelimit:10 TimelimitRaw:10 TotalCPU:10 TRESUsageInTot:20 UID:6 User:9 UserCPU:10 "
    "WCKey:10 WorkDir:20 StdOut:20 StdErr:20"
)
KNOWN = {name.partition(":")[0].lower(): name for name in _NAMES.split()}
_DEFAULT_SPAN_S = 86_400


def main(words: list[str]) -> int:
    return run_shim("sacct", TABLE, words, _list)


def _list(client: Client, options: list[tuple[str, str]], _: list[str]) -> int:
    given = dict(options)
    if "helpformat" in given:
        print("\n".join(name.partition(":")[0] for name in KNOWN.values()))
        return 0
    usual = BRIEF if "brief" in given else LONG if "long" in given else USUAL
    columns = account_columns(given.get("format", usual), KNOWN, 'error: Invalid field requested: "{}"')
    jobs = [row for row in _rows(client, given) if _matches(row, given)]
    if "json" in given:
        from corral.cli.slurm.shim_parts.slurm_json import account_object, print_answer

        print_answer(jobs=[account_object(row) for row in jobs])
        return 0
    rows: list[Callable[[str], str]] = []
    for row in jobs:
        rows.append(_job_row(row))
        if "allocations" not in given and row.state != "PENDING":
            rows.append(_batch_row(row))
    parsable = "P" if "parsable2" in given else "p" if "parsable" in given else ""
    has_header = "noheader" not in given
    print_account_rows(columns, rows, has_header=has_header, parsable=parsable, delimiter=given.get("delimiter", "|"))
    return 0


def _rows(client: Client, given: dict[str, str]) -> list[ShownJob]:
    if "jobs" in given:
        from corral.client.errors import NotFound

        found: list[ShownJob] = []
        for job in jobs_of(given["jobs"], "Bad job/step specified: {}"):
            try:  # those that are not known are not shown, and are no error
                found += rows_of(client, client.job(job.number), job.element, joins_pending=not job.element)
            except NotFound:
                continue
        return found
    text = given.get("uid", given.get("user", ""))
    users = [""] if "allusers" in given else users_of(client, text)
    filters: dict[str, Any] = {}
    since = _moment(given["starttime"]) if "starttime" in given else int((time.time() - _DEFAULT_SPAN_S) * 1000)
    filters["since_ms"] = since
    if given.get("endtime", "now") != "now":
        filters["until_ms"] = _moment(given["endtime"])
    if "name" in given and "," not in given["name"]:
        filters["name"] = given["name"]
    found = []
    for user in users:
        found += all_rows(client, True, **filters, **({"user": user} if user else {}))
    return found


def _moment(text: str) -> int:
    """``2026-01-01``, ``now-2days``, ``midnight``: milliseconds."""
    import re
    from datetime import datetime

    from corral.wire.document.errors import Wrong
    from corral.wire.job.slurm_units import slurm_moment

    ago = re.fullmatch(r"now-(\d{1,9})\s*(second|minute|hour|day|week)?s?", text, re.IGNORECASE)
    seconds = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
    now_ms = int(time.time() * 1000)
    if ago is not None:
        return now_ms - int(ago[1]) * seconds[(ago[2] or "second").lower()] * 1000
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None
    try:
        found = slurm_moment(text, now_ms, zone)
    except Wrong:
        raise ShimError(f"Invalid time specification (pos=0): {text}") from None
    return found - 86_400_000 if found > now_ms and ("T" not in text and "-" not in text) else found


def _matches(row: ShownJob, given: dict[str, str]) -> bool:
    if "state" in given:
        full = {short: word for word, short in SHORT.items()}
        words = {full.get(word.strip().upper(), word.strip().upper()) for word in given["state"].split(",")}
        if row.state not in words:
            return False
    for option, value in (("partition", row.partition), ("accounts", row.account), ("qos", row.field("QOS"))):
        if option in given and value not in given[option].split(","):
            return False
    return "name" not in given or row.view.name in given["name"].split(",")


def _job_row(row: ShownJob) -> Callable[[str], str]:
    view = row.view
    limit_ms = view.time_limit_ms
    elapsed = row.ran_s
    values: dict[str, Callable[[], str]] = {
        "Account": lambda: row.account,
        "AllocCPUS": lambda: str(row.cpus if row.state != "PENDING" else 0),
        "NCPUS": lambda: str(row.cpus),
        "ReqCPUS": lambda: str(row.cpus),
        "AllocNodes": lambda: str(len(row.nodes)),
        "NNodes": lambda: str(row.node_count),
        "ReqNodes": lambda: str(row.node_count),
        "NTasks": lambda: "",
        "AllocTRES": lambda: row.tres if row.nodes else "",
        "ReqTRES": lambda: row.tres,
        "Cluster": lambda: "corral",
        "Comment": lambda: view.labels.get("comment", ""),
        "CPUTime": lambda: long_clock(elapsed * row.cpus),
        "CPUTimeRAW": lambda: str(int(elapsed) * row.cpus),
        "Elapsed": lambda: long_clock(elapsed),
        "ElapsedRaw": lambda: str(int(elapsed)),
        "Eligible": lambda: moment(view.begin_ms or view.submitted_ms),
        "End": lambda: moment(row.ended_ms),
        "ExitCode": lambda: row.exit_code,
        "DerivedExitCode": lambda: "0:0" if row.exit_code.startswith("0:") else row.exit_code,
        "Group": lambda: view.user,
        "JobID": lambda: row.id,
        "JobIDRaw": lambda: row.id,
        "JobName": lambda: view.name or view.id,
        "NodeList": lambda: compress(row.nodes) or ("None assigned" if row.state not in OVER else ""),
        "Partition": lambda: row.partition,
        "Planned": lambda: long_clock(((row.started_ms or view.submitted_ms) - view.submitted_ms) / 1000),
        "Reserved": lambda: long_clock(((row.started_ms or view.submitted_ms) - view.submitted_ms) / 1000),
        "Priority": lambda: str(view.priority),
        "QOS": lambda: row.field("QOS"),
        "Reason": lambda: row.reason,
        "ReqMem": lambda: str(row.document.get("memory", "0")),
        "Restarts": lambda: row.field("RestartCnt"),
        "Start": lambda: moment(row.started_ms),
        "State": lambda: _state(row),
        "Submit": lambda: moment(view.submitted_ms),
        "SubmitLine": lambda: " ".join(view.command),
        "Timelimit": lambda: row.limit,
        "TimelimitRaw": lambda: "" if limit_ms is None else str(limit_ms // 60_000),
        "User": lambda: view.user,
        "WorkDir": lambda: view.directory,
        "StdOut": lambda: row.output,
        "StdErr": lambda: row.output,
        "Suspended": lambda: "00:00:00",
    }
    return lambda field: values[field]() if field in values else ""


def _state(row: ShownJob) -> str:
    return f"CANCELLED by {row.view.user}" if row.state == "CANCELLED" else row.state


_OF_BATCH = frozenset(
    {"Account", "AllocCPUS", "NCPUS", "State", "ExitCode", "Elapsed", "ElapsedRaw", "Start", "End", "Submit", "Cluster"}
)


def _batch_row(row: ShownJob) -> Callable[[str], str]:
    """The script itself, which Slurm counts as a step."""
    job = _job_row(row)
    own = {
        "JobID": f"{row.id}.batch", "JobIDRaw": f"{row.id}.batch", "JobName": "batch", "NTasks": "1", "NNodes": "1",
        "NodeList": row.nodes[0] if row.nodes else "", "State": row.state, "Layout": "Unknown",
    }  # fmt: skip
    return lambda field: own.get(field, job(field) if field in _OF_BATCH else "")
