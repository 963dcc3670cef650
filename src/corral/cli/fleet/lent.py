"""``corral fleet``: machines that engines lend: have them, see them, want more or fewer, give them back."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click

from corral.cli.complaint import Complaint
from corral.cli.fleet.on import KINDS, module_of, pilots
from corral.cli.lazy import Noun
from corral.cli.render import Field, Listing, now_ms, span, table, tell, write_json
from corral.cli.session import connected
from corral.cli.words import Span, Word

if TYPE_CHECKING:
    from corral.wire.api.fleets import FleetView

F = TypeVar("F", bound=Callable[..., Any])
_EVENTS = (
    "FleetSet", "FleetRecalled", "FleetRemoved", "FleetTroubled", "PilotOrdered", "PilotSeen", "PilotJoined",
    "PilotRecalled", "PilotEnded",
)  # fmt: skip


class Nodes(click.ParamType[tuple[int, int]]):
    """``8``, or ``0..8``: from so many to so many."""

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
            raise Complaint(f"--nodes cannot be {str(value)!r}", "write 8, or 0..8 to follow what work asks for")
        return int(least), int(most)


def _of_all_carriers(command: F) -> F:
    options = [*pilots.OPTIONS, *(option for kind in KINDS for option in module_of(kind).OPTIONS)]
    for option in reversed(options):
        command = option(command)
    return command


@click.group(cls=Noun, invoke_without_command=True)
@click.pass_context
def fleet(ctx: click.Context) -> None:
    """Machines lent by an engine that is there already: Slurm and others carry the agents."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_fleets, fields=None, as_json=False)


@fleet.command()
@click.argument("name", required=False, default="")
@click.option("--on", "kind", type=Word(*KINDS), required=True, help="What lends the machines.")
@click.option("--nodes", type=Nodes(), metavar="N|MIN..MAX", default="1", show_default=True, help="How many.")
@click.option("--time", "lasts", type=Span(), metavar="TIME", default=None, help="For how long each is asked for.")
@click.option(
    "--idle",
    type=Span(),
    metavar="TIME",
    default="10m",
    show_default=True,
    help="With MIN..MAX: a node that had nothing to do for so long goes back.",
)
@click.option("--shape", metavar="8xH100", default=None, help="The GPUs of a node, where none has joined yet.")
@click.option("--price", type=float, metavar="AMOUNT", default=None, help="What a node costs in an hour.")
@click.option("--cost-max", type=float, metavar="AMOUNT", default=None, help="What all of it may cost.")
@_of_all_carriers
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
    """Have an engine lend machines. NAME begins the names of the nodes; otherwise they are called after the engine.

    Said again with other numbers, it is the same fleet that wants something else.
    """
    from corral.wire.api.fleets import FleetBody, ShapeBody

    module = module_of(kind)
    said = {key: value for key, value in given.items() if value not in (None, ())}
    if foreign := sorted(said.keys() - module.NAMES):
        raise Complaint(f"--{foreign[0].replace('_', '-')} says nothing about --on {kind}", "leave it out")
    name = name or kind
    wanted = FleetBody(
        on=kind, settings=module.settings(said), nodes_min=nodes[0], nodes_max=nodes[1], lasts_ms=lasts, idle_ms=idle,
        shape=None if shape is None else ShapeBody(gpus=shape), price_milli=_milli(price) or 0,
        cost_max_milli=_milli(cost_max),
    )  # fmt: skip
    with connected() as client:
        client.set_fleet(name, wanted)
    tell(f"fleet {name} wants {_range(*nodes)} on {kind}; corral fleet list shows what comes of it")


def _milli(amount: float | None) -> int | None:
    return None if amount is None else round(amount * 1000)


def _range(least: int, most: int) -> str:
    return f"{most} node{'s' * (most != 1)}" if least == most else f"{least} to {most} nodes"


def _state(found: FleetView) -> str:
    if found.leaving:
        return "leaving"
    return "trouble" if found.trouble else "ready" if found.joined >= max(found.nodes_min, found.wanted) else "coming"


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
        "trouble": Field(lambda found: found.trouble),
    },
    ("name", "on", "state", "nodes", "range", "owner", "trouble"),
)


@fleet.command("list")
@FLEETS.options
def list_fleets(fields: str | None, as_json: bool) -> None:
    """All fleets: nodes that are there, of those that are wanted."""
    with connected() as client:
        found = client.fleets().fleets
    FLEETS.write(found, fields, as_json, empty="no fleets")


@fleet.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="As JSON.", panel="Output")
def show(name: str, as_json: bool) -> None:
    """One fleet with its pilots: where each is, and until when."""
    with connected() as client:
        found = client.fleet(name)
    if as_json:
        write_json(found)
        return
    wanted = _range(found.nodes_min, found.nodes_max)
    tell(f"fleet {found.name} of {found.owner} on {found.on}: {wanted}, {_state(found)}")
    if found.trouble:
        tell(f"trouble: {found.trouble}")
    rows = [
        (
            pilot.name, "leaving" if pilot.leaving else pilot.phase, "yes" if pilot.node else "no", pilot.where or "-",
            "-" if pilot.until_ms is None else span(max(pilot.until_ms - now_ms(), 0)), pilot.why or "-",
        )
        for pilot in found.pilots
    ]  # fmt: skip
    for line in table(("PILOT", "STATE", "NODE", "WHERE", "LEFT", "WHY"), rows) if rows else ():
        tell(line)


@fleet.command()
@click.argument("name")
@click.option("--nodes", type=Nodes(), metavar="N|MIN..MAX", default=None, help="How many.")
@click.option("--idle", type=Span(), metavar="TIME", default=None, help="Without work for so long, a node goes back.")
@click.option("--cost-max", type=float, metavar="AMOUNT", default=None, help="What all of it may cost.")
def scale(name: str, nodes: tuple[int, int] | None, idle: int | None, cost_max: float | None) -> None:
    """Want more or fewer nodes. Fewer: idle ones go first; on others the work saves and moves on."""
    from corral.wire.api.fleets import ScaleBody

    if nodes is None and idle is None and cost_max is None:
        raise Complaint("nothing was said", "say --nodes, --idle or --cost-max")
    least, most = nodes or (None, None)
    with connected() as client:
        client.scale_fleet(
            name, ScaleBody(nodes_min=least, nodes_max=most, idle_ms=idle, cost_max_milli=_milli(cost_max))
        )
    tell(f"fleet {name} wants {_range(*nodes)}" if nodes else f"fleet {name} is changed")


@fleet.command()
@click.argument("name")
def down(name: str) -> None:
    """Give all nodes back: work on them saves and leaves first, then the engine has them again."""
    with connected() as client:
        client.recall_fleet(name)
    tell(f"fleet {name} is given back as its work leaves; corral fleet show {name} tells how far it is")


@fleet.command()
@click.argument("name", required=False, default="")
@click.option("--follow", "-f", is_flag=True, help="Go on as things happen.")
def events(name: str, follow: bool) -> None:
    """What happened to fleets and their pilots."""
    from corral.cli.cluster.events import line

    with connected(patience_s=60.0) as client:
        for event in client.events(0, follow=follow, types=_EVENTS):
            about = event.data.get("fleet") or event.data.get("spec", {}).get("name")
            if not name or about == name:
                tell(line(event))
