"""What could be asked for instead: what is offered to whom."""

import pytest

from corral.core.cluster.resources import amounts
from corral.core.intake import commands
from tests.world import World, demand_of, seat

HOUR = 3_600_000


def offers(world, gang):
    return [change.text for change in world.changes(gang.id)]


def halves(nodes):
    world = World().rack("a", nodes).queue("team")
    for i in range(nodes):
        world.run(f"r{i}", demand=demand_of(4), seats=[seat(f"a{i}", 0, 1, 2, 3)])
    return world


def test_smaller_pieces_where_the_room_is_in_pieces():
    world = halves(2)
    gang = world.submit("whole", demand=demand_of(8))
    assert offers(world, gang) == [
        "ask for 2 tasks of 4 instead of 1 of 8",
        "ask for 4 tasks of 2 instead of 1 of 8",
        "ask for 8 tasks of 1 instead of 1 of 8",
    ]


def test_fewer_tasks_where_there_is_room_for_some():
    world = halves(3)
    gang = world.submit("wide", demand=demand_of(4, 5))
    assert offers(world, gang) == ["ask for 3 tasks instead of 5"]


def test_another_place_or_another_model():
    world = World().rack("a", 1, model="A100").rack("b", 1).rack("c", 1).queue("team")
    for node in ("b0", "c0"):
        world.run(f"on-{node}", demand=demand_of(4), seats=[seat(node, 0, 1, 2, 3)])
    gang = world.submit("pair", demand=demand_of(4, 2, within="rack", models=("H100",)))
    assert offers(world, gang) == [
        "do without within rack",
        "accept other models than H100",
        "ask for 1 tasks instead of 2",
    ]


def test_a_higher_limit_of_the_queue():
    world = World().rack("a", 2).queue("team", limit=8)
    world.run("first", demand=demand_of(8))
    gang = world.submit("second", demand=demand_of(4))
    assert offers(world, gang) == ["raise limit of queue team to 12 GPUs"]


def test_less_of_what_is_short():
    world = World().rack("a", 1, cpu_milli=8000).queue("team")
    world.run("first", demand=demand_of(1, amounts=amounts({"cpu_milli": 6000})))
    gang = world.submit("second", demand=demand_of(1, amounts=amounts({"cpu_milli": 4000})))
    assert offers(world, gang) == ["ask for 2 CPUs for each task"]


def test_a_shorter_time_before_somebody_elses_start():
    world = World().rack("a", 2).queue("team")
    world.run("first", demand=demand_of(8), seats=[seat("a0", *range(8))], time_limit_ms=HOUR)
    world.submit("large", demand=demand_of(8, 2), time_limit_ms=HOUR)
    gang = world.submit("long", demand=demand_of(8), time_limit_ms=10 * HOUR)
    assert "limit its time to 59m" in offers(world, gang)  # who reads it a little later can still follow it


def test_a_release_where_nothing_else_is_missing():
    world = World().rack("a", 1).queue("team")
    gang = world.submit("job", held=True)
    assert offers(world, gang) == ["release it"]


@pytest.mark.parametrize("is_running", [True, False])
def test_nothing_is_offered_to_whoever_needs_nothing_or_cannot_be_helped(is_running):
    world = World().rack("a", 1).queue("team")
    first = world.run("first", demand=demand_of(8))
    second = world.submit("second", demand=demand_of(1))
    assert offers(world, first if is_running else second) == []


def test_asking_changes_nothing():
    world = halves(2)
    gang = world.submit("whole", demand=demand_of(8))
    before = (gang.profile, world.state.version, list(world.state.backlog.entry(gang)))
    offers(world, gang)
    assert (gang.profile, world.state.version, list(world.state.backlog.entry(gang))) == before


def tight(*behind: str) -> World:
    """Two of four GPUs are free; the first in line wants twice two of them, those behind it want two."""
    made = World().rack("a", 1, 4).queue("team")
    made.run("busy", demand=demand_of(2), seats=[seat("a0", 0, 1)], time_limit_ms=3_600_000, grace_ms=0)
    made.submit("first", demand=demand_of(2, 2), time_limit_ms=7_200_000)
    for name in behind:
        made.submit(name, demand=demand_of(2), time_limit_ms=7_200_000)
    made.cycle()
    return made


def fields(made: World, gang: str) -> set[str]:
    return {change.field for change in made.changes(gang)}


def test_what_would_help_only_at_the_old_place_in_line_is_not_advised():
    """Whoever asks for something else submits anew, and stands at the end."""
    assert "tasks" in fields(tight(), "first/main")
    assert "tasks" not in fields(tight("behind"), "first/main")


def test_following_the_advice_starts_the_job():
    made = tight()
    made.take(commands.cancel(made.state, "first", made.now))
    gang = made.submit("again", demand=demand_of(2, 1), time_limit_ms=7_200_000)
    made.cycle()
    assert gang.holds_seats
