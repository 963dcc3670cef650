"""What is owed to the world, derived from state alone."""

from corral.core import facts as f
from corral.core.apply import apply
from corral.core.commit import commit
from corral.core.effects import KillGang, StartGang, WarnGang, effects
from corral.core.engine import apply_all
from corral.core.intake import commands
from corral.core.model import Cause
from corral.core.state import State
from tests.world import World, demand_of


def world() -> World:
    return World().rack("a", 2).queue("team")


def test_nothing_is_owed_for_what_waits_runs_or_is_over():
    made = world()
    made.submit("waiting", held=True)
    made.run("running")
    made.down(made.run("over"))
    assert effects(made.state) == []


def test_a_placed_gang_is_owed_its_start_until_all_of_it_runs():
    made = world()
    gang = made.submit("j", demand=demand_of(tasks=2))
    made.cycle()
    assert effects(made.state) == [StartGang(gang.id, 1, gang.seats)]
    made.tell(f.TasksUp(gang.id, 1, 0b01))
    assert effects(made.state) == [StartGang(gang.id, 1, gang.seats)]
    made.tell(f.TasksUp(gang.id, 1, 0b10))
    assert effects(made.state) == []


def test_an_evicted_gang_is_owed_a_warning_then_an_end_then_nothing():
    made = world()
    gang = made.run("j", grace_ms=5_000)
    made.take(commands.requeue(made.state, "j", made.now))
    assert effects(made.state) == [WarnGang(gang.id, 1, Cause.REQUEUE, made.now + 5_000)]
    made.wait(5_000)
    assert effects(made.state) == [KillGang(gang.id, 1)]
    made.down(gang, 137)
    assert effects(made.state) == []


def test_an_effect_names_the_attempt_that_is_under_way():
    made = world()
    gang = made.run("j")
    made.down(gang, 85)
    made.cycle()
    assert effects(made.state) == [StartGang(gang.id, 2, gang.seats)]


def test_what_the_engine_hands_out_is_what_is_owed_for_the_gangs_it_touched():
    made = world()
    for name in ("first", "second"):
        gang = made.submit(name)
        applied = apply_all(made.state, commit(made.state, made.policy(made.snapshot()), made.now), made.now)
        assert applied.effects == [StartGang(gang.id, 1, gang.seats)]
    assert len(effects(made.state)) == 2


def test_after_a_restart_the_same_is_owed():
    made = world()
    made.submit("starting", demand=demand_of(tasks=2))
    made.cycle()
    made.run("leaving")
    made.take(commands.cancel(made.state, "leaving", made.now))
    again = State(made.state.settings)
    for event in made.journal:
        apply(again, event)
    assert effects(again) == effects(made.state) != []
