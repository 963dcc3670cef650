"""Nodes and queues of Corral as nodes and partitions of Slurm: states, features, generic resources.

Every queue that takes jobs is a partition with all nodes: what limits a queue is its quota, not a set of nodes.
"""

from __future__ import annotations

from corral.runtime.hostlist import compress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from corral.client.blocking import Client
    from corral.wire.api.cluster import NodeView

DEFAULT = "default"


def nodes_of(client: Client) -> list[NodeView]:
    return list(client.nodes().nodes)


def partitions_of(client: Client) -> list[str]:
    """The default first."""
    names = [queue.name for queue in client.queues().queues if not queue.children]
    return sorted(names, key=lambda name: (name != DEFAULT, name))


def state_of(node: NodeView) -> str:
    """In Slurm's long words, in small letters."""
    is_used = node.gpus_free < len(node.gpus) or any(node.free.get(k, v) < v for k, v in node.amounts.items())
    if node.lost or node.health == "failed":
        return "down*" if node.lost else "down"
    if not node.open:
        return "drained" if node.drained or not is_used else "draining"
    if not is_used:
        return "idle"
    is_full = not node.gpus_free if node.gpus else node.free.get("cpu_milli", 1) < 1000
    return "allocated" if is_full else "mixed"


SHORT = {"allocated": "alloc", "mixed": "mix", "drained": "drain", "draining": "drng"}


def short_state(node: NodeView) -> str:
    word = state_of(node)
    return SHORT.get(word, word)


def gres_of(node: NodeView) -> str:
    by_model: dict[str, int] = {}
    for gpu in node.gpus:
        by_model[gpu.model.lower()] = by_model.get(gpu.model.lower(), 0) + 1
    return ",".join(f"gpu:{model}:{count}" for model, count in by_model.items()) or "(null)"


def cpus_of(node: NodeView) -> tuple[int, int]:
    """All, and those in use."""
    whole = node.amounts.get("cpu_milli", 1000) // 1000
    return whole, whole - node.free.get("cpu_milli", node.amounts.get("cpu_milli", 1000)) // 1000


def features_of(node: NodeView) -> str:
    models = dict.fromkeys(gpu.model.lower() for gpu in node.gpus)
    return ",".join(models) or "(null)"


def memory_of(node: NodeView) -> tuple[int, int]:
    """All and free, in MiB."""
    whole = node.amounts.get("memory_mib", 0)
    return whole, node.free.get("memory_mib", whole)


def node_lines(node: NodeView) -> list[list[tuple[str, str]]]:
    cpus, used = cpus_of(node)
    memory, free = memory_of(node)
    busy = len(node.gpus) - node.gpus_free
    return [
        [("NodeName", node.name), ("Arch", "x86_64"), ("CoresPerSocket", "1")],
        [("CPUAlloc", str(used)), ("CPUEfctv", str(cpus)), ("CPUTot", str(cpus)), ("CPULoad", "N/A")],
        [("AvailableFeatures", features_of(node))],
        [("ActiveFeatures", features_of(node))],
        [("Gres", gres_of(node))],
        [("NodeAddr", node.name), ("NodeHostName", node.name), ("Version", "24.11.0")],
        [("RealMemory", str(memory)), ("AllocMem", str(memory - free)), ("FreeMem", str(free)), ("Boards", "1")],
        [("State", state_of(node).upper()), ("ThreadsPerCore", "1"), ("TmpDisk", "0"), ("Weight", "1")],
        [
            (
                "CfgTRES",
                f"cpu={cpus},mem={memory}M,billing={cpus}" + (f",gres/gpu={len(node.gpus)}" if node.gpus else ""),
            )
        ],
        [("AllocTRES", f"cpu={used},mem={memory - free}M" + (f",gres/gpu={busy}" if busy else ""))],
        *([[("Reason", node.why)]] if node.why else []),
    ]


def node_object(node: NodeView) -> dict[str, Any]:
    cpus, used = cpus_of(node)
    memory, free = memory_of(node)
    return {
        "name": node.name, "hostname": node.name, "address": node.name, "state": [state_of(node).rstrip("*").upper()],
        "cpus": cpus, "alloc_cpus": used, "alloc_idle_cpus": cpus - used, "real_memory": memory,
        "alloc_memory": memory - free, "free_mem": {"set": True, "infinite": False, "number": free},
        "gres": gres_of(node).replace("(null)", ""), "gres_used": f"gpu:{len(node.gpus) - node.gpus_free}",
        "features": [each for each in features_of(node).split(",") if each != "(null)"], "reason": node.why,
    }  # fmt: skip


def partition_lines(name: str, nodes: Sequence[NodeView]) -> list[list[tuple[str, str]]]:
    cpus = sum(cpus_of(node)[0] for node in nodes)
    return [
        [("PartitionName", name)],
        [("AllowGroups", "ALL"), ("AllowAccounts", "ALL"), ("AllowQos", "ALL")],
        [("AllocNodes", "ALL"), ("Default", "YES" if name == DEFAULT else "NO"), ("QoS", "N/A")],
        [("DefaultTime", "NONE"), ("DisableRootJobs", "NO"), ("GraceTime", "30"), ("Hidden", "NO")],
        [("MaxNodes", "UNLIMITED"), ("MaxTime", "UNLIMITED"), ("MinNodes", "0")],
        [("Nodes", compress([node.name for node in nodes]))],
        [("State", "UP"), ("TotalCPUs", str(cpus)), ("TotalNodes", str(len(nodes)))],
    ]
