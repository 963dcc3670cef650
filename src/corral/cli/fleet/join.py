"""``corral node token``, ``join`` and ``remove``: add a machine to the cluster as a node, and remove it."""

from __future__ import annotations

import os
import socket
import time

import rich_click as click

from corral.cli.errors import FAULT, Complaint
from corral.cli.fleet.agent_folder import agent_data_option, agent_folder
from corral.cli.option_types import Span
from corral.cli.render import print_line, print_note
from corral.cli.session import connected
from corral.wire.address import PLAIN_HINT, why_not_plain


@click.command("token")
@click.argument("name", required=False, default="")
@click.option("--expires", type=Span(), metavar="TIME", default="1h", show_default=True, help="Lifetime of the token.")
def make_token(name: str, expires: int) -> None:
    """Create a join token, valid for one node. With NAME: only for that node, whose credential it replaces."""
    with connected() as client:
        made = client.make_join_token(name, expires)
        url = client.url
    print_line(made.token)
    print_note(f"on the machine: corral node join --server {url} --token {made.token}", dim=True)


@click.command()
@click.option(
    "--server", "urls", metavar="URL", multiple=True, required=True, help="URL of the server; may be repeated."
)
@click.option(
    "--token", metavar="TOKEN", required=True, envvar="CORRAL_JOIN_TOKEN", help="Join token, from corral node token."
)
@click.option("--name", metavar="NAME", help="Name of the node; default: the host name.")
@click.option(
    "--ca",
    "cafile",
    metavar="FILE",
    default="",
    envvar="CORRAL_CA",
    help="Private certificate authority of the server.",
)
@click.option("--allow-plain-http", is_flag=True, help="Allow sending tokens unencrypted to another machine.")
@click.option(
    "--gateway",
    "gateways",
    metavar="HOST:PORT",
    multiple=True,
    help="Address at which agents reach the server, if it differs from what the server announces (a tunnel or relay).",
)
@click.option("--replace", is_flag=True, help="Join again if this machine has joined before.")
@agent_data_option
def join(
    urls: tuple[str, ...],
    token: str,
    name: str | None,
    cafile: str,
    allow_plain_http: bool,
    gateways: tuple[str, ...],
    replace: bool,
    data: str | None,
) -> None:
    """Join this machine to a cluster: exchange a join token for a node credential, which corral agent uses."""
    from corral.agent.agent import urls_of
    from corral.agent.agent_dir import AgentCredential, AgentDir
    from corral.agent.join_servers import JoinServers
    from corral.agent.renewal import renew_at
    from corral.agent.server_connection import NoAnswer, Refused
    from corral.remote.messages import JoinAnswer, JoinBody

    place, node = AgentDir(agent_folder(data)), name or socket.gethostname()
    if place.has_credential() and not replace:
        raise Complaint(f"this machine has joined before, as {place.credential().node}", "give --replace to join again")
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise Complaint(f"--server cannot be {url!r}", "write it like https://corral.example:7411")
        if not allow_plain_http and (why := why_not_plain(url)):
            raise Complaint(why, PLAIN_HINT)
    for gateway in gateways:
        if not gateway.rpartition(":")[2].isdecimal():
            raise Complaint(f"--gateway cannot be {gateway!r}", "write it like relay.example:7412")
    cafile = os.path.abspath(cafile) if cafile else ""
    try:
        answer = JoinServers(urls_of(urls), token, cafile=cafile).join(JoinBody(node), JoinAnswer)
    except Refused as error:
        raise Complaint(
            f"the server refused: {error}", error.hint or "create another token with: corral node token"
        ) from None
    except NoAnswer as error:
        raise Complaint(str(error), "check the address, and that the server runs", exit_code=FAULT) from None
    except OSError as error:
        raise Complaint(f"the certificate authority in {cafile} cannot be read: {error}", "check --ca") from None
    due = renew_at(time.time_ns() // 1_000_000, answer.expires_ms)
    path = place.keep_credential(AgentCredential(answer.node, urls_of(urls), answer.token, cafile, gateways, due))
    print_line(f"this machine is node {answer.node}; its credential is in {path}")
    print_note("to run jobs on it: corral agent", dim=True)


@click.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove a node on which nothing runs, and revoke its credential."""
    with connected() as client:
        client.remove_node(name)
    print_line(f"{name} is removed")
