"""``corral pilot``: what an engine runs on a machine that it lends: join once, be its agent, leave in order."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import rich_click as click

from corral.cli.complaint import FAULT, Complaint
from corral.cli.fleet.place import agent_data_option, agent_folder
from corral.cli.words import Span

if TYPE_CHECKING:
    from corral.agent.place import AgentPlace, Credential

T = TypeVar("T")

TOKEN = "CORRAL_JOIN_TOKEN"
_JOIN_S = 300.0  # a server that is being restarted is waited for
_RETRY_S = 0.5


@click.command()
@agent_data_option
@click.option("--server", "urls", metavar="URL", multiple=True, required=True, help="Where the server answers.")
@click.option("--name", metavar="NAME", required=True, help="What the node is called.")
@click.option("--ca", "cafile", metavar="FILE", default="", help="The authority that vouches for the server.")
@click.option("--granted-by", metavar="ENGINE", default="", help="Offer what this engine says in the environment.")
@click.option("--fake-gpus", metavar="8xH100", default=None, help="Simulated GPUs instead of those of this machine.")
@click.option("--path", metavar="RACK/SWITCH", default="", help="Where it stands.")
@click.option(
    "--grace", type=Span(), metavar="TIME", default="30s", show_default=True,
    help="After SIGTERM: so long the work here has to save and leave.",
)  # fmt: skip
def pilot(
    data: str | None,
    urls: tuple[str, ...],
    name: str,
    cafile: str,
    granted_by: str,
    fake_gpus: str | None,
    path: str,
    grace: int,
) -> int:
    """Make this machine a node for as long as it is lent: for engines, not for people.

    The token to join with is in the environment (CORRAL_JOIN_TOKEN). Started again in the same folder it goes on as
    the node that it was. On SIGTERM the server is told, work saves and leaves, and so does the pilot.
    """
    from msgspec import structs

    from corral.agent.place import AgentPlace, BadPlace
    from corral.backends.carriers.grant import granted, offered
    from corral.cli.fleet.agent import node_spec, run_agent
    from corral.wire.config import Config

    folder = agent_folder(data)
    token = os.environ.pop(TOKEN, "")
    place = AgentPlace(folder)
    try:
        credential = place.credential() if place.has_credential() else _join(place, urls, name, token, cafile)
    except BadPlace as error:
        raise Complaint(str(error).rstrip("."), exit_code=FAULT) from None
    try:
        grant = granted(granted_by, os.environ)
    except ValueError as error:
        raise Complaint(f"--granted-by: {error}") from None
    spec = node_spec(credential.node, fake_gpus, path or "/".join(grant.path), grant.cpus, grant.memory_mib)
    spec = structs.replace(spec, gpus=offered(spec.gpus, grant))
    return run_agent(folder, credential, spec, Config(), leave_ms=grace)


def _join(place: AgentPlace, urls: tuple[str, ...], name: str, token: str, cafile: str) -> Credential:
    from corral.agent.agent import urls_of
    from corral.agent.line import NoAnswer, Refused
    from corral.agent.place import Credential
    from corral.agent.renewal import renew_at
    from corral.agent.servers import Servers
    from corral.backends.fleet.messages import JoinAnswer, JoinBody

    if not token:
        raise Complaint(f"there is no token to join with: {TOKEN} is not set", exit_code=FAULT)
    servers = Servers(urls_of(urls), token, cafile=cafile)
    try:
        answer = _answered(lambda: servers.join(JoinBody(name), JoinAnswer), NoAnswer)
    except Refused as error:
        raise Complaint(f"the server refuses: {error}", error.hint, exit_code=FAULT) from None
    except NoAnswer as error:
        raise Complaint(str(error), "check the address of the server", exit_code=FAULT) from None
    due = renew_at(time.time_ns() // 1_000_000, answer.expires_ms)
    credential = Credential(answer.node, urls_of(urls), answer.token, cafile, renew_ms=due)
    place.keep_credential(credential)
    return credential


def _answered(ask: Callable[[], T], lost: type[Exception]) -> T:
    """The server may be in the middle of a restart."""
    end = time.monotonic() + _JOIN_S
    while True:
        try:
            return ask()
        except lost:
            if time.monotonic() > end:
                raise
        time.sleep(_RETRY_S)
