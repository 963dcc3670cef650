"""Work that no queue will ever lend to is refused at submission; work that may run some day is accepted."""

import pytest

from corral.core import facts as f
from corral.core.intake import commands
from corral.core.intake.refusal import Refusal
from corral.core.model import GangSpec, JobSpec, QuotaChange
from tests.world import START_MS, World, demand_of, gpu_amounts


def site() -> World:
    """Eight GPUs, of which one queue lends none and another half of what it has."""
    made = World().rack("a", 2, 4).queue("keeps", guarantee=3, lend=0).queue("half", guarantee=2, lend=1)
    return made.queue("org").queue("org/team").queue("guest")


ASKED = {
    "as much as the others lend": ("guest", 4, True),
    "more than the others lend": ("guest", 5, False),
    "more than the others lend, from a queue further down": ("org/team", 5, False),
    "what an owner has and the others lend": ("keeps", 7, True),
    "more than an owner has and the others lend": ("keeps", 8, False),
    "all there is beside what one keeps": ("half", 5, True),
}


@pytest.mark.parametrize(("queue", "gpus", "is_accepted"), ASKED.values(), ids=ASKED.keys())
def test_whether_it_is_accepted(queue, gpus, is_accepted):
    answer = site().ask("j", queue, demand_of(1, gpus))
    assert isinstance(answer, Refusal) is not is_accepted
    if isinstance(answer, Refusal):
        assert (answer.code, answer.field) == ("never_lent", "queue")


def test_what_is_in_use_now_does_not_count():
    made = site()
    made.run("x", "keeps", demand_of(1, 3))
    made.run("y", "org/team", demand_of(1, 4))
    assert not isinstance(made.ask("j", "guest", demand_of(1, 4)), Refusal)


def test_a_node_that_is_lost_comes_back():
    made = site()
    made.tell(f.NodeGone("a1"))
    assert not isinstance(made.ask("j", "guest", demand_of(1, 4)), Refusal)


def test_a_change_that_is_scheduled_counts():
    made = site()
    change = QuotaChange(START_MS + 1_000, START_MS + 2_000, guarantee=gpu_amounts(-3))
    made.queue("keeps", guarantee=3, lend=0, changes=(change,))
    assert not isinstance(made.ask("j", "guest", demand_of(1, 7)), Refusal)


def test_a_queue_that_lends_later_is_taken_at_its_word_of_then():
    made = site()
    assert isinstance(made.ask("j", "guest", demand_of(1, 7)), Refusal)
    made.queue("keeps", guarantee=3)
    assert not isinstance(made.ask("j", "guest", demand_of(1, 7)), Refusal)


def test_machines_that_may_come_count():
    made = site()
    spec = JobSpec(queue="guest", gangs=(GangSpec(demand_of(1, 5)),))
    answer = commands.submit_many(made.state, {"j": spec}, "ann", made.now, could_come=lambda demand: True)
    assert not isinstance(answer, Refusal)
