"""``scontrol``: show jobs, nodes and partitions; hold, release, requeue and update jobs; names of nodes.

Names of nodes, and the requeue of the own job, need no server, so most is imported when it is used.
"""

from __future__ import annotations

import os
import sys

from corral.cli.slurm.shim_parts.arguments import OptionTable, UsageError
from corral.runtime.hostlist import BadHostlist, compress, expand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from corral.client.blocking import Client

_REQUEUE, _SAVED = "requeue", b"saved"  # as the supervisor of the task knows them
TABLE = OptionTable(
    "clusters/M uid/u",
    "all/a details/d federation/F future hide help/h local oneliner/o quiet/Q sibling verbose/v version/V",
    "json yaml",
)
_CHANGES = {"hold": "hold", "uhold": "hold", "release": "release", "requeue": "requeue", "requeuehold": "requeue"}
_HOSTNAMES = ("hostnames", "hostname", "hostlist", "hostlistsorted")


def main(words: list[str]) -> int:
    try:
        options, rest = TABLE.read(words, mixed=True)
    except UsageError as wrong:
        print(f'scontrol: {wrong}\nTry "scontrol --help" for more information', file=sys.stderr)
        return 1
    given = dict(options)
    if "version" in given or rest[:1] == ["version"]:
        print("slurm 24.11.0 (Corral)")
        return 0
    if "help" in given:
        print("Usage: scontrol [OPTIONS...] [show|hold|release|requeue|update|ping|version] ...")
        return 0
    if not rest:
        print("scontrol: error: there is no command: use show, requeue, hold, release, update", file=sys.stderr)
        return 1
    if rest[0] == "show" and len(rest) > 1 and rest[1].lower() in _HOSTNAMES:
        return _names(rest[1].lower(), rest[2:])
    if rest[0].lower() == "requeue" and _is_own(rest[1:]):
        return _requeue_own()
    from corral.cli.slurm.shim_parts.shim_session import guarded, with_client

    return guarded("scontrol", lambda: with_client(lambda client: _answer(client, rest, given)))


def _is_own(jobs: list[str]) -> bool:
    """Whether only the job that this runs in is asked for."""
    env = os.environ
    own = {env.get("SLURM_JOB_ID", ""), f"{env.get('SLURM_ARRAY_JOB_ID', '')}_{env.get('SLURM_ARRAY_TASK_ID', '')}"}
    asked = {part for text in jobs for part in text.split(",")}
    return bool(asked) and asked <= own and bool(env.get("CORRAL_CHECKPOINT_FILE"))


def _requeue_own() -> int:
    """Ask the supervisor of this task to end it, so that the job is run again."""
    folder = os.path.dirname(os.environ["CORRAL_CHECKPOINT_FILE"])
    try:
        file = os.open(f"{folder}/{_REQUEUE}", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(file, b"" if _is_shell(os.getppid()) else _SAVED)
        os.close(file)
    except OSError as fault:
        print(f"scontrol: error: the job cannot be requeued: {fault.strerror}", file=sys.stderr)
        return 1
    return 0


def _is_shell(pid: int) -> bool:
    """A shell that requeues the job lets its programs save when they are ended; a program has saved before."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).endswith("sh")
    except OSError:
        return True


def _names(what: str, texts: list[str]) -> int:
    text = ",".join(texts) or os.environ.get("SLURM_JOB_NODELIST", "")
    if not text:
        print("scontrol: error: there is no list of nodes, and SLURM_JOB_NODELIST is not set", file=sys.stderr)
        return 1
    try:
        names = expand(text)
    except BadHostlist as wrong:
        print(wrong, file=sys.stderr)
        return 1
    if what.startswith("hostname"):
        print("\n".join(names))
    else:
        print(compress(sorted(names) if what == "hostlistsorted" else names))
    return 0


def _answer(client: Client, rest: list[str], given: dict[str, str]) -> int:
    verb, *more = rest
    word = verb.lower()
    if word == "show":
        return _show(client, more, given)
    if word in _CHANGES:
        return _change(client, _CHANGES[word], ",".join(more))
    if word == "update":
        return _update(client, more)
    if word == "ping":
        client.whoami()
        print("Slurmctld(primary) at corral is UP")
        return 0
    print(f"invalid keyword: {verb}", file=sys.stderr)
    return 1


# --- show -------------------------------------------------------------------------------------------------------------


def _show(client: Client, words: list[str], given: dict[str, str]) -> int:
    if not words:
        print("too few arguments for keyword:show", file=sys.stderr)
        return 1
    what, _, inline = words[0].partition("=")
    names = ([inline] if inline else []) + words[1:]
    shows: dict[str, Callable[[Client, list[str], dict[str, str]], int]] = {
        "job": _show_jobs, "node": _show_nodes, "partition": _show_partitions, "config": _show_config,
        "step": _show_steps, "reservation": _show_reservations, "licenses": _show_licences,
    }  # fmt: skip
    close = [name for name in shows if name.startswith(what.lower().rstrip("s"))]
    if not close:
        print(f"invalid entity:{words[0]} for keyword:show", file=sys.stderr)
        return 1
    return shows[close[0]](client, names, given)


def _show_jobs(client: Client, names: list[str], given: dict[str, str]) -> int:
    from corral.cli.slurm.shim_parts.shim_session import jobs_of
    from corral.cli.slurm.shim_parts.slurm_jobs import ALIVE, all_rows, rows_of
    from corral.client.errors import NotFound

    if names:
        rows = []
        for job in jobs_of(",".join(names), "Invalid job id: {}"):
            try:
                rows += rows_of(client, client.job(job.number), job.element, joins_pending=not job.element)
            except NotFound:
                print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
                return 1
        if not rows:
            print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
            return 1
    else:
        rows = list(all_rows(client, True, states=ALIVE))
    if "json" in given:
        from corral.cli.slurm.shim_parts.slurm_json import print_jobs

        print_jobs(rows)
        return 0
    if not rows:
        print("No jobs in the system")
    for row in rows:
        _print_record(_job_lines(row), "oneliner" in given)
    return 0


def _job_lines(row: Any) -> list[list[tuple[str, str]]]:
    from corral.cli.slurm.shim_parts.slurm_formats import long_clock, moment

    view, element = row.view, row.element
    array = [("ArrayJobId", view.id), ("ArrayTaskId", element.strip("[]"))] if element else []
    who, uid = view.user, os.getuid()
    memory, end = str(row.document.get("memory", "0")), row.field("EndTime").replace("N/A", "Unknown")
    lines: list[list[tuple[str, str]]] = [
        [("JobId", view.id), *array, ("JobName", view.name or view.id)],
        [("UserId", f"{who}({uid})"), ("GroupId", f"{who}({uid})"), ("MCS_label", "N/A")],
        [("Priority", str(view.priority)), ("Nice", "0"), ("Account", row.account), ("QOS", row.field("QOS"))],
        [("JobState", row.state), ("Reason", row.reason), ("Dependency", row.field("Dependency"))],
        [("Requeue", "1"), ("Restarts", row.field("RestartCnt")), ("BatchFlag", "1"), ("Reboot", "0"),
         ("ExitCode", row.exit_code)],
        [("RunTime", long_clock(row.ran_s)), ("TimeLimit", row.limit), ("TimeMin", "N/A")],
        [("SubmitTime", moment(view.submitted_ms)), ("EligibleTime", moment(view.begin_ms or view.submitted_ms))],
        [("StartTime", moment(row.started_ms or view.starts_ms)), ("EndTime", end),
         ("Deadline", moment(view.deadline_ms, "N/A"))],
        [("Partition", row.partition), ("AllocNode:Sid", "corral:0")],
        [("ReqNodeList", "(null)"), ("ExcNodeList", "(null)")],
        [("NodeList", compress(row.nodes))],
        *([[("BatchHost", row.nodes[0])]] if row.nodes else []),
        [("NumNodes", str(row.node_count)), ("NumCPUs", str(row.cpus)), ("NumTasks", str(row.tasks)),
         ("CPUs/Task", str(max(1, row.cpus // max(1, row.tasks))))],
        [("TRES", row.tres)],
        [("MinMemoryNode", memory), ("MinTmpDiskNode", str(row.document.get("disk", "0")))],
        [("Features", "(null)"), ("OverSubscribe", "OK"), ("Contiguous", "0"), ("Licenses", "(null)")],
        [("Command", row.field("Command"))],
        [("WorkDir", view.directory)],
        [("Comment", view.labels["comment"])] if "comment" in view.labels else [],
        [("StdErr", row.output)],
        [("StdIn", "/dev/null")],
        [("StdOut", row.output)],
        *([[("TresPerNode", row.field("tres-per-node"))]] if view.gpus else []),
    ]  # fmt: skip
    return [line for line in lines if line]


def _print_record(lines: Iterable[list[tuple[str, str]]], is_one_line: bool) -> None:
    texts = [" ".join(f"{name}={value}" for name, value in line) for line in lines]
    print(" ".join(texts) + " " if is_one_line else "\n   ".join(texts) + "\n   \n")


def _show_nodes(client: Client, names: list[str], given: dict[str, str]) -> int:
    from corral.cli.slurm.shim_parts.slurm_nodes import node_lines, node_object, nodes_of

    nodes = nodes_of(client)
    if names:
        wanted = expand(",".join(names))
        known = {node.name for node in nodes}
        for name in wanted:
            if name not in known:
                print(f"Node {name} not found", file=sys.stderr)
                return 1
        nodes = [node for node in nodes if node.name in wanted]
    if "json" in given:
        from corral.cli.slurm.shim_parts.slurm_json import print_answer

        print_answer(nodes=[node_object(node) for node in nodes])
        return 0
    for node in nodes:
        _print_record(node_lines(node), "oneliner" in given)
    return 0


def _show_partitions(client: Client, names: list[str], given: dict[str, str]) -> int:
    from corral.cli.slurm.shim_parts.slurm_nodes import nodes_of, partition_lines, partitions_of

    nodes, found = nodes_of(client), partitions_of(client)
    if names:
        missing = [name for name in names if name not in found]
        if missing:
            print(f"Partition {missing[0]} not found", file=sys.stderr)
            return 1
        found = [name for name in found if name in names]
    for name in found:
        _print_record(partition_lines(name, nodes), "oneliner" in given)
    return 0


def _show_config(_client: Client, _names: list[str], _: dict[str, str]) -> int:
    from corral.cli.slurm.shim_parts.slurm_formats import moment

    print(f"Configuration data as of {moment(1)}")
    settings = {
        "AccountingStorageType": "accounting_storage/slurmdbd", "ClusterName": "corral", "MaxArraySize": "1000001",
        "MinJobAge": "86400 sec", "SelectType": "select/cons_tres", "SelectTypeParameters": "CR_CORE_MEMORY",
        "SLURM_VERSION": "24.11.0", "GresTypes": "gpu", "LaunchParameters": "(null)",
    }  # fmt: skip
    for name, value in settings.items():
        print(f"{name:<23} = {value}")
    return 0


def _show_steps(_client: Client, _names: list[str], _: dict[str, str]) -> int:
    print("Job step information is in: corral show JOB")
    return 0


def _show_reservations(_client: Client, _names: list[str], _: dict[str, str]) -> int:
    print("No reservations in the system")
    return 0


def _show_licences(_client: Client, _names: list[str], _: dict[str, str]) -> int:
    print("No licenses configured in Slurm.")
    return 0


# --- changes ----------------------------------------------------------------------------------------------------------


def _change(client: Client, change: str, names: str) -> int:
    from corral.cli.slurm.shim_parts.shim_session import jobs_of

    if not names:
        print(f"too few arguments for keyword:{change}", file=sys.stderr)
        return 1
    code = 0
    for job in jobs_of(names, "Invalid job id {}"):
        code = max(code, _changed(client, change, job.selector))
    return code


def _changed(client: Client, change: str, selector: str, priority: int | None = None) -> int:
    from corral.client.errors import Problem

    try:
        answer = client.change_jobs(change, [selector], priority=priority)
    except Problem as problem:
        print(f"{problem} for job {selector}\nslurm_suspend error: Invalid job id specified", file=sys.stderr)
        return 1
    for refused in answer.refusals:
        print(f"{refused.why} for job {refused.job}", file=sys.stderr)
    return 1 if answer.refused else 0


def _update(client: Client, words: list[str]) -> int:
    pairs = {name.lower(): value for name, _, value in (word.partition("=") for word in words)}
    node = pairs.pop("nodename", "")
    if node:
        return _update_node(client, node, pairs)
    job = pairs.pop("jobid", pairs.pop("job", ""))
    if not job:
        print('No valid entity in update command\nInput line must include "NodeName" or "JobId"', file=sys.stderr)
        return 1
    from corral.cli.slurm.shim_parts.shim_session import jobs_of

    code = 0
    for name, value in pairs.items():
        for each in jobs_of(job, "Invalid job id {}"):
            if name == "priority" and value == "0":
                code |= _changed(client, "hold", each.selector)
            elif name in ("priority", "nice") and value.lstrip("+-").isdecimal():
                code |= _changed(client, "priority", each.selector, int(value) * (-1 if name == "nice" else 1))
            elif name == "requeue":
                continue
            else:
                why = "of a submitted job only Priority and Nice can be changed: cancel it and submit it again"
                print(f"scontrol: error: {name}: {why}\nslurm_update error: Invalid request", file=sys.stderr)
                code = 1
    return code


def _update_node(client: Client, text: str, pairs: dict[str, str]) -> int:
    state = pairs.get("state", "").lower()
    for node in expand(text):
        if state in ("drain", "draining"):
            client.cordon(node)
        elif state in ("resume", "idle", "undrain"):
            client.uncordon(node)
        elif state == "down":
            client.drain(node, pairs.get("reason", ""))
        else:
            print(f"Invalid input: State={state}\nRequest aborted: use drain, down or resume", file=sys.stderr)
            return 1
    return 0
