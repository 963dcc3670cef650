"""``corral fleet``: nodes from providers: get, list, resize and give back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.fleet.providers import KINDS, module_of, pilots
from corral.cli.lazy import Noun
from corral.cli.option_types import Span, Word
from corral.cli.render import Field, Listing, now_ms, print_line, table, write_json
from corral.cli.session import connected
from corral.duration_text import span

if TYPE_CHECKING:
    from corral.wire.api.fleets import FleetView

F = TypeVar("F", bound=Callable[..., Any])
_EVENTS = (
    "FleetSet", "FleetRecalled", "FleetRemoved", "FleetTroubled", "PilotOrdered", "PilotSeen", "PilotJoined",
    "PilotRecalled", "PilotEnded",
)  # fmt: skip


class Nodes(click.ParamType[tuple[int, int]]):
    """``8``, or ``0..8``: a minimum and a maximum."""

    name = "nodes"

    def convert(
        self,
        value: object,
        param: click.Parameter | None,  # noqa: ARG002
        ctx: click.Context | None,  # noqa: ARG002
    ) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        least, dots, most = str(value).partition("..")
        most = most if dots else least
        if not (least.isdecimal() and most.isdecimal() and int(least) <= int(most)):
            raise Complaint(f"--nodes cannot be {str(value)!r}", "write 8, or 0..8 to follow demand")
        return int(least), int(most)


def _of_all_providers(command: F) -> F:
    options = [*pilots.OPTIONS, *(option for kind in KINDS for option in module_of(kind).OPTIONS)]
    for option in reversed(options):
        command = option(command)
    return command


@click.group(cls=Noun)
def fleet() -> None:
    """Fleets: nodes from a provider, such as Slurm, Ray or SSH hosts."""


@fleet.command()
@click.argument("name", required=False, default="")
@click.option("--on", "kind", type=Word(*KINDS), required=True, help="Provider of the nodes.")
@click.option(
    "--nodes", type=Nodes(), metavar="N|MIN..MAX", default="1", show_default=True, help="Number of nodes, or a range."
)
@click.option("--time", "lasts", type=Span(), metavar="TIME", help="How long to request each node for.")
@click.option(
    "--idle",
    type=Span(),
    metavar="TIME",
    default="10m",
    show_default=True,
    help="With MIN..MAX: give a node back after it was idle this long.",
)
@click.option("--shape", metavar="8xH100", help="GPUs of a node, for planning until the first node has joined.")
@click.option("--price", type=float, metavar="AMOUNT", help="Price of a node per hour.")
@click.option("--cost-max", type=float, metavar="AMOUNT", help="Maximum cost of the fleet in total.")
@_of_all_providers
def up(
    name: str,
    kind: str,
    nodes: tuple[int, int],
    lasts: int | None,
    idle: int,
    shape: str | None,
    price: float | None,
    cost_max: float | None,
    **given: Any,
) -> None:
    """Get nodes from a provider. NAME is the prefix of the node names; default: the provider.

    Run again with other values to update the fleet.
    """
    from corral.wire.api.fleets import FleetBody, ShapeBody

    module = module_of(kind)
    chosen = {key: value for key, value in given.items() if value not in (None, ())}
    if foreign := sorted(chosen.keys() - module.NAMES):
        raise Complaint(f"--{foreign[0].replace('_', '-')} does not apply to --on {kind}", "leave it out")
    name = name or kind
    wanted = FleetBody(
        on=kind,
        settings=module.settings(chosen),
        nodes_min=nodes[0],
        nodes_max=nodes[1],
        lasts_ms=lasts,
        idle_ms=idle,
        shape=None if shape is None else ShapeBody(gpus=shape),
        price_milli=_milli(price) or 0,
        cost_max_milli=_milli(cost_max),
    )
    with connected() as client:
        client.set_fleet(name, wanted)
    print_line(f"fleet {name} is set to {_range(*nodes)} on {kind}; progress: corral fleet list")


def _milli(amount: float | None) -> int | None:
    return None if amount is None else round(amount * 1000)


def _range(least: int, most: int) -> str:
    return f"{most} node{'s' * (most != 1)}" if least == most else f"{least} to {most} nodes"


def _state(found: FleetView) -> str:
    if found.leaving:
        return "removing"
    return "error" if found.trouble else "ready" if found.joined >= max(found.nodes_min, found.wanted) else "starting"


def _cost(found: FleetView) -> str:
    if not found.price_milli:
        return "-"
    most = "" if found.cost_max_milli is None else f"/{found.cost_max_milli / 1000:g}"
    return f"{found.cost_milli / 1000:.2f}{most}"


FLEETS: Listing[FleetView] = Listing(
    {
        "name": Field(lambda found: found.name, title="FLEET"),
        "on": Field(lambda found: found.on),
        "state": Field(_state),
        "nodes": Field(lambda found: f"{found.joined}/{found.wanted}", right=True),
        "range": Field(lambda found: f"{found.nodes_min}..{found.nodes_max}"),
        "owner": Field(lambda found: found.owner),
        "cost": Field(_cost, right=True),
        "trouble": Field(lambda found: found.trouble, title="ERROR"),
    },
    ("name", "on", "state", "nodes", "range", "owner", "trouble"),
)


@fleet.command("list")
@FLEETS.options
def list_fleets(fields: str | None, as_json: bool) -> None:
    """List fleets: nodes present and requested."""
    with connected() as client:
        found = client.fleets().fleets
    FLEETS.write(found, fields, as_json, empty="no fleets")


@fleet.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def show(name: str, as_json: bool) -> None:
    """Show a fleet with its pilots: where each runs, and until when."""
    with connected() as client:
        found = client.fleet(name)
    if as_json:
        write_json(found)
        return
    wanted = _range(found.nodes_min, found.nodes_max)
    print_line(f"fleet {found.name} of {found.owner} on {found.on}: {wanted}, {_state(found)}")
    if found.trouble:
        print_line(f"error: {found.trouble}")
    rows = [
        (
            pilot.name,
            "stopping" if pilot.leaving else pilot.phase,
            "yes" if pilot.node else "no",
            pilot.where or "-",
            "-" if pilot.until_ms is None else span(max(pilot.until_ms - now_ms(), 0)),
            pilot.why or "-",
        )
        for pilot in found.pilots
    ]
    for line in table(("PILOT", "STATE", "NODE", "WHERE", "LEFT", "WHY"), rows) if rows else ():
        print_line(line)


@fleet.command()
@click.argument("name")
@click.option("--nodes", type=Nodes(), metavar="N|MIN..MAX", help="Number of nodes, or a range.")
@click.option("--idle", type=Span(), metavar="TIME", help="Give a node back after it was idle this long.")
@click.option("--cost-max", type=float, metavar="AMOUNT", help="Maximum cost of the fleet in total.")
def scale(name: str, nodes: tuple[int, int] | None, idle: int | None, cost_max: float | None) -> None:
    """Resize a fleet. Idle nodes are given back first; jobs on others are warned and requeued."""
    from corral.wire.api.fleets import ScaleBody

    if nodes is None and idle is None and cost_max is None:
        raise Complaint("nothing to change", "give --nodes, --idle or --cost-max")
    least, most = nodes or (None, None)
    with connected() as client:
        client.scale_fleet(
            name, ScaleBody(nodes_min=least, nodes_max=most, idle_ms=idle, cost_max_milli=_milli(cost_max))
        )
    print_line(f"fleet {name} is set to {_range(*nodes)}" if nodes else f"fleet {name} is changed")


@fleet.command()
@click.argument("name")
def down(name: str) -> None:
    """Give all nodes of a fleet back. Jobs on them are warned and requeued first."""
    with connected() as client:
        client.recall_fleet(name)
    print_line(
        f"fleet {name} is being removed: nodes are given back as jobs leave them; progress: corral fleet show {name}"
    )


@fleet.command()
@click.argument("name", required=False, default="")
@click.option("--follow", "-f", is_flag=True, help="Follow new events.")
def events(name: str, follow: bool) -> None:
    """Show the events of fleets and their pilots."""
    from corral.cli.cluster.events import line

    with connected(patience_s=60.0) as client:
        for event in client.events(0, follow=follow, types=_EVENTS):
            about = event.data.get("fleet") or event.data.get("spec", {}).get("name")
            if not name or about == name:
                print_line(line(event))
