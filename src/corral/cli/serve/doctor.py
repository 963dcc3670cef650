"""``corral doctor``: problems of this machine, each with what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import rich_click as click

from corral.cli.errors import UNHEALTHY
from corral.cli.render import print_line, style, write_json
from corral.cli.serve.data_folder import data_folder, data_option

if TYPE_CHECKING:
    from corral.cli.serve.checks import DoctorCheck

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "bad": ("BAD", "red")}


@click.command()
@data_option
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:7411",
    show_default=True,
    help="Address the server would listen on.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def doctor(data: str | None, listen: str, as_json: bool) -> int:
    """Check this machine and server: data, database, cgroups, GPUs, containers, separation, providers, brokers."""
    from functools import partial

    from corral.cli.serve import checks
    from corral.providers.catalog import KINDS

    folder = data_folder(data)
    looks: list[Callable[[], DoctorCheck]] = [
        checks.python,
        lambda: checks.data(folder),
        lambda: checks.room(folder),
        lambda: checks.database(folder),
        checks.cgroups,
        checks.gpus,
        checks.containers,
        *(partial(checks.provider, kind) for kind in KINDS),
        checks.account,
        checks.separation,
        checks.clock,
        lambda: checks.port(folder, listen),
        checks.credentials,
        checks.server,
    ]
    found = [look() for look in looks] + checks.servers() + checks.intakes()
    if as_json:
        write_json([{"about": c.about, "state": c.state, "what": c.what, "todo": c.todo} for c in found])
    else:
        _show(found)
    return UNHEALTHY if any(check.state == "bad" for check in found) else 0


def _show(found: list[DoctorCheck]) -> None:
    for check in found:
        word, colour = MARKS[check.state]
        mark = style(word, fg=colour) + " " * (4 - len(word))
        print_line(f"{mark}  {check.about:<12}  {check.what}")
        if check.todo:
            print_line(f"{'':20}{style('→ ' + check.todo, dim=True)}")
