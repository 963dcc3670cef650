"""Claims that can no longer become seats: who loses one has its turn again at once, before those behind it."""

from msgspec.structs import replace

from corral.core import events as e
from corral.core.commit import commit
from corral.core.intake import commands
from corral.core.model import GangState
from corral.core.plan import DropClaim, Place
from tests.world import World, demand_of, seat


def claimed() -> World:
    """One node of two is claimed by an important gang; who leaves it still sits there."""
    made = World().rack("a", 2, 2).queue("team")
    made.run("x", demand=demand_of(2), seats=[seat("a0", 0, 1)])
    other = made.run("y", demand=demand_of(2), seats=[seat("a1", 0, 1)], priority=9)
    made.submit("important", demand=demand_of(2), priority=5)
    made.cycle()
    assert made.state.gangs["important/main"].claim == (seat("a0", 0, 1),)
    made.down(other)
    made.submit("lesser", demand=demand_of(2))
    return made


def test_who_loses_its_claim_goes_before_those_behind_it():
    """The node it had claimed is drained while another becomes free: that one is not for the lesser one."""
    made = claimed()
    made.take(commands.drain(made.state, "a0", made.now))
    plan = made.cycle()
    assert [(type(each), each.gang) for each in plan.decisions[:2]] == [
        (DropClaim, "important/main"),
        (Place, "important/main"),
    ]
    gangs = made.state.gangs
    assert gangs["important/main"].seats == (seat("a1", 0, 1),)
    assert gangs["lesser/main"].state is GangState.WAITING


def test_a_plan_that_drops_a_claim_leaves_the_line_as_it_was():
    made = claimed()
    made.take(commands.drain(made.state, "a0", made.now))
    before = [list(line) for line in made.state.backlog.entries()]
    plan = made.policy(made.snapshot())
    assert [list(line) for line in made.state.backlog.entries()] == before
    assert replace(plan, why=None) == replace(made.policy(made.snapshot()), why=None)


def test_who_loses_its_claim_may_have_others_make_room_in_the_same_plan():
    made = claimed()
    made.submit("small", demand=demand_of(1))
    made.run("z", demand=demand_of(2), seats=[seat("a1", 0, 1)])
    made.take(commands.drain(made.state, "a0", made.now))
    made.cycle()
    assert made.state.gangs["important/main"].claim == (seat("a1", 0, 1),)


def test_a_plan_that_is_late_drops_a_claim_or_does_nothing():
    made = claimed()
    made.take(commands.drain(made.state, "a0", made.now))
    plan = made.policy(made.snapshot())
    made.take(commands.undrain(made.state, "a0", made.now))
    made.down(made.state.gangs["x/main"])
    made.cycle()
    assert made.state.gangs["important/main"].holds_seats
    names = [each.gang for each in commit(made.state, plan, made.now) if isinstance(each, e.GangEvent)]
    assert "important/main" not in names
