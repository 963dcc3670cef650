"""Whether a demand could ever be met here, even on an empty and healthy cluster; else which resource is short.

Nothing is accepted that would wait for ever. A refusal names what was requested and the most that there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from corral.amount_text import quantity, size
from corral.core.cluster.capacity import Capacity
from corral.core.cluster.resources import GPU_MILLI, Demand, TaskDemand
from corral.core.cluster.slots import NODE_LEVEL, describe, fits, room_by_domain, slots
from corral.core.cluster.topology import Topology
from corral.core.intake.refusal import Refusal
from corral.core.state import State

_REMEMBERED_MAX = 4096  # answers about demands


def why_never(state: State, demand: Demand, avoid: Sequence[str] = ()) -> Refusal | None:
    """Why the demand could not be met even on an empty and healthy cluster; None if it could."""
    known = state.never_fits
    key = (demand, avoid)
    if key not in known:
        if "empty" not in known:
            known["empty"] = _empty(state)
        if len(known) > _REMEMBERED_MAX:  # users may submit any number of demands
            state.never_fits = known = {"empty": known["empty"]}
        known[key] = _why_never(known["empty"], demand, avoid)
    answer: Refusal | None = known[key]
    return answer


def _empty(state: State) -> Capacity:
    capacity = Capacity(state.topology)
    for n, node in enumerate(state.topology.nodes):
        capacity.set_up(n, True, (1 << len(node.gpus)) - 1)
    return capacity


def _why_never(empty: Capacity, demand: Demand, avoid: Sequence[str]) -> Refusal | None:
    topology, task = empty.topology, demand.task
    for field in ("within", "prefer", "spread"):
        level = getattr(demand, field)
        if level and level != NODE_LEVEL and topology.level_index(level) is None:
            levels = ", ".join((*topology.levels, NODE_LEVEL))
            return Refusal("no_such_level", f"there is no level {level!r} in this topology", f"levels: {levels}", field)
    if not topology.nodes:
        return Refusal("no_nodes", "no node has joined this cluster", "add nodes with: corral node join", "task")
    if task.wants_gpu and not any(topology.accepted(task)):
        return _no_such_gpu(empty, task)
    found = slots(empty, demand, avoid)
    if fits(topology, found, demand, demand.smallest):
        return None
    if not any(found):
        why = "; ".join(_short_of_a_task(empty, task)) or f"no node can hold a task of {describe(task)}"
        return Refusal("no_node_large_enough", why, _how_to_fit(topology, task), "task")
    wanted = demand.smallest + demand.spares
    if demand.within and sum(found) >= wanted:
        best = max(room for room, _ in room_by_domain(topology, found, demand.within))
        return Refusal(
            "no_domain_large_enough",
            f"no {demand.within} can hold {wanted} tasks: the largest holds {best}",
            "widen or drop `within`",
            "within",
        )
    return _too_many_tasks(empty, demand, wanted, sum(found))


def _no_such_gpu(empty: Capacity, task: TaskDemand) -> Refusal:
    gpus = [gpu for layout in empty.topology.layouts for gpu in layout]
    if not gpus:
        hint = "add a node with GPUs: corral node join; or simulate some: corral up --fake-gpus 8xH100"
        return Refusal("no_gpus", f"there are no GPUs here; a task requests {describe(task)}", hint, "gpus")
    models = sorted({gpu.model for gpu in gpus})
    if task.models and not set(task.models) & set(models):
        return Refusal(
            "no_such_gpu_model",
            f"there is no GPU of model {' or '.join(task.models)}",
            f"models in this cluster: {', '.join(models)}; for a number of GPUs write it like 2 or 2x{models[0]}",
            "models",
        )
    sizes = [gpu.vram_mib for gpu in gpus if not task.models or gpu.model in task.models]
    least = max(task.vram_mib_min, task.slice_mib)
    if least > max(sizes):
        why = f"no GPU has {size(least)} of VRAM; the largest has {size(max(sizes))}"
        return Refusal("no_such_vram", why, "request less VRAM", "vram_mib_min")
    bounds = [f"at least {size(least)}"] if least else []
    bounds += [f"at most {size(task.vram_mib_max)}"] if task.vram_mib_max is not None else []
    there = ", ".join(size(each) for each in sorted(set(sizes)))
    why = f"no GPU has {' and '.join(bounds)} of VRAM; there are GPUs with {there}"
    return Refusal("no_such_vram", why, "widen the range of VRAM", "vram_mib_min")


def _short_of_a_task(empty: Capacity, task: TaskDemand) -> Iterator[str]:
    """The resources of which no node has enough for one task: requested, and the most that a node has."""
    topology = empty.topology
    if task.gpus:
        most = max(mask.bit_count() for mask in topology.accepted(task))
        if most < task.gpus:
            gpus = f"{' or '.join(task.models)} GPUs" if task.models else "GPUs"
            yield f"a task requests {task.gpus} {gpus}; the largest node has {most}"
    for name, asked in task.amounts:
        stated = [amount for node in topology.nodes for key, amount in node.amounts if key == name]
        if not stated:
            yield f"a task requests {quantity(name, asked)}; no node declares any"
        elif max(stated) < asked:
            yield f"a task requests {quantity(name, asked)}; the largest node has {quantity(name, max(stated))}"


def _how_to_fit(topology: Topology, task: TaskDemand) -> str:
    declared = {name for node in topology.nodes for name, _ in node.amounts}
    unknown = [name for name, _ in task.amounts if name not in declared]
    return f"do not request {unknown[0]} here" if unknown else "request less per task, or use more tasks"


def _too_many_tasks(empty: Capacity, demand: Demand, wanted: int, room: int) -> Refusal:
    """A node can hold one task, but all nodes together cannot hold all of them at once."""
    task, topology = demand.task, empty.topology
    if demand.spread and sum(slots(empty, replace(demand, spread=""))) >= wanted:
        if demand.spread == NODE_LEVEL and demand.spread_max == 1:
            why = f"the job requests {wanted} nodes; {room} {'has' if room == 1 else 'have'} enough for a task"
            return Refusal("cluster_too_small", why, "request fewer nodes, or tasks that may share a node", "tasks")
        why = f"spread over {demand.spread} leaves room for {room} of {wanted} tasks"
        return Refusal("cluster_too_small", why, "request fewer tasks, or relax `spread`", "tasks")
    has = {GPU_MILLI: 0} if task.gpus else {}
    accepted = topology.accepted(task)
    for kind, node in zip(topology.kind, topology.nodes, strict=True):
        for name, amount in (*node.amounts, (GPU_MILLI, accepted[kind].bit_count() * 1000)):
            has[name] = has.get(name, 0) + amount
    asks = dict(task.amounts) | ({GPU_MILLI: task.gpus * 1000} if task.gpus else {})
    short = [
        f"the job requests {quantity(name, each * wanted)}; the whole cluster has {quantity(name, has.get(name, 0))}"
        for name, each in asks.items()
        if each * wanted > has.get(name, 0)
    ]
    in_pieces = f"the job requests {wanted} tasks of {describe(task)} at once; the nodes have room for {room}"
    return Refusal("cluster_too_small", "; ".join(short) or in_pieces, "request fewer tasks, or less per task", "tasks")
