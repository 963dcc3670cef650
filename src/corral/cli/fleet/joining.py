"""``corral node token``, ``join`` and ``remove``: how a machine becomes a node, and how it ceases to be one."""

from __future__ import annotations

import os
import socket
import time

import rich_click as click

from corral.cli.complaint import FAULT, Complaint
from corral.cli.fleet.place import agent_data_option, agent_folder
from corral.cli.render import say, tell
from corral.cli.session import connected
from corral.cli.words import Span
from corral.wire.address import PLAIN_HINT, why_not_plain


@click.command("token")
@click.argument("name", required=False, default="")
@click.option(
    "--expires", type=Span(), metavar="TIME", default="1h", show_default=True, help="For how long it is good."
)
def make_token(name: str, expires: int) -> None:
    """Make a token with which one machine can join, once. With a NAME: only as that node, in its place."""
    with connected() as client:
        made = client.make_join_token(name, expires)
        url = client.url
    tell(made.token)
    say(f"on the machine: corral node join --server {url} --token {made.token}", dim=True)


@click.command()
@click.option(
    "--server", "urls", metavar="URL", multiple=True, required=True, help="Where the server answers; or several."
)
@click.option("--token", metavar="TOKEN", required=True, envvar="CORRAL_JOIN_TOKEN", help="From corral node token.")
@click.option("--name", metavar="NAME", default=None, help="What the node is called; otherwise as the machine is.")
@click.option(
    "--ca", "cafile", metavar="FILE", default="", envvar="CORRAL_CA", help="A private authority that vouches for it."
)
@click.option("--allow-plain-http", is_flag=True, help="Send tokens without TLS to another machine.")
@click.option(
    "--gateway", "gateways", metavar="HOST:PORT", multiple=True,
    help="Where agents reach the server, if not at the port that it names: behind a tunnel or a relay.",
)  # fmt: skip
@click.option("--replace", is_flag=True, help="Although this machine has joined before.")
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
    """Make this machine a node: exchange a token for a credential of its own, and keep that for corral agent."""
    from corral.agent.agent import urls_of
    from corral.agent.line import NoAnswer, Refused
    from corral.agent.place import AgentPlace, Credential
    from corral.agent.renewal import renew_at
    from corral.agent.servers import Servers
    from corral.backends.fleet.messages import JoinAnswer, JoinBody

    place, node = AgentPlace(agent_folder(data)), name or socket.gethostname()
    if place.has_credential() and not replace:
        raise Complaint(f"this machine has joined before, as {place.credential().node}", "say --replace to join anew")
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
        answer = Servers(urls_of(urls), token, cafile=cafile).join(JoinBody(node), JoinAnswer)
    except Refused as error:
        raise Complaint(f"the server refuses: {error}", error.hint or "corral node token makes another token") from None
    except NoAnswer as error:
        raise Complaint(str(error), "check the address, and that the server runs", exit_code=FAULT) from None
    except OSError as error:
        raise Complaint(f"the authority in {cafile} cannot be read: {error}", "check --ca") from None
    due = renew_at(time.time_ns() // 1_000_000, answer.expires_ms)
    path = place.keep_credential(Credential(answer.node, urls_of(urls), answer.token, cafile, gateways, due))
    tell(f"this machine is node {answer.node}; its credential is in {path}")
    say("corral agent makes it take work", dim=True)


@click.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove a machine on which nothing runs; its credential is good for nothing from then on."""
    with connected() as client:
        client.remove_node(name)
    tell(f"{name} is removed")
