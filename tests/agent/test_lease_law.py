"""The law of leases, tried by chance: while any process counts a node as gone, the node itself believes in no lease.

Servers come and go, in order and not; their gateways sleep; the right to extend leases is lent and ends; messages are
lost, late, and arrive after their sender has died. Nothing is compared with a clock of another machine: all a node
knows is when it sent what, and all a table knows is when it answered.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

import pytest

from corral.remote.leases import Leases, LeaseStatus
from corral.remote.messages import LeaseAnswer, Renewal
from corral.remote.settings import RemoteSettings

SETTINGS = RemoteSettings(lease_ms=8_000, heartbeat_ms=2_000, margin_ms=500, farewell_ms=60_000)
END_MS = 600_000


class World:
    """What happens when, by a seed. Times are in milliseconds."""

    def __init__(self, seed: int, nodes: int = 6) -> None:
        self.chance, self.now_ms, self._count = random.Random(seed), 0, 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self.lease_statuses = {f"n{n}": LeaseStatus() for n in range(nodes)}  # of the present epoch
        self.gone_since: dict[str, int] = {}
        self.given_up = self.renewed = self.farewells = self.starts = 0
        self.farewell_ms = 0
        self.server = Server(self, 1)
        self.nodes = [Node(self, name) for name in self.lease_statuses]

    def later(self, ms: int, act: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (self.now_ms + ms, self._count, act))

    def run(self) -> None:
        while self._agenda and self.now_ms < END_MS:
            self.now_ms, _, act = heapq.heappop(self._agenda)
            act()
            for node in self.nodes:
                since = self.gone_since.get(node.name)
                assert since is None or node.until_ms <= since, (
                    f"{node.name} counts as gone since {since} and believes in a lease until {node.until_ms}"
                )


class Server:
    """A server with its gateway, from the opening of the journal to its end."""

    def __init__(self, world: World, epoch: int) -> None:
        self.world, self.epoch, self.is_over, self.asleep_until = world, epoch, False, 0
        chance = world.chance
        world.starts += 1
        self.table = Leases(SETTINGS, epoch, frozenset(n for n, s in world.lease_statuses.items() if s.is_gone))
        self.last: dict[str, Renewal] = {}
        self.lend()
        self.sweep()
        world.later(chance.choice((0, 500, 5_000, 30_000)), self.load)
        world.later(chance.randrange(5_000, 120_000), self.end)

    def lend(self) -> None:
        """On a shared database the right may end by itself; then no other server has it before."""
        if not self.is_over:
            self.table.delegate(self.world.now_ms + self.world.chance.choice((1_000, 3_000, 60_000)))
            self.world.later(self.world.chance.choice((500, 2_000, 10_000)), self.lend)

    def load(self) -> None:
        if not self.is_over:
            world = self.world
            world.lease_statuses = {name: LeaseStatus(0, each.is_gone) for name, each in world.lease_statuses.items()}
            self.table.begin(world.lease_statuses, world.now_ms, world.farewell_ms)

    def sweep(self) -> None:
        world = self.world
        if self.is_over:
            return
        if world.now_ms >= self.asleep_until:
            for name, term in self.table.sweep(world.now_ms):
                world.given_up += 1
                world.gone_since[name] = world.now_ms
                world.later(world.chance.randrange(0, 3_000), lambda name=name, term=term: self.give_up(name, term))  # type: ignore[misc]
            if world.chance.random() < 0.002:
                self.asleep_until = world.now_ms + world.chance.randrange(2_000, 40_000)
        world.later(250, self.sweep)

    def give_up(self, name: str, term: int) -> None:
        """The server's own process, a while later; it takes the node back a while after that."""
        world = self.world
        if not self.is_over and not self.table.is_early:
            world.lease_statuses[name] = LeaseStatus(term + 1, True)
            self.table.admit(name, world.lease_statuses[name], world.now_ms)
            world.later(world.chance.randrange(500, 20_000), lambda: self.take_back(name, term + 1))

    def take_back(self, name: str, term: int) -> None:
        """Its agent has reported in this term that nothing runs there: so it knows the term, and holds no lease."""
        world = self.world
        node = next(each for each in world.nodes if each.name == name)
        if self.is_over or self.table.is_early or world.lease_statuses[name] != LeaseStatus(term, True):
            return
        if node.heard != (self.epoch, term):
            world.later(1_000, lambda: self.take_back(name, term))
            return
        world.lease_statuses[name] = LeaseStatus(term)
        world.gone_since.pop(name, None)
        self.table.admit(name, world.lease_statuses[name], world.now_ms)

    def renew(self, name: str, asked: Renewal) -> LeaseAnswer | None:
        if self.is_over or asked.epoch > self.epoch:
            return None
        self.last[name] = asked
        return self.table.renew(name, asked, self.world.now_ms)

    def end(self) -> None:
        """In order, with a farewell that is in the record before; or not. Another comes after a while."""
        world = self.world
        if self.asleep_until > world.now_ms:
            world.later(1_000, self.end)
            return
        if not self.table.is_early and world.chance.random() < 0.5:
            world.farewells += 1
            world.farewell_ms = SETTINGS.farewell_ms
            self.table.say_farewell(SETTINGS.farewell_ms)
            for node in world.nodes:
                if node.name in self.last:
                    answer = self.table.renew(node.name, self.last[node.name], world.now_ms)
                    world.later(node.delay_ms(), lambda node=node, answer=answer: node.hear(answer))  # type: ignore[misc]
        self.is_over = True
        world.later(world.chance.choice((0, 300, 3_000, 20_000)), self.next)

    def next(self) -> None:
        """Nothing has acted on what was noticed but never written."""
        for name, status in self.world.lease_statuses.items():
            if not status.is_gone:
                self.world.gone_since.pop(name, None)
        self.world.server = Server(self.world, self.epoch + 1)


class Node:
    """An agent: one renewal under way at a time. Its clock is its own; only spans of it are used."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name, self.until_ms, self.heard = world, name, 0, (0, 0)
        self._seq, self._sent_ms, self._is_answered = 0, 0, True
        world.later(world.chance.randrange(0, 2_000), self.renew)

    def delay_ms(self) -> int:
        return self.world.chance.choice((1, 1, 1, 5, 50, 900, 7_000, 30_000))

    def renew(self) -> None:
        world = self.world
        self._seq += 1
        self._sent_ms = world.now_ms
        epoch, term = self.heard
        asked = Renewal(seq=self._seq, epoch=epoch, term=term, left_ms=max(self.until_ms - world.now_ms, 0))
        server, way = world.server, self.delay_ms()
        if world.chance.random() < 0.95:
            world.later(way, lambda: self._arrive(server, asked))
        pause_ms = world.chance.choice((500, 2_000, 2_000, 2_000, 15_000))  # frozen, cut off, or waiting without effect
        world.later(pause_ms, self.renew)

    def _arrive(self, server: Server, asked: Renewal) -> None:
        answer = server.renew(self.name, asked)
        if answer is not None and self.world.chance.random() < 0.95:
            self.world.later(self.delay_ms(), lambda: self.hear(answer))

    def hear(self, answer: LeaseAnswer) -> None:
        if answer.seq != self._seq or (answer.epoch, answer.term) < self.heard:
            return
        self.heard = (answer.epoch, answer.term)
        if answer.lease_ms and not answer.is_gone:
            self.world.renewed += 1
            self.until_ms = max(self.until_ms, self._sent_ms + answer.lease_ms)


@pytest.mark.parametrize("seeds", [range(50), range(50, 100), range(100, 150)])
def test_no_one_is_gone_who_still_believes_in_a_lease(seeds: range):
    worlds = [World(seed) for seed in seeds]
    for world in worlds:
        world.run()
    assert sum(world.given_up for world in worlds) > 50, "it was put to the test"
    assert sum(world.renewed for world in worlds) > 1_000
    assert sum(world.farewells for world in worlds) > 50
    assert sum(world.starts for world in worlds) > 300
