"""Machines that join and leave, and where their agents speak to the server; that they do not do here (`gateway`)."""

from __future__ import annotations

import structlog

from corral.backends.fleet.messages import JoinAnswer
from corral.core.intake import commands as cluster
from corral.core.people import commands
from corral.server.api.entry.asking import Ask, Reply, accepted
from corral.server.api.entry.problems import Unable, forbidden, not_found, out_of_scope
from corral.server.api.entry.seam import Fleet
from corral.server.auth import NewToken, Verb, may, new_token
from corral.wire.api import ChangeAnswer, TokenMade

log = structlog.get_logger(__name__)

_JOIN_MS_MAX = 30 * 86_400_000


# ---- joining ---------------------------------------------------------------------------------------------


async def make_join_token(ask: Ask) -> Reply:
    if not ask.may(Verb.NODES_CHANGE):
        raise forbidden(Verb.NODES_CHANGE)
    node, span, now_ms = ask.body.node, ask.body.expires_in_ms, ask.service.now_ms()
    if not 0 < span <= _JOIN_MS_MAX:
        raise Unable(422, "bad_expiry", "such a token lives from 1 ms to 30 days", field="expires_in_ms")
    if node and not commands.NODE.fullmatch(node):
        raise Unable(422, "bad_name", f"{node[:100]!r} is not a name for a node", field="node")
    drawn, scope, name = new_token(), (str(Verb.NODE_JOIN),), f"{commands.JOIN}{node}"
    accepted(
        await ask.service.change_accounts(
            ask.user,
            lambda accounts, at_ms: commands.issue_token(
                accounts, drawn.id, ask.user, drawn.digest, name, scope, now_ms + span, at_ms
            ),
        )
    )
    return TokenMade(
        id=drawn.id, user=ask.user, name=name, scope=scope, issued_ms=now_ms, expires_ms=now_ms + span,
        token=drawn.text,
    )  # fmt: skip


async def join(ask: Ask) -> Reply:
    """A token with this scope is not enough: whoever made it must still be allowed to change nodes."""
    fleet = _fleet(ask)
    if Verb.NODE_JOIN not in ask.principal.scope:
        raise out_of_scope(Verb.NODE_JOIN)
    if not may(ask.service.accounts.users[ask.user], Verb.NODES_CHANGE, ""):
        raise forbidden(Verb.NODES_CHANGE)
    node, drawn = ask.body.node, new_token()
    accepted(
        await ask.service.change_accounts(
            ask.user,
            lambda accounts, now_ms: commands.admit_node(
                accounts, node, ask.principal.token, drawn.id, drawn.digest, now_ms
            ),
        )
    )
    log.info("node_joined", node=node, by=ask.user)
    return _credential(ask, node, drawn, fleet)


def _credential(ask: Ask, node: str, drawn: NewToken, fleet: Fleet) -> JoinAnswer:
    issued = ask.service.accounts.tokens.get(drawn.id)
    return JoinAnswer(node, drawn.text, fleet.endpoint.port, None if issued is None else issued.expires_ms)


async def remove_node(ask: Ask) -> Reply:
    """The credential goes first: nobody can speak for a node that is not there."""
    name = ask.path["node"]
    if not ask.may_somewhere(Verb.NODES_READ):
        raise forbidden(Verb.NODES_READ)
    if name not in ask.service.state.nodes:
        raise not_found("node", name)
    if not ask.may(Verb.NODES_CHANGE):
        raise forbidden(Verb.NODES_CHANGE)
    accepted(cluster.remove_node(ask.service.state, name, ask.service.now_ms()))
    await ask.service.change_accounts(ask.user, lambda accounts, now_ms: commands.dismiss_node(accounts, name, now_ms))
    done = accepted(await ask.service.change(ask.user, lambda state, now_ms: cluster.remove_node(state, name, now_ms)))
    if ask.service.fleet is not None:
        ask.service.fleet.remove(name)
    return ChangeAnswer(seq=done.seq)


# ---- agents ----------------------------------------------------------------------------------------------


async def endpoint(ask: Ask) -> Reply:
    """Asked by an agent that has lost the place, or was refused there: so who is not known here is known nowhere."""
    fleet = _fleet(ask)
    if Verb.NODE_SYNC not in ask.principal.scope:
        raise out_of_scope(Verb.NODE_SYNC)
    return fleet.endpoint


async def renew_credential(ask: Ask) -> Reply:
    """Asked by an agent whose credential will expire. What it asks with must be that of the node itself."""
    fleet = _fleet(ask)
    if Verb.NODE_SYNC not in ask.principal.scope:
        raise out_of_scope(Verb.NODE_SYNC)
    drawn, presented = new_token(), ask.principal.token
    accepted(
        await ask.service.change_accounts(
            ask.user,
            lambda accounts, now_ms: commands.renew_node(accounts, presented, drawn.id, drawn.digest, now_ms),
        )
    )
    return _credential(ask, ask.user.removeprefix(commands.node_user("")), drawn, fleet)


def _fleet(ask: Ask) -> Fleet:
    fleet = ask.service.fleet
    if fleet is None:
        why = "this server runs tasks on its own machine only"
        raise Unable(404, "no_fleet", why, "start it with: corral up --fleet")
    return fleet
