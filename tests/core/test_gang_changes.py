"""What people do to some elements of an array, or to one role: exactly those change, and the others go on."""

import pytest

from corral.core import facts as f
from corral.core.cluster.resources import amounts
from corral.core.intake import commands, gang_changes
from corral.core.intake.refusal import Refusal
from corral.core.model import Gang, GangSpec, GangState, JobSpec
from tests.core.test_commands import code
from tests.world import World, demand_of

W, R, X, GONE = GangState.WAITING, GangState.STARTING, GangState.STOPPING, GangState.CANCELLED


def array_of(size: int, gpus: int = 8, nodes: int = 1, **terms) -> World:
    """An array of which as many elements run as there are nodes."""
    made = World().rack("a", nodes, cpu_milli=8000).queue("team")
    spec = JobSpec(queue="team", gangs=(GangSpec(demand_of(gpus=gpus)),), array=tuple(range(size)), **terms)
    made.take(commands.submit(made.state, "j", spec, "ann", made.now))
    return made


def element(made: World, index: int) -> Gang:
    return made.state.gangs[f"j[{index}]/main"]


def states(made: World) -> list[GangState]:
    return [made.state.gangs[name].state for name in made.state.jobs["j"].gangs]


def test_a_waiting_element_is_cancelled_and_the_others_are_not():
    made = array_of(3)
    made.take(gang_changes.cancel(made.state, ["j[1]/main"], made.now))
    assert states(made) == [W, GONE, W]
    assert not made.state.jobs["j"].cancelled


def test_a_running_element_is_cancelled_with_grace_and_not_retried():
    made = array_of(2, nodes=2, grace_ms=1000)
    made.cycle()
    made.up(element(made, 0))
    made.up(element(made, 1))
    made.take(gang_changes.cancel(made.state, ["j[1]/main"], made.now))
    assert states(made) == [GangState.RUNNING, X]
    made.down(element(made, 1), 143)
    assert states(made) == [GangState.RUNNING, GONE]


def test_an_element_that_is_preempted_when_it_is_cancelled_does_not_come_back():
    made = array_of(1)
    made.cycle()
    made.up(element(made, 0))
    made.take(commands.requeue(made.state, "j", made.now))
    made.take(gang_changes.cancel(made.state, ["j[0]/main"], made.now))
    made.down(element(made, 0), 143)
    assert states(made) == [GONE]


def test_cancelling_at_once_ends_the_grace_period():
    made = array_of(1, grace_ms=60_000)
    made.cycle()
    made.up(element(made, 0))
    made.take(gang_changes.cancel(made.state, ["j[0]/main"], made.now))
    assert not element(made, 0).grace_over
    made.take(gang_changes.cancel(made.state, ["j[0]/main"], made.now, at_once=True))
    assert element(made, 0).grace_over
    assert code(gang_changes.cancel(made.state, ["j[0]/main"], made.now, at_once=True)) == "job_over"


def test_a_held_element_lets_the_others_pass():
    made = array_of(2)
    made.take(gang_changes.hold(made.state, ["j[0]/main"], made.now))
    made.cycle()
    assert states(made) == [W, R]
    made.take(gang_changes.release(made.state, ["j[0]/main"], made.now))
    assert not element(made, 0).blockers


def test_a_held_element_uses_no_slot_of_its_array():
    made = array_of(4, nodes=4, array_parallel=1)
    made.take(gang_changes.hold(made.state, ["j[0]/main", "j[1]/main"], made.now))
    made.cycle()
    assert states(made) == [W, W, R, W]
    made.take(gang_changes.release(made.state, ["j[0]/main"], made.now))
    made.cycle()
    assert states(made) == [W, W, R, W]  # the only slot is in use
    made.down(element(made, 2))
    made.cycle()
    assert states(made) == [R, W, GangState.SUCCEEDED, W]  # and this one is the next


def test_an_element_held_while_it_runs_gives_its_slot_up_when_it_is_requeued():
    made = array_of(2, nodes=2, array_parallel=1)
    made.cycle()
    made.up(element(made, 0))
    made.take(gang_changes.hold(made.state, ["j[0]/main"], made.now))
    made.take(gang_changes.requeue(made.state, ["j[0]/main"], made.now))
    made.down(element(made, 0), 143)
    made.cycle()
    assert states(made) == [W, R]
    made.take(gang_changes.cancel(made.state, ["j[0]/main"], made.now))
    assert states(made) == [GONE, R]


def test_an_element_held_while_it_runs_may_still_succeed():
    made = array_of(2, nodes=2, array_parallel=1)
    made.cycle()
    made.up(element(made, 0))
    made.take(gang_changes.hold(made.state, ["j[0]/main"], made.now))
    made.down(element(made, 0))
    made.cycle()
    assert states(made) == [GangState.SUCCEEDED, R]


def test_releasing_one_element_of_a_held_array_leaves_the_others_held():
    made = array_of(3, nodes=3)
    made.take(commands.hold(made.state, "j", made.now))
    made.take(gang_changes.release(made.state, ["j[1]/main"], made.now))
    made.cycle()
    assert states(made) == [W, R, W]
    assert not made.state.jobs["j"].held
    made.take(commands.release(made.state, "j", made.now))
    made.cycle()
    assert states(made) == [R, R, R]


def test_holding_an_element_that_claims_seats_gives_the_claim_back():
    made = World().rack("a", 1).queue("team")
    made.run("low", demand=demand_of(gpus=8))
    spec = JobSpec(queue="team", gangs=(GangSpec(demand_of(gpus=8)),), array=(0, 1), priority=1)
    made.take(commands.submit(made.state, "j", spec, "ann", made.now))
    made.cycle()
    assert element(made, 0).claim
    made.take(gang_changes.hold(made.state, ["j[0]/main"], made.now))
    assert not element(made, 0).claim


def test_the_priority_of_an_element_orders_it_before_the_others_until_that_of_the_job_changes():
    made = array_of(3)
    made.take(gang_changes.change_priority(made.state, ["j[2]/main"], 5, made.now))
    made.cycle()
    assert states(made) == [W, W, R]
    assert made.state.jobs["j"].priority == 0
    made.take(commands.change_priority(made.state, "j", 2, made.now))
    assert [element(made, n).priority for n in range(3)] == [2, 2, 2]


def test_one_role_is_requeued_and_the_other_runs_on():
    made = World().rack("a", 2).queue("team")
    roles = tuple(GangSpec(demand_of(gpus=4), role=role) for role in ("trainer", "server"))
    made.take(commands.submit(made.state, "j", JobSpec(queue="team", gangs=roles), "ann", made.now))
    made.cycle()
    for name in made.state.jobs["j"].gangs:
        made.up(made.state.gangs[name])
    made.take(gang_changes.requeue(made.state, ["j/trainer"], made.now))
    assert states(made) == [X, GangState.RUNNING]


REFUSED = {
    "cancel": ("job_over", lambda s, g, now: gang_changes.cancel(s, g, now)),
    "hold": ("cannot_hold", lambda s, g, now: gang_changes.hold(s, g, now)),
    "release": ("not_held", lambda s, g, now: gang_changes.release(s, g, now)),
    "requeue": ("not_running", lambda s, g, now: gang_changes.requeue(s, g, now)),
    "priority": ("job_over", lambda s, g, now: gang_changes.change_priority(s, g, 1, now)),
}


@pytest.mark.parametrize(("expected", "change"), REFUSED.values(), ids=REFUSED)
def test_an_element_that_has_ended_is_refused(expected, change):
    made = array_of(2)
    made.take(gang_changes.cancel(made.state, ["j[0]/main"], made.now))
    answer = change(made.state, ["j[0]/main"], made.now)
    assert code(answer) == expected
    assert isinstance(answer, Refusal)
    assert answer.why.startswith("j[0] ")


def test_the_ceiling_of_the_queue_binds_elements_too():
    made = World().rack("a", 1).queue("small", priority_ceiling=3, limit=amounts({"gpu_milli": 8000}))
    spec = JobSpec(queue="small", gangs=(GangSpec(demand_of()),), array=(0, 1))
    made.take(commands.submit(made.state, "j", spec, "ann", made.now))
    assert code(gang_changes.change_priority(made.state, ["j[0]/main"], 4, made.now)) == "priority_too_high"


def test_a_lost_node_under_a_cancelled_element_does_not_bring_it_back():
    made = array_of(1)
    made.cycle()
    made.up(element(made, 0))
    made.take(gang_changes.cancel(made.state, ["j[0]/main"], made.now))
    made.tell(f.NodeGone("a0"))
    assert states(made) == [GONE]
