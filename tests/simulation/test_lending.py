"""A fleet that follows demand through hours of load that comes and goes, in simulated time: engine, policy and
reconciling are the real ones; machines come after a while, jobs end after a while."""

from __future__ import annotations

from collections.abc import Sequence

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import Demand, Gpu, TaskDemand
from corral.core.cluster.topology import NodeSpec
from corral.core.commit import commit
from corral.core.engine import apply_all, react
from corral.core.fleets import fleets as fl
from corral.core.fleets.fleets import Fleets, FleetSpec, NodeShape
from corral.core.fleets.outlook import could_come
from corral.core.fleets.reconcile import PilotNode, reconcile
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.laws import check
from corral.core.model import GangSpec, JobSpec, QueueSpec, Settings
from corral.core.snapshot import Snapshot
from corral.core.state import State
from corral.policy.catalog import policy as named_policy
from corral.policy.demand import needs
from corral.providers.base import PilotOrder, PilotPhase
from corral.providers.fake import FakeCloud

BOOT_S, RUN_S, GPUS = 20, 30, 8
SHAPE = NodeShape(tuple(Gpu(f"g{n}", "H100", 81_920) for n in range(GPUS)))


class Lending:
    """A second at a time. ``held_idle_s``: the longest that any node had nothing to do before it was let go."""

    def __init__(self, idle_s: int, most: int = 6) -> None:
        self.now_s, self.idle_s = 1_000, idle_s
        self.state, self.fleets, self.cloud = State(Settings()), Fleets(), FakeCloud(most)
        policy = named_policy("standard")
        assert not isinstance(policy, Refusal)
        self.policy = policy
        self.take([e.QueueSet(self.now, QueueSpec(name="main"))])
        spec = FleetSpec(name="gpu", kind="fake", nodes_min=0, nodes_max=most, idle_ms=idle_s * 1000, shape=SHAPE)
        self.fleets.apply(fl.FleetSet(self.now, spec, "ann", "c0ffee"))
        self.jobs = 0
        self.began_s: dict[str, int] = {}
        self.idle_since: dict[str, int] = {}
        self.wanted: list[tuple[int, int]] = []
        self.held_idle_s = 0
        self.nodes_over_time: list[int] = []

    @property
    def now(self) -> int:
        return self.now_s * 1000

    def take(self, events: Sequence[e.Event]) -> None:
        apply_all(self.state, events, self.now)

    def tell(self, fact: f.Fact) -> None:
        self.take(react(self.state, fact, self.now))

    def submit(self, count: int) -> None:
        for _ in range(count):
            self.jobs += 1
            spec = JobSpec(queue="main", gangs=(GangSpec(Demand(task=TaskDemand(1))),), time_limit_ms=600_000)
            could = could_come(self.state, self.fleets)
            answer = commands.submit_many(self.state, {str(self.jobs): spec}, "ann", self.now, could)
            assert not isinstance(answer, Refusal), answer
            self.take(answer)

    def second(self) -> None:
        self.now_s += 1
        self._work()
        self.take(commit(self.state, self.policy(Snapshot(self.state, self.now)), self.now))
        for gang in list(self.state.holders.values()):
            if not gang.started_ms:
                self.tell(f.TasksUp(gang.id, gang.attempt, gang.everyone))
        self._tend()
        if self.now_s % 10 == 0:
            check(self.state)
        self.nodes_over_time.append(len(self.state.nodes))

    def _work(self) -> None:
        for gang in list(self.state.holders.values()):
            if gang.started_ms and self.now - gang.started_ms >= RUN_S * 1000:
                self.tell(f.TasksDown(gang.id, gang.attempt, gang.everyone, 0))

    def _tend(self) -> None:
        fleet = self.fleets.fleets["gpu"]
        for sighting in self.cloud.look(list(fleet.pilots)):
            if fleet.pilots[sighting.pilot].phase is not sighting.phase:
                self.fleets.apply(fl.PilotSeen(self.now, "gpu", sighting.pilot, sighting.phase, sighting.where))
                self.began_s.setdefault(sighting.pilot, self.now_s)
        for pilot in list(fleet.pilots.values()):
            is_up = pilot.phase is PilotPhase.STARTED and self.now_s - self.began_s[pilot.name] >= BOOT_S
            if is_up and pilot.name not in self.state.nodes:
                self.take([e.NodeAdded(self.now, NodeSpec(pilot.name, SHAPE.gpus))])
        target = needs(Snapshot(self.state, self.now), self.fleets.fleets)["gpu"]
        self.wanted = [each for each in self.wanted if each[0] > self.now_s - self.idle_s] + [(self.now_s, target)]
        names = [self.fleets.next_pilot("gpu", ahead) for ahead in range(10)]
        held = max(most for _, most in self.wanted)
        owed = reconcile(fleet, names, self._standing(), target, {}, self.now, held)
        for event in owed.events:
            self.fleets.apply(event)
        for node in owed.drain:
            answer = commands.drain(self.state, node, self.now)
            assert not isinstance(answer, Refusal)
            assert not self.state.tenants[node], "work was interrupted"
            self.take(answer)
            self.held_idle_s = max(self.held_idle_s, self.now_s - self.idle_since[node])
        self.cloud.acquire([PilotOrder(pilot=name, urls=(), token="") for name in owed.acquire])
        for name in owed.release:
            self.cloud.release(name)
            if name in self.state.nodes:
                self.tell(f.NodeGone(name))
        for node in owed.remove:
            self.take([e.NodeRemoved(self.now, node)])

    def _standing(self) -> dict[str, PilotNode]:
        found = {}
        for name, node in self.state.nodes.items():
            is_busy = bool(self.state.tenants[name])
            if is_busy:
                self.idle_since.pop(name, None)
            since = self.idle_since.setdefault(name, self.now_s) if not is_busy else self.now_s
            found[name] = PilotNode(node.lost, is_busy, node.drained, since * 1000, SHAPE)
        return found


def test_a_hundred_jobs_on_nothing_bring_nodes_and_the_nodes_go_back() -> None:
    lending = Lending(idle_s=60)
    lending.submit(100)
    for _ in range(400):
        lending.second()
    assert all(job.succeeded for job in lending.state.jobs.values())
    assert max(lending.nodes_over_time) == 6
    assert lending.nodes_over_time[-1] == 0
    assert len(lending.cloud.acquired) == 6, "every machine was asked for once"
    assert lending.cloud.live() == []
    assert lending.held_idle_s <= 61


def test_no_more_come_than_there_is_work_for() -> None:
    lending = Lending(idle_s=60)
    lending.submit(17)
    for _ in range(200):
        lending.second()
    assert len(lending.cloud.acquired) == 3


def test_a_square_wave_that_is_shorter_than_the_cool_down_makes_nothing_come_or_go() -> None:
    """Forty jobs every two minutes, for forty minutes."""
    lending = Lending(idle_s=180)
    for second in range(2_400):
        if second % 120 == 0:
            lending.submit(40)
        lending.second()
    assert len(lending.cloud.acquired) == 5
    assert set(lending.nodes_over_time[120:]) == {5}


def test_a_square_wave_that_is_longer_than_the_cool_down_costs_one_coming_and_going_a_wave() -> None:
    lending = Lending(idle_s=30)
    waves = 4
    for second in range(600 * waves):
        if second % 600 == 0:
            lending.submit(40)
        lending.second()
    assert len(lending.cloud.acquired) == 5 * waves
    assert lending.nodes_over_time[-1] == 0
    assert lending.held_idle_s <= 31


def test_a_trickle_keeps_one_node_and_no_more() -> None:
    lending = Lending(idle_s=60)
    for second in range(1_800):
        if second % 20 == 0:
            lending.submit(1)
        lending.second()
    assert max(lending.nodes_over_time) <= 2
    assert len(lending.cloud.acquired) <= 2
