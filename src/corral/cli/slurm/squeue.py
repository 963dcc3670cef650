"""``squeue``: jobs that wait or run."""

from __future__ import annotations

import sys

from corral.cli.slurm.shim_parts.arguments import OptionTable
from corral.cli.slurm.shim_parts.shim_session import ShimError, jobs_of, run_shim, users_of
from corral.cli.slurm.shim_parts.slurm_formats import letter_columns, long_columns, print_rows
from corral.cli.slurm.shim_parts.slurm_jobs import ALIVE, FIELDS, SHORT, ShownJob, all_rows, rows_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from corral.client.blocking import Client

TABLE = OptionTable(
    "account/A clusters/M format/o Format/O iterate/i job/j jobs licenses/L name/n node nodelist/w partition/p qos/q "
    "reservation/R sort/S state states/t user/u users",
    "all/a array/r array-unique federation help hide local long/l me noconvert noheader/h notme only-job-state "
    "priority/P sibling start usage verbose/v version/V expand-patterns",
    "json yaml steps/s step",
)
USUAL = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
LONG = "%.18i %.9P %.8j %.8u %.8T %.10M %.9l %.6D %R"
START = "%.18i %.9P %.8j %.8u %.2t %.19S %.6D %20Y %R"
LETTERS = {
    "A": "JobID", "a": "Account", "B": "BatchHost", "b": "tres-per-node", "C": "NumCPUs", "c": "NumCPUs",
    "D": "NumNodes", "E": "Dependency", "e": "EndTime", "F": "ArrayJobID", "f": "Feature", "g": "GroupName",
    "i": "JobArrayID", "j": "Name", "K": "ArrayTaskID", "k": "Comment", "L": "TimeLeft", "l": "TimeLimit",
    "M": "TimeUsed", "m": "MinMemory", "N": "NodeList", "n": "RequiredNodes", "o": "Command", "P": "Partition",
    "p": "Priority", "Q": "PriorityLong", "q": "QOS", "R": "ReasonList", "r": "Reason", "S": "StartTime",
    "T": "State", "t": "StateCompact", "U": "UserID", "u": "UserName", "V": "SubmitTime", "v": "Reservation",
    "W": "Licenses", "Y": "RequiredNodes", "y": "Nice", "Z": "WorkDir",
}  # fmt: skip
_TITLES = {
    "JobArrayID": "JOBID", "JobID": "JOBID", "UserName": "USER", "StateCompact": "ST", "TimeUsed": "TIME",
    "NumNodes": "NODES", "ReasonList": "NODELIST(REASON)", "TimeLimit": "TIME_LIMIT", "TimeLeft": "TIME_LEFT",
    "StartTime": "START_TIME", "EndTime": "END_TIME", "SubmitTime": "SUBMIT_TIME", "NumCPUs": "CPUS",
    "MinMemory": "MIN_MEMORY", "ArrayJobID": "ARRAY_JOB_ID", "ArrayTaskID": "ARRAY_TASK_ID", "WorkDir": "WORK_DIR",
    "BatchHost": "EXEC_HOST", "tres-per-node": "TRES_PER_NODE", "PriorityLong": "PRIORITY", "UserID": "UID",
    "GroupName": "GROUP", "Feature": "FEATURES", "RequiredNodes": "SCHEDNODES", "NumTasks": "TASKS",
}  # fmt: skip
TITLES = {name: _TITLES.get(name, name.upper()) for name in FIELDS}


def main(words: list[str]) -> int:
    return run_shim("squeue", TABLE, words, _list)


def _list(client: Client, options: list[tuple[str, str]], _: list[str]) -> int:
    given = dict(options)
    if "start" in given:
        given.setdefault("states", "PENDING")
    states = _states(given.get("states", given.get("state", "")))
    columns = _columns(given)
    rows = [row for row in _rows(client, given, states) if _matches(row, given, states)]
    _sort(rows, given.get("sort", ""))
    if "json" in given:
        from corral.cli.slurm.shim_parts.slurm_json import print_jobs

        print_jobs(rows)
        return 0
    print_rows(columns, [row.field for row in rows], None if "noheader" in given else TITLES)
    return 0


def _columns(given: dict[str, str]) -> list[Any]:
    if "Format" in given:
        return long_columns(given["Format"], FIELDS)
    usual = LONG if "long" in given else START if "start" in given else USUAL
    return letter_columns(given.get("format", usual), LETTERS)


def _states(text: str) -> set[str] | None:
    """None: those that have not ended; empty: all."""
    if not text:
        return None
    words = {word.strip().upper() for word in text.split(",")}
    if "ALL" in words:
        return set()
    full = {short: word for word, short in SHORT.items()}
    wrong = [word for word in words if word not in SHORT and word not in full]
    if wrong:
        print(f"squeue: error: Invalid job state specified: {wrong[0].lower()}", file=sys.stderr)
        raise ShimError(f"Valid job states include: {','.join(SHORT)}")
    return {full.get(word, word) for word in words}


def _rows(client: Client, given: dict[str, str], states: set[str] | None) -> list[ShownJob]:
    joins = "array" not in given
    asked = given.get("jobs", given.get("job", ""))
    if asked:
        from corral.client.errors import NotFound

        found: list[ShownJob] = []
        named = jobs_of(asked)
        for job in named:
            try:
                found += rows_of(client, client.job(job.number), job.element, joins_pending=joins and not job.element)
            except NotFound:
                if len(named) == 1:  # as squeue: of several it shows those that it knows
                    print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
                    raise SystemExit(1) from None
        return found
    text = given.get("users", given.get("user", ""))
    users = users_of(client, text) if text or "me" in given else [""]
    words = () if states is not None and not states <= {"PENDING", "RUNNING", "CONFIGURING", "COMPLETING"} else ALIVE
    if states is not None and not states:
        words = ()
    recent = {"since_ms": _recent_ms()} if not words else {}
    found = []
    for user in users:
        found += all_rows(client, joins, states=words, **recent, **({"user": user} if user else {}))
    return found


def _recent_ms() -> int:
    """Jobs that have ended are listed as long as Slurm's controller usually knows them; sacct lists all."""
    import time

    return int(time.time() * 1000) - 86_400_000


def _matches(row: ShownJob, given: dict[str, str], states: set[str] | None) -> bool:
    is_alive = row.state in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING")
    if not (is_alive if states is None else not states or row.state in states):
        return False
    for option, value in (("partition", row.partition), ("account", row.account), ("qos", row.field("QOS"))):
        if option in given and value not in given[option].split(","):
            return False
    if "name" in given and row.field("Name") not in given["name"].split(","):
        return False
    nodes = given.get("nodelist", given.get("node", ""))
    if nodes:
        from corral.runtime.hostlist import expand

        return bool(set(expand(nodes)) & set(row.nodes))
    return True


def _sort(rows: list[ShownJob], text: str) -> None:
    for key in reversed(text.split(",") if text else []):
        field = LETTERS.get(key.lstrip("+-"), FIELDS[0])
        rows.sort(key=lambda row: _order_of(row.field(field)), reverse=key.startswith("-"))


def _order_of(value: str) -> tuple[int, float, str]:
    try:
        return 0, float(value), ""
    except ValueError:
        return 1, 0.0, value
