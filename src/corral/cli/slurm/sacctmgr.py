"""``sacctmgr show``: queues as accounts, users, associations, QOS and clusters. It reads only."""

from __future__ import annotations

import sys

from corral.cli.slurm.shim_parts.arguments import OptionTable
from corral.cli.slurm.shim_parts.shim_session import run_shim, users_of
from corral.cli.slurm.shim_parts.slurm_formats import account_columns, print_account_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.client.blocking import Client

TABLE = OptionTable(
    "",
    "immediate/i noheader/n oneliner/o parsable/p parsable2/P quiet/Q readonly/r associations/s verbose/v "
    "version/V help/h usage",
    "json yaml",
)
_NAMES = {
    name.partition(":")[0].lower(): name
    for name in [
        "Account:10",
        "Descr:20",
        "Org:20",
        "User:10",
        "DefaultAccount:10",
        "Def_Acct:10",
        "Admin:9",
        "Cluster:10",
        "Partition:10",
        "Share:9",
        "Fairshare:9",
        "QOS:20",
        "DefaultQOS:9",
        "Def_QOS:9",
        "MaxJobs:7",
        "MaxSubmit:9",
        "MaxSubmitJobs:9",
        "MaxWall:11",
        "MaxTRES:13",
        "MaxTRESPerUser:15",
        "GrpTRES:13",
        "GrpJobs:7",
        "GrpSubmit:9",
        "GrpWall:11",
        "Name:10",
        "Priority:10",
        "Preempt:10",
        "PreemptMode:11",
        "ParentName:10",
        "ControlHost:15",
        "ControlPort:12",
        "RPC:5",
        "Flags:20",
        "UsageFactor:11",
        "WCKeys:10",
        "GraceTime:10",
    ]
}
_USUAL = {
    "account": "account,descr,org", "user": "user,defaultaccount,admin",
    "association": "cluster,account,user,partition,share,qos,defaultqos",
    "cluster": "cluster,controlhost,controlport,rpc",
    "qos": "name,priority,gracetime,preempt,preemptmode",
}  # fmt: skip
_WITH = frozenset({"withassoc", "withdeleted", "withcoord", "withsubaccounts", "where", "set", "and", "tree"})


def main(words: list[str]) -> int:
    return run_shim("sacctmgr", TABLE, words, _show)


def _show(client: Client, options: list[tuple[str, str]], rest: list[str]) -> int:
    given = dict(options)
    if not rest:
        print("sacctmgr: error: there is no command: use show", file=sys.stderr)
        return 1
    if rest[0].lower() not in ("show", "list"):
        why = "queues, users and roles are changed by corral queue and corral user"
        print(f" Unable to process request: {rest[0]}: {why}", file=sys.stderr)
        return 1
    entity = next((name for name in _USUAL if rest[1:] and name.startswith(rest[1].lower().rstrip("s")[:12])), "")
    if rest[1:] and rest[1].lower() == "qos":
        entity = "qos"
    if not entity:
        print("No valid entity in list command\nInput line must include account, association, cluster, qos or user",
              file=sys.stderr)  # fmt: skip
        return 1
    where, columns_text = _conditions(rest[2:], entity)
    if entity == "user" and "associations" in given and not columns_text:
        columns_text = "user,defaultaccount,admin,cluster,account,partition,share,qos"
    columns = account_columns(columns_text or _USUAL[entity], _NAMES, " Unknown field '{}'")
    rows = [row for row in _rows(client, entity, where) if _is_meant(row, where)]
    parsable = "P" if "parsable2" in given else "p" if "parsable" in given else ""
    fields: list[Callable[[str], str]] = [lambda field, row=row: row.get(field, "") for row in rows]  # type: ignore[misc]
    print_account_rows(columns, fields, has_header="noheader" not in given, parsable=parsable)
    return 0


def _conditions(words: list[str], entity: str) -> tuple[dict[str, list[str]], str]:
    where: dict[str, list[str]] = {}
    columns = ""
    for word in words:
        name, equals, value = word.partition("=")
        name = name.lower()
        if name.startswith("format"):
            columns = value
        elif equals:
            known = "user" if name.startswith("user") else "account" if name.startswith("account") else name
            where[known if name not in ("name", "names") else entity] = value.split(",")
        elif name not in _WITH:
            where[entity] = word.split(",")
    return where, columns


def _is_meant(row: dict[str, str], where: dict[str, list[str]]) -> bool:
    shown = {name.lower(): value for name, value in row.items()}
    return all(shown.get(name, values[0]) in values for name, values in where.items())


def _rows(client: Client, entity: str, where: dict[str, list[str]]) -> list[dict[str, str]]:
    if entity == "cluster":
        return [{"Cluster": "corral", "ControlHost": "corral", "ControlPort": "0", "RPC": "0"}]
    if entity == "qos":
        from corral.wire.job.timing import PRIORITIES

        return [
            {"Name": name, "Priority": str(value), "PreemptMode": "requeue", "GraceTime": "00:00:30"}
            for name, value in PRIORITIES.items()
        ]
    queues = [queue for queue in client.queues().queues if not queue.children]
    if entity == "account":
        return [{"Account": queue.name, "Descr": queue.name, "Org": queue.parent or queue.name} for queue in queues]
    user = (where.get("user") or users_of(client, ""))[0]
    common = {"Cluster": "corral", "User": user, "Admin": "None", "QOS": "normal,high,low", "DefaultQOS": "normal",
              "Def_QOS": "normal", "Share": "1", "DefaultAccount": "default", "Def_Acct": "default"}  # fmt: skip
    if entity == "user" and not where.get("user"):
        return [common]
    return [
        common | {"Account": queue.name, "ParentName": queue.parent or "root", "GrpTRES": _tres(queue.limit)}
        for queue in queues
    ]


def _tres(limit: dict[str, int]) -> str:
    gpus = limit.get("gpu_milli")
    return "" if gpus is None else f"gres/gpu={gpus // 1000}"
