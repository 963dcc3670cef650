"""``corral version``: of this program, and of the server if one answers."""

from __future__ import annotations

import rich_click as click

from corral import __version__
from corral.cli.render import print_line, write_json


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.", panel="Output")
def version(as_json: bool) -> None:
    """Print the version of this program and of the server."""
    from corral.client.blocking import Client
    from corral.client.errors import ClientError

    server = None
    try:
        with Client(patience_s=0) as client:
            server = client.health().version
    except ClientError:
        pass  # a server is optional
    if as_json:
        write_json({"corral": __version__, "server": server})
        return
    print_line(f"corral {__version__}")
    print_line(f"server {server}" if server else "no server answers")
