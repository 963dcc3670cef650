"""``corral node``: nodes and their GPUs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import rich_click as click

from corral.amount_text import size, thousandths
from corral.cli.amounts import amounts_text
from corral.cli.fleet import join
from corral.cli.lazy import Noun
from corral.cli.option_types import Word
from corral.cli.render import (
    Field,
    Listing,
    count,
    now_ms,
    print_line,
    print_note,
    ranges,
    state_text,
    style,
    table,
    write_json,
)
from corral.cli.serve.data_folder import data_folder, data_option
from corral.cli.session import connected
from corral.duration_text import span

if TYPE_CHECKING:
    from corral.wire.api.cluster import GpuView, NodeView
    from corral.wire.details import GpuDetails, NodeDetails

SIMULATED = "(simulated)"


def gpus_of(node: NodeView) -> str:
    """8 x H100 (simulated)."""
    kinds = Counter((gpu.model, gpu.simulated) for gpu in node.gpus)
    return ", ".join(f"{n} x {model}{f' {SIMULATED}' if fake else ''}" for (model, fake), n in kinds.items()) or "none"


def _state(node: NodeView) -> str:
    if node.lost:
        return state_text("failed", "(lost)")
    if node.drained:
        return state_text("draining" if node.gangs or node.gangs_hidden else "drained")
    if node.cordoned:
        return state_text("cordoned")
    return state_text(node.health, _bad_gpus(node))


def _bad_gpus(node: NodeView) -> str:
    """(1 GPU suspect: XID 79)."""
    bad = Counter((gpu.health, gpu.why) for gpu in node.gpus if gpu.health != "healthy")
    told = [f"{count(n, 'GPU')} {health}" + (f": {why}" if why else "") for (health, why), n in bad.items()]
    return f"({'; '.join(told)})" if told else ""


def _free(node: NodeView, name: str, show: str) -> str:
    if name not in node.amounts:
        return "-"
    free, all_of_it = node.free.get(name, 0), node.amounts[name]
    return f"{thousandths(free)}/{thousandths(all_of_it)}" if show == "milli" else f"{size(free)}/{size(all_of_it)}"


def _left(node: NodeView) -> str:
    """Time until the provider takes the node back."""
    return "-" if node.until_ms is None else span(max(node.until_ms - now_ms(), 0))


NODES: Listing[NodeView] = Listing(
    {
        "name": Field(lambda node: node.name, title="NODE"),
        "health": Field(_state, title="STATE", shrinks=True, value=lambda node: node.health),
        "gpus": Field(gpus_of),
        "gpus_free": Field(lambda node: f"{node.gpus_free}/{len(node.gpus)}", title="FREE", right=True),
        "cpus": Field(lambda node: _free(node, "cpu_milli", "milli"), title="CPUS FREE", right=True),
        "memory": Field(lambda node: _free(node, "memory_mib", "mib"), title="MEMORY FREE", right=True),
        "gangs": Field(lambda node: str(len(node.gangs) + node.gangs_hidden), right=True),
        "domains": Field(lambda node: ",".join(f"{level}={name}" for level, name in node.domains.items())),
        "open": Field(lambda node: "open" if node.open else "closed"),
        "fleet": Field(lambda node: node.fleet or "-"),
        "left": Field(_left, right=True),
    },
    ("name", "health", "gpus", "gpus_free", "cpus", "memory", "gangs", "fleet", "left"),
)


@click.group(cls=Noun)
def node() -> None:
    """Nodes: their resources, what is free, and the jobs on them."""


@node.command("list")
@NODES.options
def list_nodes(fields: str | None, as_json: bool) -> None:
    """List the nodes and what is free on each."""
    with connected() as client:
        found = client.nodes().nodes
    NODES.write(found, fields, as_json, empty="no nodes")


@node.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def show(name: str, as_json: bool) -> None:
    """Show a node: its GPUs, the jobs on them, and how tasks are isolated."""
    with connected() as client:
        found = client.node(name)
    if as_json:
        write_json(found)
        return
    lines = {
        "node": found.name,
        "state": _state(found) + ("" if found.open else ", takes no new jobs"),
        "why": found.why,
        "topology": ", ".join(f"{level} {where}" for level, where in found.domains.items()),
        "has": amounts_text(found.amounts),
        "free": amounts_text(found.free),
        **({} if found.details is None else _made_of(found.details)),
        "lacks": _lacks(found.lacks, found.separation.values()),
        "fleet": f"fleet {found.fleet}{f' ({found.where})' if found.where else ''}" if found.fleet else "",
        "time left": "" if found.until_ms is None else _left(found),
        "gangs": ", ".join([*found.gangs, *([f"{found.gangs_hidden} of others"] if found.gangs_hidden else [])]),
    }
    for title, text in lines.items():
        if text:
            print_line(f"{style(title, dim=True)}{' ' * (11 - len(title))}{text}")
    if found.separation:
        print_line()
        for line in table(("SEPARATED", "BY"), list(found.separation.items())):
            print_line(line)
    if found.gpus:
        print_line()
        links = {each.slot: _links(each) for each in found.details.gpus} if found.details is not None else {}
        rows = [(*_gpu_row(gpu)[:-1], links.get(gpu.slot, "-"), gpu.uuid) for gpu in found.gpus]
        for line in table(("GPU", "MODEL", "VRAM", "HEALTH", "USED BY", "LINKS", "UUID"), rows):
            print_line(line)
        for gpu in found.gpus:
            if gpu.why:
                print_line(f"GPU {gpu.slot} is {state_text(gpu.health)}: {gpu.why}")


def _made_of(details: NodeDetails) -> dict[str, str]:
    cards = [f"{card.name}{f' {card.speed_mbps:,} Mbit/s' if card.speed_mbps else ''}" for card in details.nics]
    disks = [f"{disk.path} {size(disk.size_mib)}" for disk in details.disks if disk.size_mib is not None]
    return {
        "system": details.system,
        "driver": details.driver or "",
        "network": ", ".join(cards),
        "disk": ", ".join(disks),
    }


def _links(gpu: GpuDetails) -> str:
    """PCIe 5 x16, 18 NVLinks to switches, NUMA 0."""
    parts = []
    if gpu.pcie_generation is not None and gpu.pcie_width is not None:
        parts.append(f"PCIe {gpu.pcie_generation} x{gpu.pcie_width}")
    if gpu.nvlinks:
        ends = f" to {ranges(gpu.peers)}" if gpu.peers else " to switches" if gpu.switches else ""
        parts.append(f"{gpu.nvlinks} NVLinks{ends}")
    if gpu.numa is not None:
        parts.append(f"NUMA {gpu.numa}")
    return ", ".join(parts) or "-"


def _lacks(lacks: Mapping[str, str], separation: Iterable[str]) -> str:
    """What tasks cannot have here, and why. What the table of separation explains is only named."""
    explained = [what for what, why in lacks.items() if any(why in text for text in separation)]
    others = [f"{what} ({why})" for what, why in lacks.items() if what not in explained]
    return "; ".join(([f"limits of {', '.join(explained)} (see below)"] if explained else []) + others)


def _gpu_row(gpu: GpuView) -> tuple[str, ...]:
    who = ", ".join(gpu.gangs) or ("others" if gpu.busy else "free")
    model = f"{gpu.model} {SIMULATED}" if gpu.simulated else gpu.model
    return str(gpu.slot), model, size(gpu.vram_mib), state_text(gpu.health), who, gpu.uuid


@node.command()
@data_option
@click.option("--gpu", type=int, required=True, metavar="N", help="GPU of this machine, by its slot.")
@click.option("--xid", type=int, metavar="NUMBER", help="Simulate this Xid, once.")
@click.option("--temperature", type=int, metavar="C", help="Simulate this GPU temperature.")
@click.option(
    "--throttle", type=Word("hw_thermal", "sw_thermal", "hw_power_brake"), help="Simulate this kind of throttling."
)
@click.option("--uncorrected", type=int, metavar="N", help="Simulate N uncorrected memory errors.")
@click.option("--corrected", type=int, metavar="N", help="Simulate N corrected memory errors.")
@click.option("--remap-failed", is_flag=True, help="Simulate a failed row remapping.")
@click.option("--link-down", type=int, multiple=True, metavar="N", help="Simulate a failure of this NVLink.")
@click.option("--pcie-width", type=int, metavar="LANES", help="Simulate a PCIe link with this many lanes.")
@click.option("--vanish", is_flag=True, help="Simulate a GPU that has fallen off the bus.")
@click.option("--fail-probe", is_flag=True, help="Make probes fail (simulated GPUs only).")
@click.option("--end", is_flag=True, help="End all simulated faults of this GPU.")
def drill(data: str | None, gpu: int, **given: Any) -> None:
    """Simulate a fault of a GPU of this machine. Jobs on it are really moved away.

    Acts on the server or agent that uses this data folder. The fault stays until --end.
    """
    from corral.cli.cluster.drill import drill_of
    from corral.health.fault_injection import health_folder, read_drills, write_drills

    folder = health_folder(data_folder(data))
    drills = read_drills(folder)
    if given.pop("end"):
        drills.pop(gpu, None)
    else:
        drills[gpu] = drill_of(drills.get(gpu), given)
    write_drills(folder, drills)
    print_line(
        f"GPU {gpu}: simulated faults ended"
        if gpu not in drills
        else f"GPU {gpu}: the fault is simulated; see: corral node show"
    )


@node.command()
@data_option
@click.option("--gpu", type=int, default=None, metavar="N", help="GPU by its slot; default: the machine itself.")
def clear(data: str | None, gpu: int | None) -> None:
    """Clear the health faults of this machine, or of one GPU, after repair."""
    import time

    from corral.health.fault_injection import FaultCleared, health_folder, read_clearings, write_clearings

    folder = health_folder(data_folder(data))
    write_clearings(folder, [*read_clearings(folder)[-99:], FaultCleared(gpu, time.time_ns() // 1_000_000)])
    print_line(f"{'this machine' if gpu is None else f'GPU {gpu}'} is healthy until a new fault is found")


@node.command()
@click.argument("name")
@click.option("--why", metavar="TEXT", default="", help="Reason, for the audit record.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask on a terminal.")
def drain(name: str, why: str, yes: bool) -> None:
    """Drain a node: start nothing new on it, and requeue its jobs after a warning. To let them finish: cordon."""
    with connected() as client:
        jobs = len((found := client.node(name)).gangs) + found.gangs_hidden
        if jobs and not found.drained:
            what = f"{count(jobs, 'gang')} on {name} will be stopped and requeued"
            print_note(f"{what}; to let them finish: corral node cordon {name}")
            if not yes and sys.stdin.isatty() and sys.stderr.isatty():
                click.confirm(f"drain {name}?", abort=True, err=True)
        client.drain(name, why)
    rest = f"; jobs still on it: corral node show {name}" if jobs else ": nothing runs there"
    print_line(f"{name} is {'draining' if jobs else 'drained'}{rest}")


@node.command()
@click.argument("name")
def undrain(name: str) -> None:
    """Undrain a node: start jobs on it again."""
    with connected() as client:
        client.undrain(name)
    print_line(f"{name} takes jobs again")


@node.command()
@click.argument("name")
def cordon(name: str) -> None:
    """Cordon a node: start nothing new on it, and let its jobs finish."""
    with connected() as client:
        client.cordon(name)
        found = client.node(name)
    jobs = len(found.gangs) + found.gangs_hidden
    left = f"; {count(jobs, 'gang continues', 'gangs continue')} to the end" if jobs else ": nothing runs there"
    print_line(f"{name} is cordoned{left}")


@node.command()
@click.argument("name")
def uncordon(name: str) -> None:
    """Uncordon a node: start jobs on it again."""
    with connected() as client:
        client.uncordon(name)
    print_line(f"{name} takes jobs again")


for _command in (join.make_token, join.join, join.remove):
    node.add_command(_command)
