"""Hosts in memory, that answer as ``onsite`` would, and the means to do to them what hosts suffer. Knows no pilots but
those that it is told to begin."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from corral.backends.carriers.shells import HostAway, HostUnfit
from corral.backends.carriers.wheels import Agent, Interpreter

AGENT = Agent((), "1-agent")


class Bare(Struct, frozen=True, kw_only=True):
    """A host by its name."""

    key: str
    python: str = "python3"
    path: str = ""
    fake_gpus: str = "8xH100"

    def __str__(self) -> str:
        return self.key


class Terms(Struct, frozen=True):
    wheels: str = ""
    ca: str = ""
    grace_ms: int = 1_000


class MemoryShell:
    """``full``: hosts on which nothing can be installed. ``cut``: hosts that are lost while something is. ``silent``:
    hosts that say nothing. ``losing``: hosts that lose the next answer to a start, which they carry out. ``during``:
    called with act, host and pilot while a host is at it. ``before_hosts``: called each time that somebody begins to
    look at all."""

    is_keeping = False

    def __init__(self, hosts: int) -> None:
        self.names = [f"h{number}" for number in range(1, hosts + 1)]
        self.full, self.cut, self.silent, self.losing = set[str](), set[str](), set[str](), set[str]()
        self.during: Callable[[str, str, str], object] = lambda _act, _host, _pilot: None
        self.before_hosts: Callable[[], None] = lambda: None
        self.over: dict[str, str] = {}  # hosts whose pilot has ended, and why
        self.places: dict[str, dict[str, Any]] = {}
        self.agents: dict[str, list[str]] = {}
        self.began: list[tuple[str, str]] = []  # (host, pilot), each time that one has begun
        self._making = threading.Lock()
        self._lock = threading.Lock()

    def hosts(self) -> list[Bare]:
        self.before_hosts()
        return [Bare(key=name) for name in self.names]

    def ask(self, host: Bare, act: str, **request: Any) -> dict[str, Any]:
        if host.key in self.silent:
            raise HostAway(f"{host} is silent")
        told: dict[str, Any] = {}
        if act == "start":
            self.during(act, host.key, request["order"]["pilot"])
            told = self._start(host.key, request["order"])
        elif act == "stop":
            self.places.pop(host.key, None)
        with self._lock:
            if act == "start" and host.key in self.losing:
                self.losing.remove(host.key)
                raise HostAway(f"{host}: the answer was lost")
        return told | self._facts(host.key)

    def install(self, host: Bare, agent: Agent) -> dict[str, Any]:
        self.during("install", host.key, "")
        if host.key in self.cut:
            raise HostAway(f"{host}: the line is cut")
        if host.key in self.full:
            raise HostUnfit(f"{host}: the disk is full")
        self.agents[host.key] = [agent.mark]
        return self._facts(host.key)

    def close(self) -> None:
        """There is nothing to close."""

    def agent_for(self, _interpreter: Interpreter, _folder: str) -> Agent:
        """As one that must not be made twice at a time."""
        assert self._making.acquire(blocking=False), "somebody is making one already"
        time.sleep(0.001)
        self._making.release()
        return AGENT

    def take(self, host: str, pilot: str, cluster: str = "theirs") -> None:
        """Somebody has a host."""
        self.places[host] = {"pilot": pilot, "cluster": cluster, "agent": "", "at_ms": 0, "is_released": False}

    def of(self, pilot: str) -> list[str]:
        """The hosts that have it."""
        return [host for host, place in self.places.items() if place["pilot"] == pilot]

    def _start(self, host: str, order: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            here = self.places.get(host)
            if here is not None:
                is_same = (here["pilot"], here["cluster"]) == (order["pilot"], order["cluster"])
                if is_same or host not in self.over:
                    return {} if is_same else {"is_taken": True}
            self.places[host] = order
            self.began.append((host, order["pilot"]))
        return {}

    def _facts(self, host: str) -> dict[str, Any]:
        place, why = self.places.get(host), self.over.get(host)
        state = {"is_kept": bool(place) and why is None, "ended": None if why is None else {"why": why}}
        return {
            "python": [3, 12, 1], "machine": "x86_64", "libc": "glibc", "can_write": True, "free_mib": 50_000,
            "devices": 0, "driver": "", "now_ms": time.time_ns() // 1_000_000, "folder": "/x",
            "agents": self.agents.get(host, []), "place": place, "state": state,
        }  # fmt: skip
