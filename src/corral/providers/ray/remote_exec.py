"""Runs requests on a Ray node, through the actor that is there or is created for it. Imports nothing of Ray.

A node is identified by its machine and directory, not by Ray's id: a restarted raylet has another id, but is the same
node. Where there is no actor, nothing of ours runs, and a mere look creates none.
"""

from __future__ import annotations

import re

from msgspec import Struct, structs

from corral.providers.base import ProviderUnavailable
from corral.providers.bootstrap.bundle import AgentBundle
from corral.providers.bootstrap.host_messages import HostAnswer, HostRequest, LookRequest
from corral.providers.bootstrap.payload import FIRST_WORDS, install_request, payload
from corral.providers.ray.bridge import Bridge
from corral.providers.ray.driver_messages import AskAnswer, AskRequest, NodeAnswer, NodesAnswer, NodesRequest
from corral.providers.ray.settings import RaySettings
from corral.providers.remote_exec import HostAway, HostUnfit, checked_answer

_NODES_S = 3.0
_ANSWER_S = 20.0
_INSTALL_S = 120.0


class RayNode(Struct, frozen=True, kw_only=True):
    """``number``: the id that Ray gives it."""

    number: str
    name: str
    folder: str
    python: str = ""
    path: str = ""
    fake_gpus: str = ""

    @property
    def key(self) -> str:
        return f"{self.name} {self.folder}"

    def __str__(self) -> str:
        return f"{self.name} (node {self.number[:12]} of Ray)"


class RayExec:
    is_keeping = True

    def __init__(self, settings: RaySettings, bridge: Bridge) -> None:
        self._settings, self.bridge = settings, bridge

    def hosts(self) -> list[RayNode]:
        settings = self._settings
        found = self.bridge.call(NodesRequest(), NodesAnswer, _NODES_S).nodes
        return [
            self._node(node)
            for node in sorted(found, key=lambda node: (node.host, node.id))
            if (settings.has_head or not node.is_head)
            and all(node.labels.get(name) == value for name, value in settings.labels.items())
        ]

    def _node(self, described: NodeAnswer) -> RayNode:
        settings, labels = self._settings, described.labels
        folder = re.sub(r"\{([^{}]*)\}", lambda match: labels.get(match[1], ""), settings.folder)
        path = "/".join(labels.get(name, "") for name in settings.path)
        return RayNode(
            number=described.id,
            name=described.host or described.address,
            folder=folder,
            path=path,
            fake_gpus=settings.fake_gpus,
            python=settings.agent_python or "Ray's Python",
        )

    def ask(self, host: RayNode, request: HostRequest, is_met: bool = True) -> HostAnswer:
        is_met = is_met or not isinstance(request, LookRequest)
        return self._asked(host, request, b"", _ANSWER_S, is_met)

    def install(self, host: RayNode, agent: AgentBundle) -> HostAnswer:
        request, body = install_request(agent)
        return self._asked(host, request, body, _INSTALL_S, True)

    def close(self) -> None:
        self.bridge.close()

    def _asked(self, host: RayNode, request: HostRequest, body: bytes, within_s: float, is_met: bool) -> HostAnswer:
        first = payload(LookRequest(), host.folder)
        data = payload(request, host.folder, body)
        try:
            reply = self.bridge.call(
                AskRequest(
                    node=host.number,
                    within_s=within_s,
                    is_met=is_met,
                    words=FIRST_WORDS,
                    python=self._settings.agent_python,
                    first=first.decode(),
                ),
                AskAnswer,
                within_s + 5,
                data,
            )
        except ProviderUnavailable as away:
            raise HostAway(f"{host}: {away}") from None
        if reply.is_absent:
            return HostAnswer()
        answer = checked_answer(host, reply.output.encode())
        if answer is None:
            raise HostUnfit(f"{host}: cannot read the answer: {reply.output[-200:]!r}")
        return structs.replace(answer, caveat=reply.caveat)
