"""What every provider must do, whatever system gives the machines. Each brings a `Harness`: the system itself, and the
means to make it fail as such systems do. Agents are real processes that connect to a `FakeServer`, or threads that do
so in their place where the system is in memory.

A new provider adds a Harness to GROUNDS; where what it needs is not installed its tests are skipped and say so."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest
from msgspec import structs

from corral.agent.join_servers import JoinServers
from corral.agent.server_connection import NoAnswer
from corral.core.cluster.topology import NodeSpec
from corral.providers.base import PilotOrder, PilotPhase, PilotStatus, Provider, ProviderUnavailable
from corral.providers.fake import FakeCloud, FakeProvider
from corral.remote.messages import AgentReport, JoinAnswer, JoinBody
from tests.agent.agent_connection import line_to
from tests.providers.command_provider import CommandHarness
from tests.providers.fake_server import FakeServer
from tests.providers.ray_cluster import RayHarness
from tests.providers.slurm_cluster import SlurmHarness
from tests.providers.ssh_hosts import SshHarness

NODES = 2
PATIENCE_S = 60.0


class Harness(Protocol):
    """An engine with two machines."""

    def provider(self) -> Provider:
        """On the same engine each time: a second one is the restart of a server."""
        ...

    def lose_next_answer(self) -> None:
        """The next `acquire` is carried out, and its answer never arrives."""
        ...

    def go_away(self) -> None:
        """The engine cannot be asked; what it runs goes on."""
        ...

    def come_back(self) -> None: ...

    def take_away(self, pilot: str) -> None:
        """Another program ends a pilot."""
        ...

    def count(self, pilot: str) -> int:
        """How many of this name the engine has that are not over."""
        ...

    def close(self) -> None: ...


class FakeHarness:
    """Its agents are threads that say the least an agent says."""

    def __init__(self, _folder: Path) -> None:
        self.engine = FakeCloud(NODES, self._start, self._end)
        self._ends: dict[str, threading.Event] = {}

    def provider(self) -> Provider:
        return FakeProvider(self.engine)

    def lose_next_answer(self) -> None:
        self.engine.lose_answers = 1

    def go_away(self) -> None:
        self.engine.is_away = True

    def come_back(self) -> None:
        self.engine.is_away = False

    def take_away(self, pilot: str) -> None:
        self.engine.take_away(pilot)

    def count(self, pilot: str) -> int:
        return self.engine.live().count(pilot)

    def close(self) -> None:
        for end in self._ends.values():
            end.set()

    def _start(self, order: PilotOrder) -> None:
        self._ends[order.pilot] = end = threading.Event()
        threading.Thread(target=_agent, args=(order, end), daemon=True).start()

    def _end(self, pilot: str) -> None:
        self._ends[pilot].set()


def _agent(order: PilotOrder, end: threading.Event) -> None:
    seq, is_leaving = 0, False
    with suppress(NoAnswer):
        joined = JoinServers(order.urls, order.token).join(JoinBody(order.pilot), JoinAnswer)
        node = joined.node
        with line_to(order.urls[0], node, joined.token) as line:
            while not is_leaving:
                seq, is_leaving = seq + 1, end.is_set()
                said = AgentReport(node=node, session=1, seq=seq, is_full=True, spec=NodeSpec(node))
                line.report(structs.replace(said, leaves_in_ms=0 if is_leaving else None))
                end.wait(0.1)


GROUNDS: dict[str, Callable[[Path], Harness]] = {
    "fake": FakeHarness,
    "command": CommandHarness,
    "ray": RayHarness,
    "slurm": SlurmHarness,
    "ssh": SshHarness,
}


@pytest.fixture(params=list(GROUNDS))
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    made = GROUNDS[request.param](tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def fake_server() -> Iterator[FakeServer]:
    made = FakeServer()
    yield made
    made.close()


def order(fake_server: FakeServer, pilot: str, token: str = "once") -> PilotOrder:
    return PilotOrder(pilot=pilot, urls=(fake_server.url,), token=f"{token}-{pilot}")


def until(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.05)


def seen(provider: Provider, pilot: str) -> PilotStatus | None:
    """The one sighting there is of it."""
    found = [each for each in provider.look([pilot]) if each.pilot == pilot]
    assert len(found) <= 1
    return found[0] if found else None


def is_in(provider: Provider, pilot: str, phase: PilotPhase) -> Callable[[], bool]:
    return lambda: (sighting := seen(provider, pilot)) is not None and sighting.phase is phase


def is_over(provider: Provider, pilot: str) -> Callable[[], bool]:
    """Reported as ended, or not reported any more."""
    return lambda: (sighting := seen(provider, pilot)) is None or sighting.phase is PilotPhase.ENDED


def test_nothing_is_seen_of_a_pilot_that_no_one_asked_for(harness: Harness) -> None:
    assert list(harness.provider().look(["gpu-1"])) == []
    assert list(harness.provider().look([])) == []


def test_a_pilot_starts_an_agent_that_joins_with_its_token_under_its_name(
    harness: Harness, fake_server: FakeServer
) -> None:
    provider = harness.provider()
    provider.acquire([order(fake_server, "gpu-1")])
    assert seen(provider, "gpu-1") is not None
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    assert fake_server.joined == [("gpu-1", "once-gpu-1")]
    until(is_in(provider, "gpu-1", PilotPhase.STARTED), "it is seen as started")
    sighting = seen(provider, "gpu-1")
    assert sighting is not None
    assert sighting.where


def test_asked_for_again_it_is_the_same_one(harness: Harness, fake_server: FakeServer) -> None:
    provider = harness.provider()
    provider.acquire([order(fake_server, "gpu-1")])
    provider.acquire([order(fake_server, "gpu-1", "other")])
    harness.provider().acquire([order(fake_server, "gpu-1", "third")])
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    provider.acquire([order(fake_server, "gpu-1", "fourth")])
    assert harness.count("gpu-1") == 1
    assert len(fake_server.joined) == 1


def test_an_answer_that_was_lost_makes_no_second_pilot(harness: Harness, fake_server: FakeServer) -> None:
    provider = harness.provider()
    harness.lose_next_answer()
    with pytest.raises(ProviderUnavailable):
        provider.acquire([order(fake_server, "gpu-1")])
    provider.acquire([order(fake_server, "gpu-1", "again")])
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    assert harness.count("gpu-1") == 1
    assert len(fake_server.joined) == 1


def test_several_are_had_with_one_call_and_each_is_there_once(harness: Harness, fake_server: FakeServer) -> None:
    provider = harness.provider()
    provider.acquire([order(fake_server, "gpu-1")])
    provider.acquire([order(fake_server, name, "other") for name in ("gpu-1", "gpu-2", "gpu-3")])
    assert {each.pilot for each in provider.look(["gpu-1", "gpu-2", "gpu-3"])} == {"gpu-1", "gpu-2", "gpu-3"}
    until(lambda: sum(map(fake_server.is_here, ("gpu-1", "gpu-2", "gpu-3"))) == NODES, "all machines have an agent")
    assert ("gpu-1", "once-gpu-1") in fake_server.joined
    assert len(fake_server.joined) == NODES


def test_an_answer_that_was_lost_among_several_makes_no_second_pilot(harness: Harness, fake_server: FakeServer) -> None:
    provider = harness.provider()
    harness.lose_next_answer()
    with pytest.raises(ProviderUnavailable):
        provider.acquire([order(fake_server, "gpu-1"), order(fake_server, "gpu-2")])
    provider.acquire([order(fake_server, "gpu-1", "again"), order(fake_server, "gpu-2", "again")])
    until(lambda: fake_server.is_here("gpu-1") and fake_server.is_here("gpu-2"), "both agents report")
    assert (harness.count("gpu-1"), harness.count("gpu-2")) == (1, 1)
    assert len(fake_server.joined) == 2


def test_who_finds_no_machine_waits_and_has_the_next_that_is_free(harness: Harness, fake_server: FakeServer) -> None:
    provider = harness.provider()
    names = [f"gpu-{number}" for number in range(1, NODES + 2)]
    for name in names:
        provider.acquire([order(fake_server, name)])
    until(lambda: sum(map(fake_server.is_here, names)) == NODES, "all machines have an agent")
    last = next(name for name in names if not fake_server.is_here(name))
    assert is_in(provider, last, PilotPhase.WAITING)()
    provider.release(next(name for name in names if name != last))
    until(lambda: seen(provider, last) is not None and fake_server.is_here(last), "the last one has its machine")


def test_one_that_is_let_go_leaves_in_order_and_once(harness: Harness, fake_server: FakeServer) -> None:
    provider = harness.provider()
    provider.acquire([order(fake_server, "gpu-1")])
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    provider.release("gpu-1")
    until(lambda: "gpu-1" in fake_server.leaving, "the agent says that it leaves")
    until(is_over(provider, "gpu-1"), "it is over")
    provider.release("gpu-1")
    until(lambda: not fake_server.is_here("gpu-1"), "the agent has left")
    assert harness.count("gpu-1") == 0


def test_one_that_waits_can_be_let_go(harness: Harness, fake_server: FakeServer) -> None:
    provider = harness.provider()
    names = [f"gpu-{number}" for number in range(1, NODES + 2)]
    for name in names:
        provider.acquire([order(fake_server, name)])
    until(lambda: sum(map(fake_server.is_here, names)) == NODES, "all machines have an agent")
    last = next(name for name in names if not fake_server.is_here(name))
    provider.release(last)
    until(is_over(provider, last), "it is over")
    assert last not in [node for node, _ in fake_server.joined]


def test_to_let_go_what_never_was_is_no_fault(harness: Harness) -> None:
    harness.provider().release("gpu-9")


def test_one_that_others_end_is_seen_to_be_over(harness: Harness, fake_server: FakeServer) -> None:
    provider = harness.provider()
    provider.acquire([order(fake_server, "gpu-1")])
    provider.acquire([order(fake_server, "gpu-2")])
    until(lambda: fake_server.is_here("gpu-1") and fake_server.is_here("gpu-2"), "both agents report")
    harness.take_away("gpu-1")
    until(is_over(provider, "gpu-1"), "it is over")
    assert is_in(provider, "gpu-2", PilotPhase.STARTED)()


def test_only_what_is_asked_about_is_reported(harness: Harness, fake_server: FakeServer) -> None:
    provider = harness.provider()
    provider.acquire([order(fake_server, "gpu-1")])
    provider.acquire([order(fake_server, "gpu-2")])
    assert [each.pilot for each in provider.look(["gpu-2"])] == ["gpu-2"]


def test_an_engine_that_does_not_answer_says_nothing_and_harms_nothing(
    harness: Harness, fake_server: FakeServer
) -> None:
    provider = harness.provider()
    provider.acquire([order(fake_server, "gpu-1")])
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    harness.go_away()
    with pytest.raises(ProviderUnavailable):
        provider.look(["gpu-1"])
    with pytest.raises(ProviderUnavailable):
        provider.acquire([order(fake_server, "gpu-2")])
    with pytest.raises(ProviderUnavailable):
        provider.release("gpu-1")
    assert fake_server.is_here("gpu-1")
    harness.come_back()
    until(is_in(provider, "gpu-1", PilotPhase.STARTED), "it is seen again")
    provider.acquire([order(fake_server, "gpu-2")])
    until(lambda: fake_server.is_here("gpu-2"), "the other one came")


def test_another_server_on_the_same_engine_sees_the_same(harness: Harness, fake_server: FakeServer) -> None:
    first = harness.provider()
    first.acquire([order(fake_server, "gpu-1")])
    until(lambda: fake_server.is_here("gpu-1"), "the agent reports")
    first.close()
    second = harness.provider()
    assert is_in(second, "gpu-1", PilotPhase.STARTED)()
    second.release("gpu-1")
    until(is_over(second, "gpu-1"), "it is over")
