"""Nodes that join and leave, and the address agents connect to. The connections themselves are in `gateway`."""

from __future__ import annotations

import structlog

from corral.core.accounts import commands
from corral.core.intake import commands as cluster
from corral.remote.messages import JoinAnswer
from corral.server.api.http.contracts import AgentsContract
from corral.server.api.http.problems import ApiError, forbidden, not_found, out_of_scope
from corral.server.api.http.request import ApiRequest, Reply, accepted
from corral.server.auth import NewToken, Verb, may, new_token
from corral.wire.api import TokenMade

log = structlog.get_logger(__name__)

_JOIN_MS_MAX = 30 * 86_400_000


# ---- joining ---------------------------------------------------------------------------------------------


async def make_join_token(request: ApiRequest) -> Reply:
    if not request.may(Verb.NODES_CHANGE):
        raise forbidden(Verb.NODES_CHANGE)
    node, span = request.body.node, request.body.expires_in_ms
    now_ms = request.service.now_ms()
    if not 0 < span <= _JOIN_MS_MAX:
        why = f"a join token cannot be valid for {span} ms"
        raise ApiError(422, "bad_expiry", why, "use 1 ms to 30 days", "expires_in_ms")
    if node and not commands.NODE.fullmatch(node):
        raise ApiError(422, "bad_name", f"{node[:100]!r} is not a valid node name", field="node")
    drawn = new_token()
    scope = (str(Verb.NODE_JOIN),)
    name = f"{commands.JOIN}{node}"
    await request.change_accounts(
        lambda accounts, at_ms: commands.issue_token(
            accounts, drawn.id, request.user, drawn.digest, name, scope, now_ms + span, at_ms
        )
    )
    return TokenMade(
        id=drawn.id,
        user=request.user,
        name=name,
        scope=scope,
        issued_ms=now_ms,
        expires_ms=now_ms + span,
        token=drawn.text,
    )


async def join(request: ApiRequest) -> Reply:
    """Admit a node. The scope of the token is not enough: the user who made it must still have the right to."""
    fleet = _fleet(request)
    if Verb.NODE_JOIN not in request.principal.scope:
        raise out_of_scope(Verb.NODE_JOIN)
    if not may(request.service.accounts.users[request.user], Verb.NODES_CHANGE, ""):
        raise forbidden(Verb.NODES_CHANGE)
    node, drawn = request.body.node, new_token()
    await request.change_accounts(
        lambda accounts, now_ms: commands.admit_node(
            accounts, node, request.principal.token, drawn.id, drawn.digest, now_ms
        )
    )
    log.info("node_joined", node=node, by=request.user)
    return _credential(request, node, drawn, fleet)


def _credential(request: ApiRequest, node: str, drawn: NewToken, fleet: AgentsContract) -> JoinAnswer:
    issued = request.service.accounts.tokens.get(drawn.id)
    return JoinAnswer(node, drawn.text, fleet.endpoint.port, None if issued is None else issued.expires_ms)


async def remove_node(request: ApiRequest) -> Reply:
    """Remove a node. Its credential is revoked first, so that no agent can connect as a node that does not exist."""
    name = request.path["node"]
    if not request.may_somewhere(Verb.NODES_READ):
        raise forbidden(Verb.NODES_READ)
    if name not in request.service.state.nodes:
        raise not_found("node", name)
    if not request.may(Verb.NODES_CHANGE):
        raise forbidden(Verb.NODES_CHANGE)
    accepted(cluster.remove_node(request.service.state, name, request.service.now_ms()))
    await request.service.change_accounts(
        request.user, lambda accounts, now_ms: commands.dismiss_node(accounts, name, now_ms)
    )
    done = await request.change(lambda state, now_ms: cluster.remove_node(state, name, now_ms))
    if request.service.fleet is not None:
        request.service.fleet.remove(name)
    return done


# ---- agents ----------------------------------------------------------------------------------------------


async def endpoint(request: ApiRequest) -> Reply:
    """The port for agents. An agent asks when its connection fails or is refused there; if its credential is refused
    here as well, it was revoked."""
    fleet = _fleet(request)
    if Verb.NODE_SYNC not in request.principal.scope:
        raise out_of_scope(Verb.NODE_SYNC)
    return fleet.endpoint


async def renew_credential(request: ApiRequest) -> Reply:
    """Issue a new credential to an agent whose credential will expire. It must present the current one."""
    fleet = _fleet(request)
    if Verb.NODE_SYNC not in request.principal.scope:
        raise out_of_scope(Verb.NODE_SYNC)
    drawn, presented = new_token(), request.principal.token
    await request.change_accounts(
        lambda accounts, now_ms: commands.renew_node(accounts, presented, drawn.id, drawn.digest, now_ms)
    )
    return _credential(request, request.user.removeprefix(commands.node_user("")), drawn, fleet)


def _fleet(request: ApiRequest) -> AgentsContract:
    fleet = request.service.fleet
    if fleet is None:
        why = "this server runs tasks only on its own machine"
        raise ApiError(404, "no_fleet", why, "start it with: corral up --cluster")
    return fleet
