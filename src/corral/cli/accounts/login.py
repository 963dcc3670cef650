"""``corral login``: store the address of a server and a token for it."""

from __future__ import annotations

import os

import rich_click as click

from corral.cli.errors import Complaint
from corral.cli.render import print_line
from corral.cli.session import complaint_of


@click.command()
@click.option(
    "--server", "urls", metavar="URL", multiple=True, required=True, help="URL of the server; may be repeated."
)
@click.option("--token", metavar="TOKEN", envvar="CORRAL_TOKEN", help="Token; you are asked for it if not given.")
@click.option(
    "--ca", metavar="FILE", default="", envvar="CORRAL_CA", help="Private certificate authority of the server."
)
@click.option("--allow-plain-http", is_flag=True, help="Allow sending the token unencrypted to another machine.")
def login(urls: tuple[str, ...], token: str | None, ca: str, allow_plain_http: bool) -> None:
    """Store the server URL and your token for all commands on this machine."""
    from corral.client.blocking import Client
    from corral.client.credentials import save_credentials
    from corral.client.errors import ClientError

    token = token or click.prompt("token", hide_input=True, err=True)
    url, ca = ",".join(each.rstrip("/") for each in urls), os.path.abspath(ca) if ca else ""
    try:
        with Client(url, token, patience_s=0, ca=ca, allow_plain_http=allow_plain_http) as client:
            who = client.whoami()
    except ClientError as error:
        raise complaint_of(error) from None
    try:
        path = save_credentials(url, token, ca=ca, allow_plain_http=allow_plain_http)
    except OSError as error:
        raise Complaint(f"cannot store the credentials: {error}", "is your home folder writable?") from None
    print_line(f"logged in to {url} as {who.user}; credentials are in {path}")
