"""What is closed in a plan is closed by a verdict, at the granularity at which it was passed."""

from corral.core.plan import Behind, NoSeats, PartKept
from corral.core.queues.quota import Shortfall
from corral.policy.cycle.closures import Closures
from corral.policy.preemption.preemptor import Preemption, Preemptor
from tests.world import World, demand_of

HOUR_MS = 3_600_000
SHORT = Shortfall("limit", "team", "gpu_milli", 8_000, 8_000, 1_000)
PART = PartKept("large/main", "team", "", 0)


def made() -> tuple[World, Closures]:
    world = World().rack("a", 1).queue("team").queue("other")
    for queue in ("team", "other"):
        world.submit(f"{queue}-short", queue, demand_of(1), time_limit_ms=HOUR_MS)
        world.submit(f"{queue}-long", queue, demand_of(1), time_limit_ms=3 * HOUR_MS)
        world.submit(f"{queue}-large", queue, demand_of(8), time_limit_ms=HOUR_MS)
    draft = world.snapshot().draft()
    return world, Closures(draft, Preemptor(draft, Preemption(causes=())))


def closed(world: World, closures: Closures) -> dict[str, object]:
    """By job, the verdicts on those that are closed."""
    verdicts = {gang.job: closures.why(gang) for gang in world.state.gangs.values()}
    for gang in world.state.gangs.values():
        is_open = gang.id not in closures.gangs and closures.is_open(world.state.backlog.entry(gang))
        assert is_open == (verdicts[gang.job] is None)
    return {job: verdict for job, verdict in verdicts.items() if verdict is not None}


def test_nothing_is_closed_at_first():
    assert not closed(*made())


def test_a_demand_is_closed_in_all_queues_for_runs_of_a_length():
    world, closures = made()
    closures.close(world.state.gangs["team-long/main"], NoSeats.ALL_RESERVED, 2 * HOUR_MS)
    assert closed(world, closures) == dict.fromkeys(["team-long", "other-long"], NoSeats.ALL_RESERVED)


def test_all_is_closed_when_every_demand_is():
    world, closures = made()
    closures.close(world.state.gangs["team-long/main"], NoSeats.NONE_FREE)
    assert not closures.is_all()
    closures.close_class(world.state.gangs["team-large/main"], NoSeats.NONE_FREE)
    closures.close_demands(world.state.backlog.demands.keys(), NoSeats.NONE_FREE)
    assert closures.is_all()
    assert len(closed(world, closures)) == 6


def test_the_most_specific_verdict_is_told():
    world, closures = made()
    gang = world.state.gangs["team-long/main"]
    closures.close_demands(world.state.backlog.demands.keys(), NoSeats.NONE_FREE)
    closures.close_in_bucket(gang, SHORT)
    assert closed(world, closures)["team-short"] == closed(world, closures)["team-long"] == SHORT
    closures.close_entry(gang, PART)
    assert closed(world, closures)["team-long"] == PART
    closures.skip(gang, NoSeats.NONE_CLOSE)
    assert closed(world, closures)["team-long"] == NoSeats.NONE_CLOSE
    assert closed(world, closures)["other-long"] == NoSeats.NONE_FREE


def test_what_a_bound_of_a_queue_closed_is_open_again_when_the_queue_has_less():
    world, closures = made()
    closures.close_for_quota(world.state.gangs["team-short/main"], SHORT, 0)
    closures.close_for_part(world.state.gangs["team-large/main"], PART, 0)
    closures.skip(world.state.gangs["other-large/main"], NoSeats.NONE_FREE)
    assert list(closed(world, closures).values()) == [SHORT, SHORT, PART, NoSeats.NONE_FREE]
    closures.reopen(["other"])
    assert len(closed(world, closures)) == 4
    closures.reopen(["team"])
    assert closed(world, closures) == {"other-large": NoSeats.NONE_FREE}


def test_what_had_no_turn_is_closed_by_the_verdict_on_the_rest():
    world, closures = made()
    gang = world.state.gangs["team-short/main"]
    closures.skip(gang, NoSeats.NONE_FREE)
    closures.close_rest(Behind(gang.id))
    verdicts = [closures.why(each) for each in world.state.gangs.values()]
    assert verdicts == [NoSeats.NONE_FREE, *[Behind(gang.id)] * 5]
