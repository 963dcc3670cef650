"""A guarantee is never denied because there are many who could be asked, or because the first choice was not legal.

What is feasible is found here in another way: where all who run have one GPU, by flows from queues to nodes; else by
letting everybody leave and taking back at random.
"""

from __future__ import annotations

import random
from itertools import product

import pytest

from corral.core.cluster.resources import Seat
from corral.core.model import Gang
from corral.core.plan import MakeRoom
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
