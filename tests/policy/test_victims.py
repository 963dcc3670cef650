"""Victims against brute force: the cheapest legal set that is enough, nobody in vain, in any order.

The rules are written here a second time, from docs and not from the code: what a victim costs, which sets are
legal, what is enough. Every subset of the candidates of a small cluster is tried.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import product

import pytest

from corral.core import events as e
from corral.core import facts as f
from corral.core.cluster.resources import Demand, Seat, TaskDemand, amounts
from corral.core.model import Cause, Gang, GangState
from corral.core.plan import MakeRoom, Place
from corral.core.snapshot import SILENT_MS
from tests.world import World, demand_of, seat

NODES, GPUS = 6, 4
INSTANCES = 160
#: What a gang may be asked: nothing, to give up what it does not need, to leave.
STAY, SHRINK, LEAVE = 0, 1, 2
Asked = dict[str, int]


class Instance:
    """A full or nearly full cluster of two racks, and one gang that waits with a right to make room."""

    def __init__(self, seed: int, is_reclaim: bool) -> None:
        self.rng = random.Random(seed)
        self.is_reclaim = is_reclaim
        self.world = World().rack("a", NODES // 2, GPUS).rack("b", NODES // 2, GPUS)
        self.world.checks = False
        self.queues = ("red", "blue") if is_reclaim else ("team",)
        self.guarantees = {name: self.rng.choice((0, 0, 2, 5)) if is_reclaim else 0 for name in self.queues}
        for name in self.queues:
            self.world.queue(name, guarantee=self.guarantees[name])
        self.running: list[Gang] = []
        self._fill()
        self.gang = self._waiting()

    def _fill(self) -> None:
        free = {f"{rack}{i}": list(range(GPUS)) for rack in "ab" for i in range(NODES // 2)}
        for number in range(self.rng.randint(6, 10)):
            gpus, tasks = self.rng.choice(((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (3, 1)))
            seats: list[Seat] = []
            for name in self.rng.sample(sorted(free), len(free)):
                while len(seats) < tasks and len(free[name]) >= gpus:
                    seats.append(seat(name, *(free[name].pop() for _ in range(gpus))))
            if len(seats) < tasks:
                continue
            least = 1 if self.rng.random() < 0.4 else 0
            demand = demand_of(gpus, tasks, tasks_min=least)
            cost = self.rng.choice((0, 1_000, 60_000))
            queue = self.rng.choice(self.queues)
            made = self.world.run(f"r{number}", queue, demand, seats, restart_cost_ms=cost)
            self.running.append(made)
            self.world.wait(self.rng.choice((0, 1_000, 7_000)))
            if self.rng.random() < 0.3:
                self.world.save(made, 1)
            self.world.wait(self.rng.choice((1, 500, 100_000)))

    def _waiting(self) -> Gang:
        gpus, tasks = self.rng.choice(((1, 1), (2, 1), (2, 2), (4, 1), (4, 2), (1, 3), (3, 2)))
        demand = demand_of(gpus, tasks, within=self.rng.choice(("", "", "rack", "node")) if tasks < 3 else "")
        if demand.within == "node" and gpus * tasks > GPUS:
            demand = demand_of(gpus, tasks)
        if not self.is_reclaim:
            return self.world.submit("new", "team", demand, priority=1)
        self.world.queue("owner", guarantee=gpus * tasks)
        return self.world.submit("new", "owner", demand)

    # ---- the rules, once more -------------------------------------------------------------------------

    def price(self, gang: Gang) -> int:
        """GPU-milliseconds since the last checkpoint (so much at most without one), and starting again."""
        unsaved = self.world.now - max(gang.saved_ms, gang.started_ms)
        if not gang.saved_ms:
            unsaved = min(unsaved, SILENT_MS)
        gpus = sum(each.gpus.bit_count() for each in gang.seats)
        return gpus * (unsaved + self.world.state.jobs[gang.job].spec.restart_cost_ms)

    def freed(self, asked: Mapping[str, int], node: str) -> int:
        mask = 0
        for gang in self.running:
            what = asked.get(gang.id, STAY)
            seats = gang.seats[gang.demand.smallest :] if what == SHRINK else gang.seats if what == LEAVE else ()
            for each in seats:
                mask |= each.gpus if each.node == node else 0
        return mask

    def is_enough(self, asked: Mapping[str, int]) -> bool:
        demand, state = self.gang.demand, self.world.state
        rooms: dict[str, int] = {}
        for n, node in enumerate(state.topology.nodes):
            free = state.capacity.free[n] | self.freed(asked, node.name)
            where = {"": "all", "rack": node.path[0], "node": node.name}[demand.within]
            rooms[where] = rooms.get(where, 0) + free.bit_count() // demand.task.gpus
        return max(rooms.values()) >= demand.tasks

    def is_legal(self, asked: Mapping[str, int]) -> bool:
        """A borrower gives back down to its guarantee; the last gang asked may take it below."""
        if not self.is_reclaim:
            return True
        for queue in self.queues:
            used, given = 0, []
            for gang in self.running:
                if gang.queue == queue:
                    gpus = sum(each.gpus.bit_count() for each in gang.seats)
                    used += gpus
                    what = asked.get(gang.id, STAY)
                    if what:
                        kept = gang.demand.smallest if what == SHRINK else 0
                        given.append(gpus * (len(gang.seats) - kept) // len(gang.seats))
            if given and used - sum(given) + max(given) <= self.guarantees[queue]:
                return False
        return True

    def options(self, gang: Gang, stage: int) -> tuple[int, ...]:
        can_shrink = gang.demand.is_elastic and len(gang.seats) > gang.demand.smallest
        return (STAY, *((SHRINK,) if can_shrink else ()), *((LEAVE,) if stage == LEAVE else ()))

    def sets(self, stage: int) -> Iterator[Asked]:
        for choice in product(*(self.options(gang, stage) for gang in self.running)):
            yield {gang.id: what for gang, what in zip(self.running, choice, strict=True) if what}

    def cost(self, asked: Mapping[str, int]) -> int:
        return sum(self.price(gang) for gang in self.running if gang.id in asked)

    def optimum(self) -> int | None:
        """The least price: of shrinking alone if that is enough, else of shrinking and leaving."""
        for stage in (SHRINK, LEAVE):
            costs = [self.cost(s) for s in self.sets(stage) if s and self.is_enough(s) and self.is_legal(s)]
            if costs:
                return min(costs)
        return None


def decided(instance: Instance) -> MakeRoom | None:
    plan = instance.world.policy(instance.world.snapshot())
    found = [each for each in plan.decisions if each.gang == instance.gang.id]
    assert not any(isinstance(each, Place) for each in found), "it would fit without anyone leaving"
    return next((each for each in found if isinstance(each, MakeRoom)), None)


def asked_by(decision: MakeRoom) -> Asked:
    return {victim.gang: SHRINK if victim.keep else LEAVE for victim in decision.victims}


def instances(is_reclaim: bool) -> list[Instance]:
    """Seeded instances in which the gang does not fit as things are."""
    made = (Instance(seed, is_reclaim) for seed in range(10 * INSTANCES))
    found = []
    for instance in made:
        if not instance.is_enough({}):
            found.append(instance)
        if len(found) == INSTANCES:
            break
    return found


@pytest.fixture(scope="module", params=[False, True], ids=["by priority", "by reclaim"])
def crowd(request) -> list[tuple[Instance, MakeRoom | None]]:
    return [(instance, decided(instance)) for instance in instances(request.param)]


def test_there_are_enough_instances_and_most_of_them_have_a_solution(crowd):
    assert len(crowd) == INSTANCES
    assert sum(decision is not None for _, decision in crowd) > INSTANCES // 2


def test_victims_are_the_cheapest_of_all_legal_sets_that_are_enough(crowd):
    for number, (instance, decision) in enumerate(crowd):
        best = instance.optimum()
        price = None if decision is None else instance.cost(asked_by(decision))
        assert price == best, f"instance {number}: {decision}"


def test_the_price_that_is_told_is_the_price(crowd):
    for instance, decision in crowd:
        for victim in decision.victims if decision is not None else ():
            assert victim.price_gpu_ms == instance.price(instance.world.state.gangs[victim.gang])


def test_nobody_leaves_in_vain(crowd):
    for instance, decision in crowd:
        if decision is not None:
            asked = asked_by(decision)
            assert instance.is_enough(asked)
            assert instance.is_legal(asked)
            for name in asked:
                fewer = {other: what for other, what in asked.items() if other != name}
                assert not instance.is_enough(fewer), f"{name} was asked in vain: {decision}"


def test_the_order_in_which_candidates_come_does_not_matter(crowd):
    for instance, decision in crowd[:60]:
        state = instance.world.state
        everyone = list(state.holders.items())
        for _ in range(3):
            instance.rng.shuffle(everyone)
            state.holders = dict(everyone)
            assert decided(instance) == decision


# ---- what brute force does not show -------------------------------------------------------------------


def test_of_equally_dear_victims_the_one_that_came_last_leaves():
    world = World().rack("a", 1, 2).queue("team")
    old, young = (world.run(f"j{i}", seats=[seat("a0", i)]) for i in range(2))
    world.submit("high", priority=1)
    world.cycle()
    assert (old.eviction, young.eviction is not None) == (None, True)


def test_victims_are_chosen_by_placement_and_not_by_sums():
    """Two cheap gangs on two nodes free as many GPUs as the dear one, but on no single node."""
    world = World().rack("a", 3, 2).queue("team")
    dear = world.run("dear", demand=demand_of(gpus=2), seats=[seat("a0", 0, 1)], restart_cost_ms=1_000_000)
    cheap = [world.run(f"cheap{i}", seats=[seat(f"a{i + 1}", 0)], restart_cost_ms=0) for i in range(2)]
    fixed = [
        world.run(f"fixed{i}", seats=[seat(f"a{i + 1}", 1)], preemptible=False, restart_cost_ms=0) for i in range(2)
    ]
    world.submit("high", demand=demand_of(gpus=2), priority=1)
    world.cycle()
    assert dear.eviction is not None
    assert all(gang.eviction is None for gang in (*cheap, *fixed))


def test_a_gang_that_waits_for_seats_close_together_preempts_nobody_for_others():
    world = World().rack("a", 2, 4).rack("b", 2, 4).queue("team")
    whole = demand_of(gpus=4)
    low = world.run("low", demand=whole, seats=[seat("a0", 0, 1, 2, 3)])
    for node in ("a1", "b0"):
        world.run(f"fixed-{node}", demand=whole, seats=[seat(node, 0, 1, 2, 3)], preemptible=False)
    world.submit("high", demand=demand_of(4, 2, prefer="rack", prefer_wait_ms=60_000), priority=1)
    world.cycle()
    assert low.eviction is None
    world.wait(60_000)
    world.cycle()
    assert low.eviction is not None


def test_cpus_of_a_node_without_gpus_are_made_room_on_as_well():
    world = World().rack("a", 1, 0, cpu_milli=1000).queue("team")
    cpus = Demand(task=TaskDemand(amounts=amounts({"cpu_milli": 1000})))
    low = world.run("low", demand=cpus, seats=[Seat("a0")])
    world.submit("high", demand=cpus, priority=1)
    world.cycle()
    assert low.eviction is not None


def test_only_nodes_with_gpus_that_it_accepts_are_made_room_on():
    world = World().rack("a", 1, 2).rack("b", 1, 2, model="A100").queue("team")
    cheap = world.run("cheap", demand=demand_of(gpus=2), seats=[seat("a0", 0, 1)], restart_cost_ms=0)
    dear = world.run("dear", demand=demand_of(gpus=2), seats=[seat("b0", 0, 1)], restart_cost_ms=1_000_000)
    world.submit("high", demand=demand_of(gpus=2, models=("A100",)), priority=1)
    world.cycle()
    assert (cheap.eviction, dear.eviction is not None) == (None, True)


PROTECTED = {
    "who may not be preempted": dict(preemptible=False),
    "who has not had its minimum runtime": dict(min_runtime_ms=1_000_000),
}


@pytest.mark.parametrize("spec", PROTECTED.values(), ids=PROTECTED.keys())
def test_priority_does_not_evict(spec):
    world = World().rack("a", 1, 1).queue("team")
    gang = world.run("j", **spec)
    world.submit("high", priority=1)
    world.cycle()
    assert gang.eviction is None


@pytest.mark.parametrize(("save_ms", "is_preempted"), [(40_000, False), (20_000, True), (0, True)])
def test_priority_does_not_evict_a_gang_that_could_not_save_within_its_grace(save_ms, is_preempted):
    world = World().rack("a", 1, 1).queue("team")
    gang = world.run("j", grace_ms=30_000)
    world.tell(f.Saved(gang.id, gang.attempt, 1, "", save_ms))
    assert gang.save_ms == save_ms
    world.submit("high", priority=1)
    world.cycle()
    assert (gang.eviction is not None) is is_preempted


@pytest.mark.parametrize("spec", PROTECTED.values(), ids=PROTECTED.keys())
def test_an_owner_gets_its_guarantee_even_from(spec):
    world = World().rack("a", 1, 1).queue("owner", guarantee=1).queue("borrower")
    gang = world.run("j", "borrower", **spec)
    world.submit("mine", "owner")
    world.cycle()
    assert gang.eviction is not None
    assert gang.eviction.cause is Cause.RECLAIM


def test_an_equal_within_its_guarantee_is_not_preempted():
    world = World().rack("a", 1, 2).queue("one", guarantee=1).queue("other", guarantee=1)
    first = world.run("first", "one", seats=[seat("a0", 0)])
    second = world.run("second", "other", seats=[seat("a0", 1)])
    world.submit("more", "one")
    world.cycle()
    assert (first.eviction, second.eviction) == (None, None)


def test_a_louder_borrower_does_not_take_what_another_queue_is_guaranteed():
    """There is somebody whom it could ask, but whose GPU is not enough."""
    world = World().rack("a", 1, 2).rack("b", 1, 1).queue("owner", guarantee=2).queue("borrower")
    mine = world.run("mine", "owner", demand_of(gpus=2), [seat("a0", 0, 1)])
    small = world.run("small", "borrower", seats=[seat("b0", 0)])
    world.submit("loud", "borrower", demand_of(gpus=2), priority=9)
    world.cycle()
    assert (mine.eviction, small.eviction) == (None, None)


def test_a_louder_borrower_does_not_take_cpus_that_another_queue_is_guaranteed():
    cpus = {count: Demand(task=TaskDemand(amounts=amounts({"cpu_milli": count}))) for count in (500, 1000)}
    world = World().rack("a", 1, 1, cpu_milli=1000).rack("b", 1, 1, cpu_milli=500)
    world.queue("owner", guarantee=amounts({"cpu_milli": 1000})).queue("borrower")
    mine = world.run("mine", "owner", cpus[1000], [Seat("a0")])
    small = world.run("small", "borrower", cpus[500], [Seat("b0")])
    world.submit("loud", "borrower", cpus[1000], priority=9)
    world.cycle()
    assert (mine.eviction, small.eviction) == (None, None)


def test_a_louder_borrower_takes_what_was_started_beyond_the_guarantee_and_not_what_is_cheapest():
    """Else it would alternate with the first one at every start and end of the second."""
    world = World().rack("a", 1, 2).queue("owner", guarantee=1).queue("borrower")
    first = world.run("first", "owner", seats=[seat("a0", 0)], restart_cost_ms=0)
    second = world.run("second", "owner", seats=[seat("a0", 1)], restart_cost_ms=3_600_000)
    world.submit("loud", "borrower", priority=9)
    world.cycle()
    assert first.eviction is None
    assert second.eviction is not None


def cpus(count: int, gpus: int = 0) -> Demand:
    return demand_of(gpus, amounts=amounts({"cpu_milli": count * 1000}))


def promised(**named: int) -> dict[str, object]:
    return {"guarantee": amounts(named)}


def test_a_reclaim_of_cpus_leaves_every_queue_the_cpus_that_it_is_guaranteed():
    """The gangs of the queue with a guarantee are cheaper; it may lose only the one CPU that it borrows."""
    world = World().rack("a", 1, 1, cpu_milli=8000)
    world.queue("owner", **promised(cpu_milli=4000)).queue("other", **promised(cpu_milli=4000)).queue("borrower")
    dear = [world.run(f"d{i}", "borrower", cpus(1), [Seat("a0")], restart_cost_ms=3_600_000) for i in range(3)]
    cheap = [world.run(f"c{i}", "other", cpus(1), [Seat("a0")], restart_cost_ms=0) for i in range(5)]
    owner = world.submit("mine", "owner", cpus(4))
    world.cycle()
    assert owner.claim
    assert sum(gang.eviction is not None for gang in cheap) == 1
    assert all(gang.eviction is not None for gang in dear)


def test_gpu_work_within_its_guarantee_does_not_take_cpus_that_another_queue_is_guaranteed():
    world = World().rack("a", 1, 2, cpu_milli=4000)
    world.queue("owner", guarantee=1).queue("other", **promised(cpu_milli=2000)).queue("borrower")
    taken = world.run("t", "borrower", cpus(1), [Seat("a0")])
    kept = [world.run(f"k{i}", "other", cpus(1), [Seat("a0")]) for i in range(3)]
    owner = world.submit("mine", "owner", cpus(2, gpus=1))
    world.cycle()
    assert owner.claim
    assert sum(gang.eviction is not None for gang in kept) == 1
    assert taken.eviction is not None


def test_cpus_are_reclaimed_from_a_queue_that_uses_its_gpus_within_its_guarantee():
    world = World().rack("a", 1, 1, cpu_milli=4000)
    world.queue("owner", **promised(cpu_milli=2000)).queue("other", guarantee=1)
    mine = world.run("gpu", "other", cpus(1, gpus=1), [Seat("a0", 1)], restart_cost_ms=0)
    borrowed = [world.run(f"b{i}", "other", cpus(1), [Seat("a0")], restart_cost_ms=3_600_000) for i in range(3)]
    owner = world.submit("mine", "owner", cpus(2))
    world.cycle()
    assert owner.claim
    assert mine.eviction is None
    assert sum(gang.eviction is not None for gang in borrowed) == 2


def test_a_louder_borrower_preempts_the_last_gangs_of_a_queue_and_leaves_it_its_cpus():
    world = World().rack("a", 1, 1, cpu_milli=3000).queue("other", **promised(cpu_milli=2000)).queue("borrower")
    running = [world.run(f"o{i}", "other", cpus(1), [Seat("a0")]) for i in range(3)]
    two, one = (world.submit(f"loud{count}", "borrower", cpus(count), priority=9) for count in (2, 1))
    world.cycle()
    assert [gang.eviction is not None for gang in running] == [False, False, True]
    assert (bool(two.claim), bool(one.claim)) == (False, True)


def test_a_gang_that_shrinks_gives_up_its_spares_too_and_its_queue_keeps_its_guarantee():
    world = World().rack("a", 1, 4).queue("other", guarantee=2).queue("borrower")
    seats = [seat("a0", n) for n in range(3)]
    elastic = world.run("elastic", "other", demand_of(1, 2, tasks_min=1, spares=1), seats)
    world.run("full", "borrower", seats=[seat("a0", 3)], preemptible=False)
    loud = world.submit("loud", "borrower", priority=9)
    world.cycle()
    assert (elastic.eviction, loud.claim) == (None, ())


def test_a_queue_gives_back_what_it_borrowed_and_no_more():
    world = World().rack("a", 1, 4).queue("owner", guarantee=2).queue("borrower", guarantee=3)
    running = [world.run(f"j{i}", "borrower", seats=[seat("a0", i)]) for i in range(4)]
    world.submit("two", "owner", demand_of(gpus=2))
    world.cycle()
    assert [gang.eviction for gang in running] == [None] * 4
    world.submit("one", "owner")
    world.cycle()
    assert sum(gang.eviction is not None for gang in running) == 1


def test_who_costs_nothing_does_not_leave_in_vain():
    """A gang without GPUs is free to evict, but sits where its leaving helps nobody."""
    world = World().rack("a", 2, 2).rack("z", 1, 1, cpu_milli=8000).queue("team")
    no_gpus = Demand(task=TaskDemand(amounts=amounts({"cpu_milli": 1000})))
    bystander = world.run("bystander", demand=no_gpus, seats=[Seat("z0")])
    world.run("wide", demand=demand_of(gpus=2), seats=[seat("a0", 0, 1)], restart_cost_ms=0)
    cheap = world.run("cheap", seats=[seat("a1", 0)], restart_cost_ms=1_000)
    world.run("dear", seats=[seat("a1", 1)], restart_cost_ms=300_000)
    world.wait(100_000)
    world.submit("high", demand=demand_of(tasks=2), priority=1)
    world.cycle()
    assert cheap.eviction is not None
    assert bystander.eviction is None


def test_a_queue_and_the_queue_above_it_do_not_evict_each_other_in_a_circle():
    world = World().rack("a", 1, 4).rack("b", 1, 1)
    world.queue("lab").queue("lab/red", guarantee=1).queue("other", time_share=2)
    world.run("elsewhere", "other", seats=[seat("b0", 0)])
    red = world.run("red", "lab/red", demand_of(gpus=4), [seat("a0", 0, 1, 2, 3)], priority=1)
    inner = world.submit("inner", "lab", demand_of(gpus=4))
    for _ in range(12):
        world.cycle()
        for gang in (red, inner):
            if gang.state is GangState.STOPPING:
                world.down(gang, 85)
            elif gang.state is GangState.STARTING:
                world.up(gang)
    evicted = [event.gang for event in world.journal if isinstance(event, e.GangEvicted)]
    assert len(evicted) <= 1
