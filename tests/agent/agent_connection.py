"""A real line to the gateway of a real server, for tests that speak as an agent."""

from __future__ import annotations

from corral.agent.agent_dir import AgentCredential
from corral.agent.gateway_connection import GatewayConnection
from corral.agent.join_servers import JoinServers


def line_to(url: str, node: str, token: str, gateways: tuple[str, ...] = ()) -> GatewayConnection:
    return GatewayConnection(node, JoinServers((url,), token), token, gateways)


def line_of(credential: AgentCredential) -> GatewayConnection:
    return line_to(credential.urls[0], credential.node, credential.token, credential.gateways)
