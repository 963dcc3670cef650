"""Hosts in memory, that answer as ``onsite`` would, and the means to do to them what hosts suffer. Knows no pilots but
those that the test starts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from msgspec import Struct, structs

from corral.providers.bootstrap.bundle import AgentBundle, Interpreter
from corral.providers.bootstrap.host_messages import (
    AgentEnd,
    AgentState,
    HostAnswer,
    HostDetails,
    HostRequest,
    PilotRecord,
    StartRequest,
    StopRequest,
)
from corral.providers.remote_exec import HostAway, HostUnfit

AGENT = AgentBundle((), "1-agent")


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


class InMemoryHosts:
    """``full``: hosts on which nothing can be installed. ``cut``: hosts that are lost while something is. ``silent``:
    hosts that say nothing. ``losing``: hosts that lose the next answer to a start, which they carry out. ``during``:
    called with act, host and pilot while a host is at it. ``before_hosts``: called each time that a caller begins to
    look at all."""

    is_keeping = False

    def __init__(self, hosts: int) -> None:
        self.names = [f"h{number}" for number in range(1, hosts + 1)]
        self.full, self.cut, self.silent, self.losing = set[str](), set[str](), set[str](), set[str]()
        self.during: Callable[[str, str, str], object] = lambda _act, _host, _pilot: None
        self.before_hosts: Callable[[], None] = lambda: None
        self.over: dict[str, str] = {}  # hosts whose pilot has ended, and why
        self.places: dict[str, PilotRecord] = {}
        self.agents: dict[str, tuple[str, ...]] = {}
        self.began: list[tuple[str, str]] = []  # (host, pilot), each time that one has begun
        self._making = threading.Lock()
        self._lock = threading.Lock()

    def hosts(self) -> list[Bare]:
        self.before_hosts()
        return [Bare(key=name) for name in self.names]

    def ask(self, host: Bare, request: HostRequest, is_met: bool = True) -> HostAnswer:
        del is_met
        if host.key in self.silent:
            raise HostAway(f"{host} is silent")
        is_taken = False
        if isinstance(request, StartRequest):
            self.during("start", host.key, request.order.pilot)
            is_taken = self._start(host.key, request.order)
        elif isinstance(request, StopRequest):
            self.places.pop(host.key, None)
        with self._lock:
            if isinstance(request, StartRequest) and host.key in self.losing:
                self.losing.remove(host.key)
                raise HostAway(f"{host}: the answer was lost")
        return structs.replace(self._answer(host.key), is_taken=is_taken)

    def install(self, host: Bare, agent: AgentBundle) -> HostAnswer:
        self.during("install", host.key, "")
        if host.key in self.cut:
            raise HostAway(f"{host}: the line is cut")
        if host.key in self.full:
            raise HostUnfit(f"{host}: the disk is full")
        self.agents[host.key] = (agent.mark,)
        return self._answer(host.key)

    def close(self) -> None:
        """There is nothing to close."""

    def agent_for(self, _interpreter: Interpreter, _folder: str) -> AgentBundle:
        """As one that must not be made twice at a time."""
        assert self._making.acquire(blocking=False), "another thread is making one already"
        time.sleep(0.001)
        self._making.release()
        return AGENT

    def take(self, host: str, pilot: str, cluster: str = "theirs") -> None:
        """A pilot has a host."""
        self.places[host] = PilotRecord(pilot=pilot, cluster=cluster, agent="", at_ms=0)

    def of(self, pilot: str) -> list[str]:
        """The hosts that have it."""
        return [host for host, place in self.places.items() if place.pilot == pilot]

    def _start(self, host: str, order: PilotRecord) -> bool:
        """Whether another pilot has the host."""
        with self._lock:
            here = self.places.get(host)
            if here is not None:
                is_same = (here.pilot, here.cluster) == (order.pilot, order.cluster)
                if is_same or host not in self.over:
                    return not is_same
            self.places[host] = order
            self.began.append((host, order.pilot))
        return False

    def _answer(self, host: str) -> HostAnswer:
        place, why = self.places.get(host), self.over.get(host)
        details = HostDetails(
            python=(3, 12, 1),
            machine="x86_64",
            libc="glibc",
            now_ms=time.time_ns() // 1_000_000,
            folder="/x",
            free_mib=50_000,
            can_write=True,
            driver="",
            devices=0,
        )
        return HostAnswer(
            place=place,
            state=AgentState(place is not None and why is None, None if why is None else AgentEnd(why)),
            agents=self.agents.get(host, ()),
            details=details,
        )
