"""A guarantee is never denied because there are many who could be asked, or because the first choice was not legal.

What is feasible is found here in another way: where all who run have one GPU, by flows from queues to nodes; else by
letting everybody leave and taking back at random.
"""

from __future__ import annotations

import random
import tracemalloc
from itertools import product

import pytest

from corral.core.cluster.resources import Seat
from corral.core.intake import commands
from corral.core.model import Gang
from corral.core.plan import MakeRoom, Place
from tests.world import World, demand_of, seat


def test_an_owner_of_a_whole_node_is_served_among_thirty_two_borrowers_of_one_gpu():
    """Red may give up one. On the first three nodes it has two each, the cheapest; on the last it has none."""
    made = World().rack("n", 4, 8).queue("owner", guarantee=8).queue("red", guarantee=5).queue("blue", guarantee=18)
    for node, gpu in product(range(4), range(8)):
        is_red = node < 3 and gpu < 2
        cost = 0 if is_red else 1_000 * (node + 1)
        queue = "red" if is_red else "blue"
        made.run(f"g{node}{gpu}", queue, demand_of(gpus=1), [seat(f"n{node}", gpu)], restart_cost_ms=cost)
    owner = made.submit("owner", "owner", demand_of(gpus=8))
    (decision,) = made.cycle().decisions
    assert isinstance(decision, MakeRoom)
    assert {each.node for each in decision.seats} == {"n3"}
    assert len(decision.victims) == 8
    assert owner.claim


def test_a_step_that_is_not_legal_as_a_whole_costs_nothing_and_another_node_is_tried():
    """On the first node the borrowers of red are cheapest, but red may give up only one more."""
    made = World().rack("n", 2, 2).queue("red", guarantee=1).queue("blue").queue("owner", guarantee=2)
    for at, (queue, node, gpu) in enumerate((("red", 0, 0), ("red", 0, 1), ("blue", 1, 0), ("blue", 1, 1))):
        cost = 0 if queue == "red" else 60_000
        made.run(f"r{at}", queue, demand_of(gpus=1), [seat(f"n{node}", gpu)], restart_cost_ms=cost)
    made.submit("owner", "owner", demand_of(gpus=2))
    (decision,) = made.cycle().decisions
    assert isinstance(decision, MakeRoom)
    assert {made.state.gangs[victim.gang].queue for victim in decision.victims} == {"blue"}


@pytest.mark.parametrize("seed", range(60))
def test_what_is_feasible_among_many_of_one_gpu_is_served(seed):
    rng = random.Random(seed)
    nodes, gpus = rng.randint(2, 5), rng.choice((4, 8))
    queues = ("red", "blue", "green")[: rng.randint(1, 3)]
    guarantees = {name: rng.choice((0, 0, 1, 3, 5)) for name in queues}
    made = World().rack("n", nodes, gpus)
    made.checks = False
    for name in queues:
        made.queue(name, guarantee=guarantees[name])
    on: dict[tuple[str, int], int] = {}
    for node, gpu in product(range(nodes), range(gpus)):
        queue = rng.choice(queues)
        on[queue, node] = on.get((queue, node), 0) + 1
        cost = rng.choice((0, 1_000, 60_000))
        made.run(f"r{node}x{gpu}", queue, demand_of(gpus=1), [seat(f"n{node}", gpu)], restart_cost_ms=cost)
    each, tasks = rng.choice(((1, 6), (2, 3), (3, 2), (4, 1), (4, 2), (2, 4)))
    made.queue("owner", guarantee=each * tasks)
    used = {name: sum(count for (queue, _), count in on.items() if queue == name) for name in queues}
    if rng.random() < 0.7:  # let there be just enough, for one way of doing it
        given = dict.fromkeys(queues, 0)
        for node, count in enumerate(shared_out(rng, tasks, nodes, gpus // each)):
            here = [queue for queue in queues for _ in range(on.get((queue, node), 0))]
            for queue in rng.sample(here, each * count):
                given[queue] += 1
        guarantees = {name: used[name] - given[name] for name in queues}
        for name in queues:
            made.queue(name, guarantee=guarantees[name])
    made.submit("owner", "owner", demand_of(each, tasks))
    slack = {name: max(0, used[name] - guarantees[name]) for name in queues}
    expected = any(
        flows(on, slack, [each * count for count in counts])
        for counts in product(range(gpus // each + 1), repeat=nodes)
        if sum(counts) == tasks
    )
    found = [decision for decision in made.cycle().decisions if isinstance(decision, MakeRoom)]
    assert bool(found) is expected, f"seed {seed}"
    for decision in found:
        assert len(decision.victims) == each * tasks


def shared_out(rng: random.Random, tasks: int, nodes: int, most: int) -> list[int]:
    """So many tasks over nodes, at random."""
    counts = [0] * nodes
    while sum(counts) < tasks:
        node = rng.randrange(nodes)
        counts[node] += counts[node] < most
    return counts


def flows(on: dict[tuple[str, int], int], slack: dict[str, int], needs: list[int]) -> bool:
    """Whether nodes can have what they need from queues, each of which gives no more than its slack."""
    taken: dict[tuple[str, int], int] = dict.fromkeys(on, 0)
    left = dict(slack)

    def push(node: int, seen: set[str]) -> bool:
        for queue in left:
            if taken.get((queue, node), 0) < on.get((queue, node), 0) and queue not in seen:
                seen.add(queue)
                if left[queue]:
                    left[queue] -= 1
                    taken[queue, node] += 1
                    return True
                for other in range(len(needs)):  # somebody else takes from another queue instead
                    if other != node and taken.get((queue, other), 0) and push(other, seen):
                        taken[queue, other] -= 1
                        taken[queue, node] += 1
                        return True
        return False

    return all(push(node, set()) for node, need in enumerate(needs) for _ in range(need))


@pytest.mark.parametrize("seed", range(40))
def test_what_is_feasible_among_many_of_any_size_is_served(seed):
    rng = random.Random(seed)
    nodes, gpus = rng.randint(8, 12), 4
    queues = ("red", "blue", "green")
    guarantees = {name: rng.choice((0, 2, 6, 10)) for name in queues}
    made = World().rack("a", nodes // 2, gpus).rack("b", nodes - nodes // 2, gpus)
    made.checks = False
    for name in queues:
        made.queue(name, guarantee=guarantees[name])
    names = [node.name for node in made.state.topology.nodes]
    free = {name: list(range(gpus)) for name in names}
    running: list[Gang] = []
    for number in range(60):
        each, tasks = rng.choice(((1, 1), (1, 2), (2, 1), (2, 2), (3, 1)))
        seats: list[Seat] = []
        for name in rng.sample(names, len(names)):
            while len(seats) < tasks and len(free[name]) >= each:
                seats.append(seat(name, *(free[name].pop() for _ in range(each))))
        if len(seats) == tasks:
            cost = rng.choice((0, 1_000, 60_000))
            demand = demand_of(each, tasks)
            running.append(made.run(f"r{number}", rng.choice(queues), demand, seats, restart_cost_ms=cost))
    each, tasks = rng.choice(((4, 2), (4, 3), (2, 5), (3, 4), (1, 12)))
    demand = demand_of(each, tasks, within=rng.choice(("", "rack")))
    made.queue("owner", guarantee=each * tasks)
    made.submit("owner", "owner", demand)
    if rng.random() < 0.7:  # let there be just enough, for one way of doing it
        leave = minimal(made, rng.sample(running, len(running)))
        for name in queues:
            used = sum(gang.gpu_milli for gang in running if gang.queue == name)
            given = sum(gang.gpu_milli for gang in leave if gang.queue == name)
            guarantees[name] = (used - given) // 1000
            made.queue(name, guarantee=guarantees[name])
    is_feasible = any(reduced_at_random(made, running, guarantees, rng) for _ in range(60))
    found = [decision for decision in made.cycle().decisions if decision.gang == "owner/main"]
    assert found or not is_feasible, f"seed {seed}"


def reduced_at_random(made: World, running: list[Gang], guarantees: dict[str, int], rng: random.Random) -> bool:
    """Whether a set that is enough, none of whom could stay, happens to be legal."""
    leave = rng.sample(running, len(running))
    if not is_enough(made, leave):
        return False
    leave = minimal(made, leave)
    for name, guarantee in guarantees.items():
        used = sum(gang.gpu_milli for gang in running if gang.queue == name)
        given = [gang.gpu_milli for gang in leave if gang.queue == name]
        if given and used - sum(given) + max(given) <= guarantee * 1000:
            return False
    return True


def minimal(made: World, leave: list[Gang]) -> list[Gang]:
    """Without those who could stay, the first first."""
    for gang in list(leave):
        fewer = [each for each in leave if each is not gang]
        leave = fewer if is_enough(made, fewer) else leave
    return leave


def is_enough(made: World, leave: list[Gang]) -> bool:
    state, demand = made.state, made.state.gangs["owner/main"].demand
    free = {node.name: state.capacity.free[n] for n, node in enumerate(state.topology.nodes)}
    for gang in leave:
        for each in gang.seats:
            free[each.node] |= each.gpus
    rooms: dict[str, int] = {}
    for name, mask in free.items():
        where = name[0] if demand.within else ""
        rooms[where] = rooms.get(where, 0) + mask.bit_count() // demand.task.gpus
    return max(rooms.values()) >= demand.tasks


# ---- feasible by construction ------------------------------------------------------------------------------------

CROWDS, OWNERS = 3, 6

#: Sizes of the gangs that run: (GPUs of a task, tasks).
RUNNING = {
    "one GPU": ((1, 1),),
    "any size": ((1, 1), (1, 1), (2, 1), (3, 1), (4, 1), (8, 1)),
    "several nodes": ((1, 1), (1, 1), (1, 2), (2, 1), (2, 2), (4, 1)),
}


class Crowd:
    """A full cluster of borrowers in five queues, of any depth. Guarantees are set so that one way of making room for
    an owner is just legal; the way itself is drawn at random, and nothing of the policy is used for it."""

    def __init__(self, seed: str, nodes: int, sizes: tuple[tuple[int, int], ...], idle: int = 0) -> None:
        self.rng = random.Random(seed)
        self.nodes = [f"n{n}" for n in range(nodes)]
        self.world = World().rack("n", nodes, 8)
        self.world.checks = False
        self.queues = self._tree()
        for name in self.queues:
            self.world.queue(name)
        self.free = {name: list(range(8)) for name in self.nodes}
        for node in self.rng.sample(self.nodes, idle):
            self.free[node].pop()
        self.idle = idle
        self.gangs: list[Gang] = []
        self._fill(sizes)
        self.paths = {
            name: ["/".join(name.split("/")[: i + 1]) for i in range(name.count("/") + 1)] for name in self.queues
        }
        self.used = self._sums(self.gangs)

    def _tree(self) -> list[str]:
        """Five queues in which gangs run, and the queues above them."""
        names: list[str] = []
        for letter in "abcde":
            above = [name for name in names if name.count("/") < 3]
            parent = self.rng.choice(above) if above and self.rng.random() < 0.6 else ""
            names.append(f"{parent}/{letter}" if parent else letter)
        return names

    def _fill(self, sizes: tuple[tuple[int, int], ...]) -> None:
        rng, number = self.rng, 0
        while any(self.free.values()):
            each, tasks = rng.choice(sizes) if number < 4 * len(self.nodes) else (1, 1)
            nodes = [name for name in rng.sample(self.nodes, len(self.nodes)) if len(self.free[name]) >= each][:tasks]
            if len(nodes) == tasks:
                seats = [seat(name, *(self.free[name].pop() for _ in range(each))) for name in nodes]
                cost = rng.choice((0, 1_000, 60_000))
                queue, demand = rng.choice(self.queues), demand_of(each, tasks)
                self.gangs.append(self.world.run(f"r{number}", queue, demand, seats, restart_cost_ms=cost))
            number += 1

    def _sums(self, gangs: list[Gang]) -> dict[str, int]:
        """What gangs hold in each queue and in those below it, in GPUs."""
        found = dict.fromkeys(self.queues, 0)
        for gang in gangs:
            for name in self.paths[gang.queue]:
                found[name] += gang.gpu_milli // 1000
        return found

    def ask(self, each: int, tasks: int) -> Gang:
        """An owner that wants this much, which is just feasible."""
        leave = self._way(each, tasks)
        given = self._sums(leave)
        left = {"": sum(self.used[name] for name in self.queues if "/" not in name) - each * tasks}
        for name in self.queues:
            self.world.queue(name)
        for name in self.queues:  # those above first: children never have more than their parent
            parent = name.rpartition("/")[0]
            largest = max([gang.gpu_milli // 1000 for gang in leave if name in self.paths[gang.queue]], default=1)
            more = self.rng.choice((0, 0, largest - 1, -3))  # the last victim may take it below; or there is some slack
            left[name] = max(0, min(self.used[name] - given[name] + more, left[parent]))
            left[parent] -= left[name]
            self.world.queue(name, guarantee=left[name])
        self.world.queue("owner", guarantee=each * tasks)
        if self.idle:
            self.world.queue("keeper", guarantee=self.idle, lend=0)
        return self.world.submit(f"owner{self.world.now}", "owner", demand_of(each, tasks))

    def _way(self, each: int, tasks: int) -> list[Gang]:
        """Some gangs that make room when they leave, without the GPUs that are idle."""
        rng, wanted = self.rng, dict.fromkeys(self.nodes, 0)
        leave: list[Gang] = []
        while tasks:
            name = rng.choice(self.nodes)
            here = [gang for gang in self.gangs if self._on([gang], name)]
            if self._on(here, name) < each * (wanted[name] + 1):
                continue
            wanted[name] += 1
            tasks -= 1
            more = [gang for gang in rng.sample(here, len(here)) if gang not in leave]
            for gang in list(more):
                fewer = [other for other in more if other is not gang]
                more = fewer if self._on([*leave, *fewer], name) >= each * wanted[name] else more
            leave += more
        return leave

    def _on(self, gangs: list[Gang], node: str) -> int:
        return sum(each.gpus.bit_count() for gang in gangs for each in gang.seats if each.node == node)

    def decided(self, gang: Gang) -> MakeRoom | Place | None:
        plan = self.world.policy(self.world.snapshot())
        found = [each for each in plan.decisions if each.gang == gang.id]
        return next((each for each in found if isinstance(each, MakeRoom | Place)), None)

    def is_legal(self, decision: MakeRoom | Place) -> bool:
        """Without the largest victim every queue that gives something still has more than its guarantee."""
        victims = decision.victims if isinstance(decision, MakeRoom) else ()
        gangs = [self.world.state.gangs[victim.gang] for victim in victims]
        for name in self.queues:
            given = [gang.gpu_milli // 1000 for gang in gangs if name in self.paths[gang.queue]]
            guarantee = dict(self.world.state.queues.queues[name].spec.guarantee).get("gpu_milli", 0) // 1000
            if given and self.used[name] - sum(given) + max(given) <= guarantee:
                return False
        return True


@pytest.mark.parametrize("idle", [0, 3], ids=["", "beside a queue that lends nothing"])
@pytest.mark.parametrize("nodes", [5, 10, 20, 60])
@pytest.mark.parametrize("sizes", RUNNING.values(), ids=RUNNING)
def test_what_is_just_feasible_is_served_in_any_tree(sizes, nodes, idle):
    denied = []
    for seed in range(CROWDS):
        crowd = Crowd(f"{nodes} {seed}", nodes, sizes, idle)
        for _ in range(OWNERS):
            each = crowd.rng.randint(1, 8)
            tasks = crowd.rng.randint(1, min(8, nodes * (8 // each) // 2))
            gang = crowd.ask(each, tasks)
            decision = crowd.decided(gang)
            if decision is None:
                denied.append((seed, each, tasks))
            else:
                assert crowd.is_legal(decision)
            crowd.world.take(commands.cancel(crowd.world.state, gang.job, crowd.world.now))
            crowd.world.wait(1)
    assert not denied


@pytest.mark.parametrize("tasks", [20, 40])
def test_what_is_not_feasible_is_denied_in_little_memory_however_many_sums_of_losses_there_are(tasks):
    crowd = Crowd("large", 100, RUNNING["one GPU"])
    asked = crowd.ask(5, tasks)
    crowd.world.take(commands.cancel(crowd.world.state, asked.job, crowd.world.now))
    crowd.world.queue("owner", guarantee=0)
    for name in [name for name in crowd.queues if "/" not in name]:
        stated = dict(crowd.world.state.queues.queues[name].spec.guarantee)["gpu_milli"] // 1000
        crowd.world.queue(name, guarantee=min(crowd.used[name], stated + 10))
    crowd.world.queue("owner", guarantee=5 * tasks)
    gang = crowd.world.submit("more", "owner", demand_of(5, tasks))
    tracemalloc.start()
    assert crowd.decided(gang) is None
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100 << 20
