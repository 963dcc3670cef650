"""How something is asked of a node of Ray: through the actor that is there, or is made for it. Knows no Ray.

A node is known by its machine and folder, not by Ray's number for it: a raylet that is started again has another
number, and is the same place. Where no actor is, nothing of ours runs, and a mere look makes none.
"""

from __future__ import annotations

import re
from typing import Any

from msgspec import Struct

from corral.backends.carriers.base import CarrierAway
from corral.backends.carriers.ray.bridge import Bridge
from corral.backends.carriers.ray.settings import Settings
from corral.backends.carriers.sending import FIRST_WORDS, answer_in, installing, sent
from corral.backends.carriers.shells import HostAway, HostUnfit
from corral.backends.carriers.wheels import Agent

_NODES_S, _ANSWER_S, _INSTALL_S = 3.0, 20.0, 120.0
_NOTHING: dict[str, Any] = {"place": None, "state": {"is_kept": False, "ended": None}, "agents": []}


class Node(Struct, frozen=True, kw_only=True):
    """``number``: as Ray has it."""

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


class RayShell:
    is_keeping = True

    def __init__(self, settings: Settings, bridge: Bridge) -> None:
        self._settings, self.bridge = settings, bridge

    def hosts(self) -> list[Node]:
        said = self._settings
        found = self.bridge.call("nodes", _NODES_S)["nodes"]
        return [
            self._node(node)
            for node in sorted(found, key=lambda node: (node["host"], node["id"]))
            if (said.has_head or not node["is_head"])
            and all(node["labels"].get(name) == value for name, value in said.labels.items())
        ]

    def _node(self, told: dict[str, Any]) -> Node:
        said, labels = self._settings, told["labels"]
        folder = re.sub(r"\{([^{}]*)\}", lambda match: labels.get(match[1], ""), said.folder)
        path = "/".join(labels.get(name, "") for name in said.path)
        return Node(
            number=told["id"], name=told["host"] or told["address"], folder=folder, path=path, fake_gpus=said.fake_gpus,
            python=said.agent_python or "Ray's Python",
        )  # fmt: skip

    def ask(self, host: Node, act: str, **request: Any) -> dict[str, Any]:
        is_met = act != "look" or request.pop("is_met", False)
        return self._asked(host, {"act": act, **request}, b"", _ANSWER_S, is_met)

    def install(self, host: Node, agent: Agent) -> dict[str, Any]:
        request, body = installing(agent)
        return self._asked(host, request, body, _INSTALL_S, True)

    def close(self) -> None:
        self.bridge.close()

    def _asked(self, host: Node, request: dict[str, Any], body: bytes, within_s: float, is_met: bool) -> dict[str, Any]:
        first = sent({"act": "look", "folder": host.folder})
        said = sent({**request, "folder": host.folder}, body)
        try:
            told = self.bridge.call(
                "ask", within_s + 5, said, node=host.number, within_s=within_s, is_met=is_met, words=FIRST_WORDS,
                python=self._settings.agent_python, first=first.decode(),
            )  # fmt: skip
        except CarrierAway as away:
            raise HostAway(f"{host}: {away}") from None
        if told.get("is_absent"):
            return _NOTHING
        answer = answer_in(told["output"].encode())
        if answer is None:
            raise HostUnfit(f"{host}: the answer cannot be read: {told['output'][-200:]!r}")
        if "fault" in answer:
            raise HostUnfit(f"{host}: {answer['fault']}")
        return {**answer, "caveat": told["caveat"]}
