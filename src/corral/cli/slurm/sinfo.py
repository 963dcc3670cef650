"""``sinfo``: partitions and nodes."""

from __future__ import annotations

from corral.cli.slurm.shim_parts.arguments import OptionTable, UsageError
from corral.cli.slurm.shim_parts.shim_session import run_shim
from corral.cli.slurm.shim_parts.slurm_formats import letter_columns, long_columns, print_rows
from corral.cli.slurm.shim_parts.slurm_nodes import (
    DEFAULT,
    cpus_of,
    features_of,
    gres_of,
    memory_of,
    node_object,
    nodes_of,
    partitions_of,
    short_state,
    state_of,
)
from corral.runtime.hostlist import compress, expand

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from corral.client.blocking import Client
    from corral.wire.api.cluster import NodeView

TABLE = OptionTable(
    "clusters/M format/o Format/O iterate/i nodes/n partition/p sort/S states/t",
    "all/a dead/d exact/e federation/F future help hide list-reasons/R local long/l Node/N noconvert noheader/h "
    "reservation/T responding/r summarize/s usage verbose/v version/V",
    "json yaml",
)
USUAL = "%9P %.5a %.10l %.6D %.6t %N"
LETTERS = {
    "P": "Partition", "R": "PartitionName", "a": "Available", "l": "Time", "D": "Nodes", "t": "StateCompact",
    "T": "StateLong", "N": "NodeList", "n": "NodeHost", "G": "Gres", "c": "CPUs", "m": "Memory", "e": "FreeMem",
    "f": "Features", "b": "features_act", "C": "CPUsState", "A": "NodeAI", "F": "NodeAIOT", "E": "Reason",
    "X": "Sockets", "Y": "Cores", "Z": "Threads", "z": "SocketCoreThread", "L": "DefaultTime", "d": "Disk",
    "O": "CPUsLoad", "w": "Weight", "s": "Size", "g": "Groups", "h": "OverSubscribe", "u": "User", "H": "Timestamp",
    "o": "NodeAddr", "v": "Version", "B": "MaxCPUsPerNode", "p": "PriorityTier", "r": "Root", "S": "AllocNodes",
    "V": "Cluster", "i": "Reservation", "M": "PreemptMode",
}  # fmt: skip
FIELDS = (*dict.fromkeys(LETTERS.values()), "State", "GresUsed", "AllocMem")
_TITLES = {
    "Available": "AVAIL", "Time": "TIMELIMIT", "StateCompact": "STATE", "StateLong": "STATE", "NodeHost": "HOSTNAMES",
    "Features": "AVAIL_FEATURES", "features_act": "ACTIVE_FEATURES", "CPUsState": "CPUS(A/I/O/T)",
    "NodeAI": "NODES(A/I)", "NodeAIOT": "NODES(A/I/O/T)", "FreeMem": "FREE_MEM", "PartitionName": "PARTITION",
    "SocketCoreThread": "S:C:T", "Disk": "TMP_DISK", "CPUsLoad": "CPU_LOAD", "GresUsed": "GRES_USED",
}  # fmt: skip
TITLES = {name: _TITLES.get(name, name.upper()) for name in FIELDS}
_FIXED = {
    "Available": "up", "Time": "infinite", "DefaultTime": "n/a", "Disk": "0", "CPUsLoad": "N/A", "Weight": "1",
    "Size": "1-infinite", "Groups": "all", "OverSubscribe": "NO", "User": "Unknown", "Timestamp": "Unknown",
    "Version": "24.11.0", "MaxCPUsPerNode": "UNLIMITED", "PriorityTier": "1", "Root": "no", "AllocNodes": "all",
    "Cluster": "corral", "Reservation": "", "PreemptMode": "REQUEUE", "Cores": "1", "Threads": "1",
}  # fmt: skip
_PER_NODE = frozenset({"NodeHost", "NodeAddr", "FreeMem", "CPUsLoad", "Reason", "GresUsed", "AllocMem"})
_BUSY = ("allocated", "mixed", "draining")


def main(words: list[str]) -> int:
    return run_shim("sinfo", TABLE, words, _list)


def _list(client: Client, options: list[tuple[str, str]], _: list[str]) -> int:
    given = dict(options)
    nodes = nodes_of(client)
    if "nodes" in given:
        wanted = set(expand(given["nodes"]))
        nodes = [node for node in nodes if node.name in wanted]
    if "states" in given:
        words = [word.strip("*").lower() for word in given["states"].split(",")]
        nodes = [node for node in nodes if _has_state(node, words)]
    if "list-reasons" in given:
        nodes = [node for node in nodes if node.why or not node.open]
    if "json" in given:
        from corral.cli.slurm.shim_parts.slurm_json import print_answer

        print_answer(sinfo=[node_object(node) for node in nodes])
        return 0
    by_node = "%N %.6D %.9P %6t" if "long" not in given else "%N %.6D %.9P %11T %4c %.8z %.6m %.8d %.6w %.8f %20E"
    usual = by_node if "Node" in given else "%9P %.5a %.10l %.15F %N" if "summarize" in given else USUAL
    try:
        text = given.get("Format", "")
        columns = long_columns(text, FIELDS) if text else letter_columns(given.get("format", usual), LETTERS)
    except UsageError as wrong:
        raise UsageError(str(wrong).replace("job format", "node format")) from None
    fields = {column.field for column in columns}
    rows = []
    for partition in partitions_of(client):
        if "partition" in given and partition not in given["partition"].split(","):
            continue
        rows += [_row(partition, group) for group in _groups(nodes, fields, "Node" in given)]
    if "Node" not in given and "format" in given and not fields & {"Partition", "PartitionName"}:
        rows = list({tuple(row(field) for field in sorted(fields)): row for row in rows}.values())
    print_rows(columns, rows, None if "noheader" in given else TITLES)
    return 0


def _has_state(node: NodeView, words: list[str]) -> bool:
    state = state_of(node).rstrip("*")
    is_drain = state.startswith("drain") and "drain" in words
    return is_drain or any(state.startswith(word) or short_state(node) == word for word in words)


def _groups(nodes: list[NodeView], fields: set[str], is_by_node: bool) -> list[list[NodeView]]:
    """Nodes that are alike in all that is shown."""
    if is_by_node or fields & _PER_NODE:
        return [[node] for node in nodes]
    is_summary = not fields & {"StateCompact", "StateLong", "State"}
    found: dict[tuple[str, ...], list[NodeView]] = {}
    for node in nodes:
        own = tuple(_row("", [node])(field) for field in sorted(fields & {"Gres", "CPUs", "Memory", "Features"}))
        found.setdefault(("" if is_summary else state_of(node), *own), []).append(node)
    return list(found.values()) or [[]]


def _row(partition: str, nodes: list[NodeView]) -> Callable[[str], str]:
    first = nodes[0] if nodes else None

    def field(name: str) -> str:
        cpus = [cpus_of(node) for node in nodes]
        whole, used = sum(each[0] for each in cpus), sum(each[1] for each in cpus)
        states = [state_of(node) for node in nodes]
        busy, idle = sum(each in _BUSY for each in states), states.count("idle")
        values: dict[str, Callable[[], str]] = {
            "Partition": lambda: partition + ("*" if partition == DEFAULT else ""),
            "PartitionName": lambda: partition,
            "Nodes": lambda: str(len(nodes)),
            "NodeList": lambda: compress([node.name for node in nodes]),
            "NodeHost": lambda: first.name if first else "",
            "NodeAddr": lambda: first.name if first else "",
            "StateCompact": lambda: short_state(first) if first else "n/a",
            "StateLong": lambda: state_of(first) if first else "n/a",
            "State": lambda: state_of(first) if first else "n/a",
            "Gres": lambda: gres_of(first) if first else "(null)",
            "GresUsed": lambda: f"gpu:{len(first.gpus) - first.gpus_free}" if first else "(null)",
            "CPUs": lambda: str(cpus[0][0]) if cpus else "0",
            "Sockets": lambda: str(cpus[0][0]) if cpus else "0",
            "SocketCoreThread": lambda: f"{cpus[0][0] if cpus else 0}:1:1",
            "Memory": lambda: str(memory_of(first)[0]) if first else "0",
            "FreeMem": lambda: str(memory_of(first)[1]) if first else "0",
            "AllocMem": lambda: str(memory_of(first)[0] - memory_of(first)[1]) if first else "0",
            "Features": lambda: features_of(first) if first else "(null)",
            "features_act": lambda: features_of(first) if first else "(null)",
            "Reason": lambda: (first.why if first else "") or "none",
            "CPUsState": lambda: f"{used}/{whole - used}/0/{whole}",
            "NodeAI": lambda: f"{busy}/{idle}",
            "NodeAIOT": lambda: f"{busy}/{idle}/{len(nodes) - busy - idle}/{len(nodes)}",
        }
        return values[name]() if name in values else _FIXED.get(name, "N/A")

    return field
