"""``corral version``: of this program, and of the server if one answers."""

from __future__ import annotations

import rich_click as click

from corral import __version__
from corral.cli.render import tell, write_json


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.", panel="Output")
def version(as_json: bool) -> None:
    """Print the version of this program and of the server."""
    from corral.client.blocking import Client
    from corral.client.errors import ClientError

    server = None
    try:
        with Client(patience_s=0) as client:
            server = client.health().version
    except ClientError:
        pass  # there need not be one
    if as_json:
        write_json({"corral": __version__, "server": server})
        return
    tell(f"corral {__version__}")
    tell(f"server {server}" if server else "no server answers")
