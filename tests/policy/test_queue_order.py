"""Who goes first between queues: rights, priority and share count where two queues part, and depth never counts."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from corral.core.cluster.resources import GPU_MILLI, amounts
from corral.core.model import Gang, GangState, QueueSpec
from corral.core.plan import NoSeats, Place
from corral.core.queues.quota import ROOT, QueueTree
from corral.core.snapshot import Draft
from corral.policy.backfill.pools import Pools
from corral.policy.cycle.closures import Closures
from corral.policy.cycle.fairness import Shares
from corral.policy.cycle.order import ByPriorityAndShare
from corral.policy.cycle.walk import Walk
from corral.policy.preemption.preemptor import Preemption, Preemptor
from tests.world import World, demand_of, state_of

HOUR_MS = 3_600_000
RUN_MS = 600_000


def one_gpu(*queues: str) -> World:
    made = World().rack("a", 1, 1)
    for name in queues:
        made.queue(name)
    return made


@pytest.mark.parametrize("deep", ["org/b", "org/x/b", "org/x/y/b"])
def test_a_higher_priority_in_a_deeper_queue_goes_before_a_lower_one_in_a_shallow_queue(deep):
    parts = deep.split("/")
    made = one_gpu("c", *("/".join(parts[:i]) for i in range(1, len(parts) + 1)))
    low, high = made.submit("low", "c"), made.submit("high", deep, priority=100)
    made.cycle()
    assert (state_of(low), state_of(high)) == (GangState.WAITING, GangState.STARTING)


def test_a_higher_priority_in_a_shallow_queue_goes_before_a_lower_one_in_a_deeper_queue():
    made = one_gpu("c", "org", "org/b")
    low, high = made.submit("low", "org/b"), made.submit("high", "c", priority=100)
    made.cycle()
    assert (state_of(low), state_of(high)) == (GangState.WAITING, GangState.STARTING)


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        (("c", "org/b"), {"c": 60, "org/b": 60}),
        (("c", "org/x/y/b"), {"c": 60, "org/x/y/b": 60}),
        (("c", "org/a", "org/b"), {"c": 60, "org/a": 30, "org/b": 30}),
        (("org", "org/a"), {"org": 60, "org/a": 60}),
        (("c", "org", "org/a", "org/x/b"), {"c": 60, "org": 20, "org/a": 20, "org/x/b": 20}),
    ],
    ids=lambda each: " ".join(each),
)
def test_endless_equal_load_is_shared_equally_at_every_level_however_deep_a_queue_lies(queues, expected):
    every = {"/".join(name.split("/")[:i]) for name in queues for i in range(1, name.count("/") + 2)}
    made = one_gpu(*sorted(every))
    made.checks = False
    served = dict.fromkeys(queues, 0)
    for at in range(120):  # less than a day, so that nobody is overdue
        for name in queues:
            made.submit(f"{name}-{at}".replace("/", "."), name, time_limit_ms=RUN_MS)
        plan = made.cycle()
        (gang,) = [made.state.gangs[each.gang] for each in plan.decisions if isinstance(each, Place)]
        served[gang.queue] += 1
        made.up(gang)
        made.wait(RUN_MS)
        made.down(gang)
    assert all(abs(served[name] - expected[name]) <= 3 for name in queues), served


def test_what_a_queue_has_waiting_itself_competes_as_one_more_child_of_it():
    made = one_gpu("org", "org/a")
    made.wait(1)
    own = made.run("own", "org")
    made.wait(HOUR_MS)
    made.down(own)
    again, other = made.submit("again", "org"), made.submit("other", "org/a")
    made.cycle()
    assert (state_of(again), state_of(other)) == (GangState.WAITING, GangState.STARTING)


def test_an_owner_goes_before_a_more_important_relative_and_its_parent_competes_with_that_owner():
    """The guarantee wins: a third queue may come before the more important relative, which is behind the owner."""
    made = World().rack("a", 1, 2).queue("org").queue("org/a", guarantee=1).queue("org/b").queue("c")
    made.run("borrower", "org/b")  # so that org has all that it is guaranteed
    made.submit("owner", "org/a")
    made.submit("loud", "org/b", priority=100)
    made.submit("third", "c", priority=50)
    walk, closures = walk_of(made.snapshot().draft())
    assert [each.job for each in in_turn(walk, closures)] == ["third", "owner", "loud"]


def test_in_one_queue_who_is_within_the_guarantee_goes_first_for_it_could_take_back_what_others_get_before_it():
    made = World().rack("a", 1, 4).queue("q", guarantee=2).queue("other")
    large, small = made.submit("large", "q", demand_of(gpus=4)), made.submit("small", "q", demand_of(gpus=1))
    loud = made.submit("loud", "other", demand_of(gpus=4), priority=1)
    made.cycle()
    assert [state_of(gang) for gang in (small, large, loud)] == [
        GangState.STARTING,
        GangState.WAITING,
        GangState.WAITING,
    ]


def test_a_gang_that_wants_cpus_alone_is_an_owner_of_the_cpus_its_queue_is_guaranteed():
    made = World().rack("a", 1, 1, cpu_milli=4_000).queue("loud").queue("mine", guarantee=amounts({"cpu_milli": 4_000}))
    wanted = demand_of(gpus=0, amounts=amounts({"cpu_milli": 4_000}))
    other, owner = made.submit("other", "loud", wanted, priority=9), made.submit("owner", "mine", wanted)
    made.cycle()
    assert (state_of(other), state_of(owner)) == (GangState.WAITING, GangState.STARTING)


# ---- the walk against the rule, said as plainly as it can be --------------------------------------------------


@pytest.mark.parametrize("seed", range(60))
def test_the_walk_gives_turns_in_the_order_of_the_rule_also_while_it_is_charged_and_lines_are_closed(seed):
    rng = random.Random(seed)
    made = a_tree(rng)
    draft, state = made.snapshot().draft(), made.state
    walk, closures = walk_of(draft)
    closed, passed = set(), set()
    waiting = {gang.id: gang for gang in state.gangs.values() if gang.state is GangState.WAITING}
    shares = Shares(draft)
    while (turn := walk.next()) is not None:
        left = [gang for gang in waiting.values() if gang.demand not in closed]
        unseated = [gang for gang in state.gangs.values() if gang.id in passed or gang.demand in closed]
        unseated = [gang for gang in unseated if gang.state is GangState.WAITING and gang.id not in draft.served]
        rule = Rule(draft.queues, shares, made.now, unseated)
        assert turn.id == rule.first(left).id, f"seed {seed}"
        gang = waiting.pop(turn.id)
        chance = rng.random()
        if chance < 0.4:
            charge = tuple(gang.demand.charge(gang.demand.smallest).items())
            draft.queues.charge(gang.queue, gang.user, charge, 1)
            draft.served[gang.id] = None
            shares.charged(gang.queue, gang.user)
            walk.served(gang)
        elif chance < 0.5:
            closed.add(gang.demand)
            closures.close(gang, NoSeats.NONE_FREE)
        else:
            passed.add(gang.id)
            closures.skip(gang, NoSeats.NONE_FREE)
    assert all(gang.demand in closed for gang in waiting.values())


def a_tree(rng: random.Random) -> World:
    made = World().rack("a", 1, 16)
    names: list[str] = []
    for at in range(rng.randint(2, 8)):
        parent = rng.choice(["", *(name for name in names if name.count("/") < 3)])
        name = f"{parent}/q{at}" if parent else f"q{at}"
        made.state.queues.put(made_spec(name, rng))
        names.append(name)
    made.checks = False
    for at in range(rng.randint(0, 6)):
        made.submit(f"past{at}", rng.choice(names), demand_of(gpus=rng.choice((1, 2))), rng.choice("uv"))
    made.cycle()
    made.wait(rng.choice((0, HOUR_MS, 30 * HOUR_MS)))
    for at in range(rng.randint(3, 16)):
        demand = demand_of(gpus=rng.choice((1, 2, 4, 8)))
        made.submit(f"j{at}", rng.choice(names), demand, rng.choice("uv"), priority=rng.choice((0, 0, 5)))
    return made


def made_spec(name: str, rng: random.Random) -> QueueSpec:
    guarantee = rng.choice((None, 0, 1, 2, 4, 8))
    stated = () if guarantee is None else amounts({GPU_MILLI: guarantee * 1000})
    return QueueSpec(name=name, guarantee=stated, weight=rng.randint(1, 3))


def walk_of(draft: Draft) -> tuple[Walk, Closures]:
    room = Preemptor(draft, Preemption(causes=()))
    closures = Closures(draft, room)
    return Walk(draft, ByPriorityAndShare(), room, closures, Pools(draft.state.topology)), closures


def in_turn(walk: Walk, closures: Closures) -> Iterator[Gang]:
    while (gang := walk.next()) is not None:
        yield gang
        closures.skip(gang, NoSeats.NONE_FREE)


class Rule:
    """The order of gangs, as the documents state it. ``unseated``: gangs that had their turn and found no seats."""

    def __init__(self, tree: QueueTree, shares: Shares, now_ms: int, unseated: list[Gang]) -> None:
        self.tree, self.shares, self.now_ms, self.unseated = tree, shares, now_ms, unseated

    def first(self, waiting: list[Gang]) -> Gang:
        found = self.first_below(waiting, ROOT)
        assert found is not None
        return found

    def first_below(self, waiting: list[Gang], queue: str, only_owners: bool = False) -> Gang | None:
        """Which of these gangs a queue offers, by its own order. A child goes first with its first owner; with its
        first gang of all, if that one is more important and would go first, too."""
        own = [gang for gang in waiting if gang.queue == queue]
        first = min(own, key=lambda g: (-g.priority, self.shares.user(queue, g.user), g.user, g.rank), default=None)
        below = [gang for gang in waiting if gang.queue != queue and queue in self.tree.path(gang.queue)]
        if not below:
            return first
        entrants = [] if first is None else [((True, -first.priority, self.shares.own(queue), queue + "/"), first)]
        others: dict[tuple[bool, int, int, str], Gang] = {}  # what a child with owners would offer without them
        for child in self.tree.queues[queue].children:
            here = [gang for gang in below if child in self.tree.path(gang.queue)]
            owners = [gang for gang in here if is_owner(self.tree, child, gang, self.now_ms)]
            for gangs in (owners, here) if owners else (here,):
                gang = self.first_below(gangs, child, only_owners or gangs is owners)
                if gang is not None:
                    left = None if only_owners or gangs is owners else waiting
                    key = (gangs is not owners, -gang.priority, self.share(child, gang, left), child)
                    if gangs is here and owners:
                        others[key] = gang
                    else:
                        entrants.append((key, gang))
        (key, gang), *rest = sorted(entrants, key=lambda each: each[0])
        for other, instead in others.items():
            if not key[0] and other[3] == key[3] and other[1] < key[1] and all(other < each for each, _ in rest):
                return instead
        return gang

    def share(self, queue: str, gang: Gang, left: list[Gang] | None) -> int:
        """The share of a queue that offers this gang: as if the children that were before the one it comes from, and
        found no seats, had used as much. ``left``: the gangs that may still have a turn; None: only shares count."""
        path, plain = self.tree.path(gang.queue), self.shares.queue(queue)
        at = path.index(queue)
        children = [*self.tree.queues[queue].children]
        is_own = gang.queue == queue
        if left is None or not any(self.gangs_of(child, [*left, *self.unseated]) for child in children):
            return plain
        sender = queue + "/" if is_own else path[at + 1]
        level, more = self.shares.own(queue), 0
        if not is_own:
            level = self.share(sender, gang, left)
            more = (level - self.shares.queue(sender)) * self.tree.queues[sender].spec.weight
        is_owner_there = not is_own and is_owner(self.tree, sender, gang, self.now_ms)
        for child in () if is_owner_there else (*children, queue + "/"):
            unseated = [each for each in self.gangs_of(child, self.unseated) if each.priority >= gang.priority]
            if child != sender and unseated and not self.gangs_of(child, left):
                had = self.shares.queue(child) if child in children else self.shares.own(queue)
                weight = self.tree.queues[child].spec.weight if child in children else 1
                more += max(0, level - had) * weight
        return plain + more // self.tree.queues[queue].spec.weight

    def gangs_of(self, name: str, gangs: list[Gang]) -> list[Gang]:
        """Of these gangs, those of a queue and the queues below it; of the queue alone, if its name ends with "/"."""
        if name.endswith("/"):
            return [gang for gang in gangs if gang.queue == name[:-1]]
        return [gang for gang in gangs if name in self.tree.path(gang.queue)]


def is_owner(tree: QueueTree, queue: str, gang: Gang, now_ms: int) -> bool:
    path = tree.path(gang.queue)
    return queue in path and all(within(tree, name, gang, now_ms) for name in path[path.index(queue) :])


def within(tree: QueueTree, queue: str, gang: Gang, now_ms: int) -> bool:
    guarantee = tree.guarantee(queue, GPU_MILLI, now_ms)
    asked = gang.demand.task.gpus * gang.demand.smallest * 1000
    return guarantee is not None and tree.queues[queue].used.get(GPU_MILLI, 0) + asked <= guarantee
