"""Limits per GPU model: a gang that takes any model is placed, and promised a start, on those its queue may have."""

import random
from itertools import product

import pytest

from corral.core.cluster.resources import amounts
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.policy.explain.reasons import OverLimit
from tests.world import World, demand_of, node_spec, seat


def mixed(h100: int = 1, a100: int = 1, gpus: int = 2, **limits: int) -> World:
    """Nodes of two models; the limits of the queue are in GPUs of a model."""
    made = World().rack("a", a100, gpus, model="A100").rack("h", h100, gpus, model="H100")
    limit = amounts({f"gpu_milli:{name}": 1000 * count for name, count in limits.items()})
    return made.queue("team", limit=limit).queue("other")


def add_node(made: World, name: str, rack: str, model: str, gpus: int = 1) -> None:
    made.take(commands.add_node(made.state, node_spec(name, gpus, (rack,), model=model), made.now))


def nodes(gang) -> list[str]:
    return [each.node for each in gang.seats]


def test_where_the_better_fit_is_barred_the_other_model_is_taken():
    """The H100 with one GPU free is the tighter place, and is not for this queue."""
    made = mixed(H100=0)
    made.run("x", "other", seats=[seat("h0", 0)])
    gang = made.submit("any")
    made.cycle()
    assert nodes(gang) == ["a0"]


def test_a_gang_takes_of_each_model_what_its_queue_may_have_of_it():
    made = mixed(gpus=4, H100=1)
    made.run("x", "other", demand_of(3), seats=[seat("a0", 0, 1, 2)])
    gang = made.submit("pair", demand=demand_of(1, 2))
    made.cycle()
    assert sorted(nodes(gang)) == ["a0", "h0"]


def test_within_a_rack_the_models_of_that_rack_count():
    made = World().rack("h", 1, 4, model="H100").rack("m", 1, 1, model="H100")
    add_node(made, "m1", "m", "A100")
    made.queue("team", limit=amounts({"gpu_milli:H100": 1000}))
    gang = made.submit("pair", demand=demand_of(1, 2, within="rack"))
    made.cycle()
    assert sorted(nodes(gang)) == ["m0", "m1"]


def test_a_start_is_promised_on_a_model_that_the_queue_may_have():
    """The H100s are free first, and are not for this queue."""
    made = mixed(H100=0)
    made.run("soon", "other", demand_of(2), seats=[seat("h0", 0, 1)], time_limit_ms=100_000, grace_ms=0)
    made.run("late", "other", demand_of(2), seats=[seat("a0", 0, 1)], time_limit_ms=500_000, grace_ms=0)
    made.submit("any", demand=demand_of(2))
    promised = made.cycle().reservations
    assert [(each.at_ms - made.now, [s.node for s in each.seats]) for each in promised] == [(500_000, ["a0"])]


def test_others_use_what_is_not_promised_to_a_gang_that_may_not_have_it():
    made = mixed(H100=0)
    made.run("half", "other", demand_of(1), seats=[seat("h0", 0)], time_limit_ms=100_000, grace_ms=0)
    made.run("late", "other", demand_of(2), seats=[seat("a0", 0, 1)], time_limit_ms=500_000, grace_ms=0)
    made.submit("any", demand=demand_of(2))
    small = made.submit("small", "other", demand_of(1))
    made.cycle()
    assert small.holds_seats


def test_what_one_queue_may_not_have_of_a_model_others_who_want_the_same_still_get():
    made = mixed(H100=0)
    made.run("late", "other", demand_of(2), seats=[seat("a0", 0, 1)], time_limit_ms=500_000, grace_ms=0)
    for i in range(3):
        made.submit(f"barred{i}", demand=demand_of(2))
    free = made.submit("free", "other", demand_of(2))
    made.cycle()
    assert nodes(free) == ["h0"]


def test_a_gang_that_may_have_no_model_is_promised_nothing_and_told_why():
    made = mixed(H100=1, A100=1)
    made.run("x", "team", seats=[seat("a0", 0)])
    made.run("y", "team", seats=[seat("h0", 0)])
    made.submit("any")
    assert not made.cycle().reservations
    hold = made.hold("any/main")
    assert any(isinstance(each, OverLimit) for each in hold.reasons)


@pytest.mark.parametrize(("free", "expected"), [(1, ["gpu_milli", "gpu_milli:H100"]), (2, ["gpu_milli"])])
def test_a_limit_of_a_model_is_named_beside_another_limit_unless_another_model_has_room(free, expected):
    made = World().rack("a", free, 1, model="A100").rack("h", 1, 1, model="H100")
    made.queue("team", limit=amounts({"gpu_milli": 1000, "gpu_milli:H100": 0}))
    made.run("x", "team", seats=[seat("a0", 0)])
    gang = made.submit("any")
    assert [each.name for each in made.hold(gang.id).reasons if isinstance(each, OverLimit)] == expected


def test_room_is_made_on_a_model_that_the_queue_may_have():
    """The victim on the H100 is the cheaper one, and would leave in vain."""
    made = mixed(H100=0, gpus=1)
    made.run("dear", "other", seats=[seat("a0", 0)])
    made.wait(100_000)
    made.run("cheap", "other", seats=[seat("h0", 0)])
    gang = made.submit("any", priority=5)
    made.cycle()
    assert [each.node for each in gang.claim] == ["a0"]


def test_room_is_made_by_its_own_queue_where_that_gives_back_what_the_model_lacks():
    made = mixed(H100=1, A100=0, gpus=1)
    made.run("x", "other", seats=[seat("a0", 0)])
    low = made.run("low", "team", seats=[seat("h0", 0)])
    gang = made.submit("high", priority=5)
    made.cycle()
    assert ([each.node for each in gang.claim], low.eviction is not None) == (["h0"], True)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_free_a_gang_starts_if_and_only_if_some_choice_of_gpus_is_allowed(seed):
    """Against trying every way to spread the tasks over the nodes."""
    rng = random.Random(seed)
    made = World()
    for n in range(rng.randint(1, 4)):
        add_node(made, f"n{n}", rng.choice("ab"), rng.choice(("A100", "H100", "T4")), rng.randint(1, 3))
    limits = {name: rng.randint(0, 3) for name in ("A100", "H100", "T4") if rng.random() < 0.8}
    made.queue("team", limit=amounts({f"gpu_milli:{name}": 1000 * count for name, count in limits.items()}))
    each, tasks = rng.randint(1, 2), rng.randint(1, 3)
    within = rng.choice(("", "rack"))
    demand = demand_of(each, tasks, within=within)
    answer = made.ask("any", demand=demand)
    expected = _is_possible(made, limits, each, tasks, within)
    if isinstance(answer, Refusal):
        assert not expected
        return
    gang = made.submit("any", demand=demand)
    made.cycle()
    assert gang.holds_seats is expected


def _is_possible(made: World, limits: dict[str, int], each: int, tasks: int, within: str) -> bool:
    specs = [node.spec for node in made.state.nodes.values()]
    for counts in product(*(range(len(spec.gpus) // each + 1) for spec in specs)):
        if sum(counts) != tasks or (within and len({s.path for s, c in zip(specs, counts, strict=True) if c}) > 1):
            continue
        used: dict[str, int] = {}
        for spec, count in zip(specs, counts, strict=True):
            used[spec.gpus[0].model] = used.get(spec.gpus[0].model, 0) + count * each
        if all(used.get(model, 0) <= limit for model, limit in limits.items()):
            return True
    return False
