"""A real line to the gateway of a real server, for tests that speak as an agent."""

from __future__ import annotations

from corral.agent.gateway_line import GatewayLine
from corral.agent.place import Credential
from corral.agent.servers import Servers


def line_to(url: str, node: str, token: str, gateways: tuple[str, ...] = ()) -> GatewayLine:
    return GatewayLine(node, Servers((url,), token), token, gateways)


def line_of(credential: Credential) -> GatewayLine:
    return line_to(credential.urls[0], credential.node, credential.token, credential.gateways)
