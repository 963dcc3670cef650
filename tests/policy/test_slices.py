"""Slices of GPUs under quota: a queue is charged for the slice, before it sits down as well as after."""

from corral.core.cluster.resources import GPU_MILLI, amounts
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.policy.explain.reasons import OverLimit
from tests.world import World, demand_of, gpu_amounts, node_spec, seat

PART = demand_of(gpus=0, slice_mib=10_000)  # an eighth of a GPU of 80,000 MiB


def test_eight_slices_of_an_eighth_run_under_a_limit_of_one_gpu():
    made = World().rack("a", 1, 2).queue("team", limit=1)
    gangs = [made.submit(f"s{i}", demand=PART) for i in range(9)]
    made.cycle()
    assert [gang.holds_seats for gang in gangs] == [True] * 8 + [False]


def test_a_gang_of_eight_slices_of_an_eighth_is_accepted_under_a_limit_of_one_gpu():
    made = World().rack("a", 1, 2).queue("team", limit=1)
    assert not isinstance(made.ask("s", demand=demand_of(gpus=0, slice_mib=10_000, tasks=8)), Refusal)
    assert isinstance(made.ask("t", demand=demand_of(gpus=0, slice_mib=10_000, tasks=9)), Refusal)


def test_a_slice_that_is_a_small_part_of_a_large_gpu_only_goes_to_a_large_one():
    """An eighth of the large GPU is left of the limit; of the small one, which is the tighter place, it would be a
    quarter."""
    made = World().queue("team", limit=amounts({GPU_MILLI: 125}))
    made.take(commands.add_node(made.state, node_spec("a0", 1, ("a",), model="A100", vram_mib=40_000), made.now))
    made.take(commands.add_node(made.state, node_spec("a1", 1, ("a",), vram_mib=80_000), made.now))
    gang = made.submit("s", demand=PART)
    made.cycle()
    assert [each.node for each in gang.seats] == ["a1"]


def test_an_owner_of_one_gpu_takes_it_back_for_slices_beside_those_it_has():
    made = World().rack("a", 1, 2).queue("owner", guarantee=1).queue("other")
    made.run("mine", "owner", PART, [seat("a0", 0, slice_mib=10_000)])
    made.run("more", "owner", demand_of(gpus=0, slice_mib=70_000), [seat("a0", 0, slice_mib=70_000)])
    made.down(made.state.gangs["more/main"])
    full = made.run("theirs", "other", demand_of(gpus=0, slice_mib=70_000), [seat("a0", 0, slice_mib=70_000)])
    made.run("rest", "other", demand_of(gpus=1), [seat("a0", 1)])
    made.submit("wanted", "owner", demand_of(gpus=0, slice_mib=20_000))
    made.cycle()
    gone = [gang.id for gang in made.state.stopping.values()]
    assert gone, f"{full.id} or the other borrower must make room"


def test_why_a_slice_waits_names_the_part_of_a_gpu_it_would_be_charged():
    made = World().rack("a", 1, 2).queue("team", limit=amounts({GPU_MILLI: 1_050}))
    for i in range(9):
        made.submit(f"s{i}", demand=PART)
    made.cycle()
    reasons = made.hold("s8/main").reasons
    assert [(each.used, each.asked) for each in reasons if isinstance(each, OverLimit)] == [(1_000, 125)]


def test_advice_to_raise_a_limit_for_a_slice_raises_it_by_the_slice():
    made = World().rack("a", 1, 2).queue("team", limit=1)
    for i in range(9):
        made.submit(f"s{i}", demand=PART)
    made.cycle()
    assert [each.value for each in made.changes("s8/main") if each.field == "queue.limit"] == ["1125"]


def test_limits_in_gpus_are_as_before_for_whole_gpus():
    made = World().rack("a", 1, 2).queue("team", limit=gpu_amounts(1))
    gangs = [made.submit(f"w{i}", demand=demand_of(1)) for i in range(2)]
    made.cycle()
    assert [gang.holds_seats for gang in gangs] == [True, False]
