"""``corral login``: keep the address of a server, and a token for it."""

from __future__ import annotations

import os

import rich_click as click

from corral.cli.complaint import Complaint
from corral.cli.render import tell
from corral.cli.session import complaint_of


@click.command()
@click.option(
    "--server", "urls", metavar="URL", multiple=True, required=True, help="Where the server answers; or several."
)
@click.option("--token", metavar="TOKEN", envvar="CORRAL_TOKEN", default=None, help="Asked for if it is not given.")
@click.option(
    "--ca", metavar="FILE", default="", envvar="CORRAL_CA", help="A private authority that vouches for the server."
)
@click.option("--allow-plain-http", is_flag=True, help="Send the token without TLS to another machine, from now on.")
def login(urls: tuple[str, ...], token: str | None, ca: str, allow_plain_http: bool) -> None:
    """Keep where the server is and who you are, for all commands of yours on this machine."""
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
        raise Complaint(f"the credentials cannot be kept: {error}", "is your home folder writable?") from None
    tell(f"you are {who.user} at {url}; kept in {path}")
